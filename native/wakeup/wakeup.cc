// SPDX-License-Identifier: Apache-2.0
#include "wakeup/wakeup.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "platform/clock.h"
#include "platform/futex.h"
#include "platform/wait.h"

namespace hvd {

namespace {

constexpr int kPauses = 100;
constexpr int kYields = 100;
constexpr uint64_t kLookAroundNs = 100000000;  // no sleep is longer: a lost wake-up would cost this, not the job

// True while it is too early to sleep.
bool spin(int turn) {
  if (turn >= kPauses + kYields) return false;
  if (turn < kPauses) {
    cpu_pause();
  } else {
    sched_yield();
  }
  return true;
}

}  // namespace

Wakeup::Turn::Turn(Wakeup& wakeup)
    : wakeup_(wakeup), drives_((!wakeup.ending_.stopping() || wakeup.ending_.stopped()) && wakeup.take_token()) {
  if (!drives_) return;
  wakeup_.begin_waiting();
  wakeup_.bells_.hide_engine();
}

Wakeup::Turn::~Turn() {
  if (!drives_) return;
  wakeup_.drop_token();
  wakeup_.end_waiting();
  wakeup_.hand_over();
}

void Wakeup::Turn::drive_for_a_moment(const std::atomic<bool>& done) {
  for (int turn = 0; !done.load(); ++turn) {
    if (wakeup_.driver_.drive(true)) {
      turn = 0;
    } else if (!spin(turn)) {
      return;
    }
  }
}

void Wakeup::hand_over() {
  bells_.hand_over(
      [this] { return driver_.has_work() || (bells_.watches_sockets() && driver_.has_calls_in_flight()); });
}

void Wakeup::wait(const std::atomic<bool>& done, uint64_t deadline_ns) {
  bool out_of_time = false;
  bool rung = false, rung_own = false;
  for (int turn = 0; !done.load() && !out_of_time; ++turn) {
    // A stop drives by itself, and needs the token for that.
    const bool leave_it = ending_.stopping() && !ending_.stopped();
    if (!leave_it && take_token()) {
      bells_.hide_engine();
      if (driver_.drive(true)) turn = 0;
      if (done.load() || turn < kPauses + kYields) {
        drop_token();
        spin(turn);
        continue;
      }
      if (!std::exchange(rung, true)) bells_.ring_others();
      out_of_time = !sleep_on_bell(deadline_ns);
      drop_token();
    } else if (!spin(turn)) {
      // The token's holder may sleep, and was not rung: this thread submitted its work in order to drive it itself.
      if (!std::exchange(rung_own, true)) bells_.ring_own();
      out_of_time = !sleep_until_completion(done, leave_it);
    }
    out_of_time = out_of_time || (deadline_ns != UINT64_MAX && now_ns() >= deadline_ns);
  }
}

// With the token. False: a signal has arrived.
bool Wakeup::sleep_on_bell(uint64_t deadline_ns) {
  const WakeReason reason = bells_.sleep(Sleeper::kCaller, [&]() -> Bells::Sleep {
    if (driver_.has_work()) return {};
    const uint64_t now = now_ns();
    if (now >= deadline_ns) return {};
    const auto at_most_ns = static_cast<int64_t>(std::min(deadline_ns - now, kLookAroundNs));
    const int64_t linger_ns = driver_.linger_left_ns();
    return {linger_ns < 0 ? at_most_ns : std::clamp<int64_t>(linger_ns, 1000, at_most_ns), true};
  });
  return reason != WakeReason::kSignal;
}

// For a moment at most, and only while another one drives, or a stop does. False: a signal has arrived.
bool Wakeup::sleep_until_completion(const std::atomic<bool>& done, bool whoever_drives) {
  constexpr int64_t kMomentNs = 2000000;
  bool interrupted = false;
  sleepers_.fetch_add(1);
  const uint32_t before = completions_.load();
  if (!done.load() && (whoever_drives || somebody_drives())) {
    interrupted = futex_wait(completions_, before, kMomentNs) == FutexResult::kInterrupted;
  }
  sleepers_.fetch_sub(1);
  return !interrupted;
}

void Wakeup::completed() {
  completions_.fetch_add(1);
  if (sleepers_.load() > 0) futex_wake(completions_);
}

}  // namespace hvd
