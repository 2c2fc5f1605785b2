// SPDX-License-Identifier: Apache-2.0
// Waiting: the caller drives. Pauses first, then yields, then sleep on the caller's bell; a second waiting thread of
// the process sleeps until the first completes something.
#include <sched.h>

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/engine.h"
#include "platform/clock.h"

namespace hvd {

namespace {

constexpr int kPauses = 100;
constexpr int kYields = 100;
constexpr uint64_t kLookAroundNs = 100000000;  // no sleep is longer: a lost wake-up would cost this, not the job

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// True while it is too early to sleep.
bool spin(int turn) {
  if (turn >= kPauses + kYields) return false;
  if (turn < kPauses) {
    pause();
  } else {
    sched_yield();
  }
  return true;
}

}  // namespace

Engine::Driving::Driving(Engine& engine)
    : engine_(engine),
      drives_((!engine.ending_->stopping() || engine.ending_->stopped()) && engine.wakeup_->take_token()) {
  if (!drives_) return;
  engine_.wakeup_->begin_waiting();
  engine_.bells_->hide_engine();
}

Engine::Driving::~Driving() {
  if (!drives_) return;
  engine_.wakeup_->drop_token();
  engine_.wakeup_->end_waiting();
  engine_.hand_over();
}

void Engine::drive_for_a_moment(const Submission& submission) {
  for (int turn = 0; !submission.done.load(); ++turn) {
    if (drive(true)) {
      turn = 0;
    } else if (!spin(turn)) {
      return;
    }
  }
}

Status Engine::poll(hvd_handle handle) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  if (!submission->done.load()) return {HVD_PENDING, ""};
  return submission->status;
}

Status Engine::wait(hvd_handle handle, int32_t timeout_ms) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  if (submission->done.load()) return submission->status;
  if (calling_back_.is_here()) {
    return {HVD_WOULD_DEADLOCK, "a completion callback cannot wait: it runs on the thread that makes progress"};
  }
  const uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
  wakeup_->begin_waiting();
  // What this rank has completed can be told now: it brings nothing more.
  if (!publisher_->ends_batches() && !map_.is_leader()) bells_->ring(0);
  bool out_of_time = false;
  bool rung = false, rung_own = false;
  for (int turn = 0; !submission->done.load() && !out_of_time; ++turn) {
    // A stop drives by itself, and needs the token for that.
    const bool leave_it = ending_->stopping() && !ending_->stopped();
    if (!leave_it && wakeup_->take_token()) {
      bells_->hide_engine();
      if (drive(true)) turn = 0;
      if (submission->done.load() || turn < kPauses + kYields) {
        wakeup_->drop_token();
        spin(turn);
        continue;
      }
      if (!rung) {
        bells_->ring_others();
        rung = true;
      }
      const WakeReason reason = bells_->sleep(Sleeper::kCaller, [&]() -> Bells::Sleep {
        if (has_work()) return {};
        const uint64_t now = now_ns();
        if (now >= deadline_ns) return {};
        const auto at_most_ns = static_cast<int64_t>(std::min(deadline_ns - now, kLookAroundNs));
        const int64_t linger_ns = linger_left_ns();
        return {linger_ns < 0 ? at_most_ns : std::clamp<int64_t>(linger_ns, 1000, at_most_ns), true};
      });
      out_of_time = reason == WakeReason::kSignal;
      wakeup_->drop_token();
    } else if (!spin(turn)) {
      // Whoever has the token may sleep, and was not rung for what this thread submitted to drive it itself.
      if (!std::exchange(rung_own, true)) bells_->ring(map_.local_rank);
      out_of_time = !wakeup_->sleep_until_completion(
          [&] { return !submission->done.load() && (leave_it || wakeup_->somebody_drives()); });
    }
    out_of_time = out_of_time || (deadline_ns != UINT64_MAX && now_ns() >= deadline_ns);
  }
  wakeup_->end_waiting();
  hand_over();
  if (!submission->done.load()) return {HVD_PENDING, ""};
  return submission->status;
}

}  // namespace hvd
