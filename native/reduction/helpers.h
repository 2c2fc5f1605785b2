// SPDX-License-Identifier: Apache-2.0
// Helpers: threads that take pieces of a large copy or fold from the one that runs the operation (step 7). They are for
// ranks with cores that are idle while a caller waits. A piece is a range of elements, so bits do not depend on them.
//
// They sleep but for the length of an operation for which they are worth it. Whether they are is timed, again and
// again, for each size: the cores may be busy, and memory may be the limit. Only this rank's own work is timed, so each
// rank decides for itself.
//
// One thread at a time runs operations; allow() may come from any. run() blocks until all pieces have ended. Threads
// start with the first operation that they help with, and end with the object. Where none can be started, nothing is
// lost but their help.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "platform/clock.h"

namespace hvd {

class Helpers {
 public:
  using Clock = uint64_t (*)();  // ns
  explicit Helpers(int threads, Clock clock = now_ns) : wanted_(threads), clock_(clock) {}
  ~Helpers();
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  // `allowed`: the rank's own threads are idle, because a caller waits for the operation.
  void allow(bool allowed) { allowed_.store(allowed, std::memory_order_relaxed); }
  // For tests: helpers take part in every operation, however small and slow.
  void always_help() { always_ = true; }

  // Into how many pieces so much work is to be cut; 1 outside of an operation that helpers take part in.
  int pieces_of(size_t bytes) const;
  int most_pieces() const { return wanted_ + 1; }

  // Calls piece(i) once for each i below `pieces`, here and on helpers.
  template <class Piece>
  void run(int pieces, const Piece& piece) {
    const uint64_t begin_ns = begin_part();
    if (pieces == 1) {
      piece(0);
    } else {
      run_pieces(pieces, [](const void* data, int index) { (*static_cast<const Piece*>(data))(index); }, &piece);
    }
    end_part(begin_ns);
  }

  // Lives as long as an operation of so many bytes. `helpers` may be null.
  class Operation {
   public:
    Operation(Helpers* helpers, size_t bytes) : helpers_(helpers) {
      if (helpers_ != nullptr) helpers_->begin(bytes);
    }
    ~Operation() {
      if (helpers_ != nullptr) helpers_->end();
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    Helpers* const helpers_;
  };

  // JSON members: how many threads, and how many operations they have helped with. Any thread.
  std::string describe() const;

 private:
  using Call = void (*)(const void* data, int index);
  // Of one size: what the last trial found.
  struct Choice {
    uint32_t operations = 0;
    uint64_t alone_ns = 0, helped_ns = 0;  // of the present trial
    uint64_t alone_bytes = 0, helped_bytes = 0;
    bool helps = false;
  };

  void begin(size_t bytes);
  void end();
  bool in_trial() const { return choice_ != nullptr && is_trial_; }
  uint64_t begin_part() const;
  void end_part(uint64_t begin_ns);
  bool start_threads();
  void run_pieces(int pieces, Call call, const void* data);
  bool take_piece();
  void work();

  static constexpr int kSizes = 16;
  const int wanted_;
  const Clock clock_;
  bool always_ = false;
  std::atomic<bool> allowed_{false};
  std::vector<std::thread> threads_;

  // Of the operation that runs.
  Choice choices_[kSizes];
  Choice* choice_ = nullptr;
  size_t bytes_ = 0;
  uint64_t worked_ns_ = 0;
  bool is_trial_ = false, is_helped_ = false;

  // Of the pieces that are to be had: round (32 bits), pieces (16), the next one (16). What the word's round belongs to
  // stays until all of its pieces have ended.
  alignas(64) std::atomic<uint64_t> pieces_{0};
  Call call_ = nullptr;
  const void* data_ = nullptr;
  uint32_t round_ = 0;
  alignas(64) std::atomic<int> ended_{0};
  alignas(64) std::atomic<uint32_t> shift_{0};  // odd: helpers are awake. A futex
  std::atomic<bool> over_{false};
  std::atomic<uint64_t> helped_operations_{0};
};

}  // namespace hvd
