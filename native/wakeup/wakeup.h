// SPDX-License-Identifier: Apache-2.0
// Wakeup: which thread of this process drives, and where the others sleep (steps 4, 5 and 8). The driver's token; the
// callers that wait, of which one drives: pauses first, then yields, then sleep on the caller's bell; those that sleep
// until a completion, because another one drives.
//
// Borrows everything. Any thread. wait() blocks, and so does the driver's work.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "host/board.h"
#include "wakeup/bells.h"
#include "wakeup/ending.h"

namespace hvd {

// Tells if the calling thread is inside a certain stretch of its engine's code. Only one thread at a time can be (the
// holder of the driver's token), so one word holds it. Any thread may ask; relaxed, since it asks only about itself.
class OnThread {
 public:
  bool is_here() const { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  class Scope {
   public:
    explicit Scope(OnThread& where) : where_(where), before_(where.thread_.load(std::memory_order_relaxed)) {
      where.thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~Scope() { where_.thread_.store(before_, std::memory_order_relaxed); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OnThread& where_;
    const std::thread::id before_;
  };

 private:
  std::atomic<std::thread::id> thread_{};
};

// The work of the token's holder, which the engine implements.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual bool drive(bool somebody_waits) = 0;   // true if something moved
  virtual bool has_work() = 0;                   // whether drive() would move something; any thread
  virtual int64_t linger_left_ns() const = 0;    // until there is something by itself; negative: never. Any thread
  virtual bool has_calls_in_flight() const = 0;  // any thread
};

class Wakeup {
 public:
  Wakeup(SegmentBoard& board, Bells& bells, const Ending& ending, Driver& driver)
      : board_(board), bells_(bells), ending_(ending), driver_(driver) {}

  bool take_token() {
    bool free = false;
    return token_.compare_exchange_strong(free, true);
  }
  void drop_token() { token_.store(false); }
  bool somebody_drives() const { return token_.load(); }
  // After another thread than the engine's has dropped the token. The engine's thread must watch the sockets again, if
  // there are any and something is on its way.
  void hand_over();

  // A caller drives while this lives, if no other thread does.
  class Turn {
   public:
    explicit Turn(Wakeup& wakeup);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    bool drives() const { return drives_; }
    // Until it is done or it is time to sleep.
    void drive_for_a_moment(const std::atomic<bool>& done);

   private:
    Wakeup& wakeup_;
    const bool drives_;
  };

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
  // Between these two. Returns at the deadline or a signal as well.
  void wait(const std::atomic<bool>& done, uint64_t deadline_ns);
  void completed();  // something is done: wakes the callers that wait without driving

  // How often the engine's thread has woken up: statistics.
  void note_engine_wake() { engine_wakes_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t engine_wakes() const { return engine_wakes_.load(std::memory_order_relaxed); }

 private:
  bool sleep_on_bell(uint64_t deadline_ns);
  bool sleep_until_completion(const std::atomic<bool>& done, bool whoever_drives);

  SegmentBoard& board_;
  Bells& bells_;
  const Ending& ending_;
  Driver& driver_;
  std::atomic<bool> token_{false};
  std::atomic<int> callers_{0};
  std::atomic<uint32_t> completions_{0};  // futex word
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint64_t> engine_wakes_{0};
};

}  // namespace hvd
