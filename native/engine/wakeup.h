// SPDX-License-Identifier: Apache-2.0
// Wakeup: which thread of this process drives, and where the others sleep. The driver's token; the callers that wait,
// of which one drives and sleeps on the caller's bell; those that wait for a completion because another one drives.
//
// Borrows the board and the bells. Any thread. Only sleep_until_completion() blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "engine/bells.h"
#include "engine/board.h"
#include "platform/futex.h"

namespace hvd {

class Wakeup {
 public:
  Wakeup(SegmentBoard& board, Bells& bells) : board_(board), bells_(bells) {}

  bool take_token() {
    bool free = false;
    return token_.compare_exchange_strong(free, true);
  }
  void drop_token() { token_.store(false); }
  bool somebody_drives() const { return token_.load(); }
  // After the token was dropped by another than the engine's thread. That one has to watch the sockets again, if there
  // are any and something is on its way.
  template <class Look>
  void hand_over(bool in_flight, Look&& has_work) {
    bells_.hand_over([&] { return has_work() || (in_flight && bells_.watches_sockets()); });
  }

  // A caller waits, here and as the host's other ranks see it.
  void begin_waiting() {
    board_.begin_waiting();
    callers_.fetch_add(1);
  }
  void end_waiting() {
    callers_.fetch_sub(1);
    board_.end_waiting();
  }
  bool callers_wait() const { return callers_.load() > 0; }

  // How often the engine's thread has woken up: statistics.
  void note_engine_wake() { engine_wakes_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t engine_wakes() const { return engine_wakes_.load(std::memory_order_relaxed); }

  void completed() {
    completions_.fetch_add(1);
    if (sleepers_.load() > 0) futex_wake(completions_);
  }
  // Until the next completion, for a moment at most. `still()`: one look, whether there is a reason to. False: a signal
  // has arrived.
  template <class Still>
  bool sleep_until_completion(Still&& still) {
    constexpr int64_t kMomentNs = 2000000;
    sleepers_.fetch_add(1);
    const uint32_t before = completions_.load();
    const bool interrupted = still() && futex_wait(completions_, before, kMomentNs) == FutexResult::kInterrupted;
    sleepers_.fetch_sub(1);
    return !interrupted;
  }

 private:
  SegmentBoard& board_;
  Bells& bells_;
  std::atomic<bool> token_{false};
  std::atomic<int> callers_{0};
  std::atomic<uint32_t> completions_{0};  // futex word
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint64_t> engine_wakes_{0};
};

}  // namespace hvd
