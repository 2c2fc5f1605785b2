// SPDX-License-Identifier: Apache-2.0
// Driving: follow the host's log, close batches, look for work. Everything here runs under the driver's token, except
// the engine's thread while it sleeps.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "engine/engine.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

// Nothing may leave this: not into a thread's main function, and not past the thread that has to drop the token.
bool Engine::drive(bool somebody_waits) {
  try {
    runner_->somebody_waits(somebody_waits || wakeup_->callers_wait());
    return advance(somebody_waits);
  } catch (const std::bad_alloc&) {
    ending_->poison(HVD_OUT_OF_MEMORY, map_.rank, "rank " + std::to_string(map_.rank) + " is out of memory");
  } catch (const std::exception& error) {
    ending_->poison(HVD_INTERNAL, map_.rank, "rank " + std::to_string(map_.rank) + ": internal error: " + error.what());
  }
  return true;
}

bool Engine::advance(bool somebody_waits) {
  bool progressed = false;
  for (;;) {
    progressed |= runner_->finish_launched();  // also in the end: the other ranks have given to it what they had
    if (ending_->poisoned()) {
      runner_->spread_abort();
      runner_->finish_launched();  // what waited in NCCL has been aborted
      runner_->fail_all(ending_->cause());
      return true;
    }
    if (ending_->stopped()) {
      runner_->fail_all(ending_->end_of_job());
      return true;
    }
    progressed |= serve();
    if (runner_->is_suspended()) {
      runner_->go_on();
      if (runner_->is_suspended()) return progressed;
    }
    if (follow_log()) {
      progressed = true;
      continue;
    }
    if (calls_->say_the_rest()) continue;
    if (ending_->somebody_left()) {
      // The log is drained: what is not ready by now needs the rank that left, and never will be.
      runner_->fail_all(ending_->end_of_job());
      return true;
    }
    if (service_ != nullptr) service_->speak();
    if (may_close(somebody_waits)) {
      const uint64_t position = cursor_.load();
      if (segment_->try_append_at(position, {RecordKind::kClose, 0})) {
        segment_->header().ready_bytes.store(0);
        // A caller that waits rings when it sleeps in the batch or has left it; the others may come by themselves.
        if (somebody_waits) {
          unannounced_close_ = position;
        } else {
          bells_->ring_others();
        }
      }
      continue;
    }
    if (service_ != nullptr) service_->watch_for_room();
    return progressed;
  }
}

// The batch that ends there may have needed nothing of them: a broadcast's root, a rank outside of its process set.
void Engine::ring_those_behind(uint64_t position) {
  for (uint32_t r = 0; r < segment_->local_size(); ++r) {
    if (r != map_.local_rank && segment_->rank(r).cursor.load() <= position) bells_->ring(r);
  }
}

bool Engine::serve() {
  const bool sent = board_->pump();
  if (service_ != nullptr) return service_->serve();
  if (sent) bells_->ring(0);  // it sleeps once it has read all there was
  return false;
}

bool Engine::follow_log() {
  const uint64_t position = cursor_.load(std::memory_order_relaxed);
  Record record;
  if (!segment_->peek(position, &record)) return false;
  cursor_.store(position + 1);
  const OnThread::Scope following(calls_->following());
  apply(record);
  // After that: who sees this cursor beyond a record knows that this rank has no use for its text, and beyond a RETIRE
  // for the number, any more.
  segment_->rank(map_.local_rank).cursor.store(position + 1);
  if (position == unannounced_close_) ring_those_behind(position);
  return true;
}

bool Engine::may_close(bool somebody_waits) const {
  if (!publisher_->ends_batches() || runner_->open_batch().is_empty()) return false;
  return somebody_waits || runner_->open_batch().bytes() >= options_.settings.close_bytes || board_->anybody_waits() ||
         batch_linger_left_ns() == 0;
}

// How long operations that are ready, or not told yet, still wait for company; negative: none does. Any thread.
int64_t Engine::batch_linger_left_ns() const {
  const int64_t silence_ns = service_ == nullptr ? -1 : service_->leader().silence_left_ns();
  const uint64_t since = runner_->open_batch().since_ns();
  if (since == 0) return silence_ns;
  const uint64_t until = since + static_cast<uint64_t>(options_.settings.cycle_time_ms * 1e6);
  const uint64_t now = now_ns();
  const int64_t linger_ns = now >= until ? 0 : static_cast<int64_t>(until - now);
  return silence_ns < 0 ? linger_ns : std::min(linger_ns, silence_ns);
}

// GPUs ring no bell: what is launched is looked at from time to time.
int64_t Engine::linger_left_ns() const {
  const int64_t batch_ns = batch_linger_left_ns();
  const int64_t look_ns = runner_->launched().look_again_in_ns(runner_->is_suspended(), wakeup_->callers_wait());
  if (batch_ns < 0 || look_ns < 0) return std::max(batch_ns, look_ns);
  return std::min(batch_ns, look_ns);
}

void Engine::apply(Record record) {
  if (record.kind == RecordKind::kReady && service_ != nullptr) service_->leader().note_ready(record.id);
  if (record.kind == RecordKind::kLeave) {
    runner_->close_batch();
    ending_->note_left(record.id);
    return;
  }
  if (record.kind == RecordKind::kClose) {
    if (service_ != nullptr) service_->hand_out_batch();
    runner_->close_batch();
    return;
  }
  Member::Applied applied;
  const Status outcome = calls_->apply(record, &applied);
  if (!outcome.ok()) {
    ending_->poison(outcome);
    return;
  }
  switch (applied.what) {
    case Member::Applied::What::kNothing:
      return;
    case Member::Applied::What::kReady: {
      SubmissionPtr call = submission_of(std::move(applied.call));
      const uint64_t ready_ns = call->begun_ns + applied.waited_ns;
      call->ready_ns.store(ready_ns, std::memory_order_relaxed);
      arrivals_.note_ready(ready_ns, applied.waited_ns, applied.last_rank, call->prepared->descriptor.process_set,
                           *call->name, record.id, call->prepared->total_bytes);
      runner_->open(std::move(call));
      return;
    }
    case Member::Applied::What::kZeros:
      runner_->open(calls_->zeros_for(applied));
      return;
    case Member::Applied::What::kReceives:
      runner_->open(calls_->with_sender(applied));
      return;
    case Member::Applied::What::kFailed:
      calls_->complete(submission_of(std::move(applied.call)), applied.status);
      return;
    case Member::Applied::What::kJoined:
      calls_->all_have_joined(submission_of(std::move(applied.call)), record.id);
      return;
  }
}

// Others bring the condition about by reading. False where the generation has ended.
bool Engine::wait_until(const std::function<bool()>& have_read, bool driving) {
  for (int i = 0; !have_read(); ++i) {
    if (ending_->poisoned() || ending_->stopped()) return false;
    if (now_ns() > ending_->stop_deadline_ns()) {
      ending_->poison(HVD_RANK_LEFT, map_.rank,
                      "rank " + std::to_string(map_.rank) + " shut down, but the other ranks did not answer in time");
      return false;
    }
    // Decisions that come in while a failed batch is looked into (communicator_failed): it ends in poison in any case.
    if (calls_->following().is_here()) return false;
    if (driving) {
      while (!ending_->poisoned() && follow_log()) {
      }
    } else if (wakeup_->take_token()) {
      drive(true);
      wakeup_->drop_token();
      wakeup_->hand_over();
    }
    bells_->ring_others();
    if (i > 0) sleep_ms(i < 10 ? 0 : 1);
  }
  return true;
}

// True if drive() would make progress.
bool Engine::has_work() {
  Record record;
  const bool has_record = !runner_->is_suspended() && segment_->peek(cursor_.load(), &record);
  return ending_->poisoned() || ending_->stopping() || has_record || board_->can_pump() ||
         (service_ != nullptr && service_->has_work());
}

// A core that this process may not use, or that is not there, changes nothing.
static void pin_thread(const EngineSettings& settings) {
  if (settings.engine_cpu < 0) return;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (settings.engine_cpu < CPU_SETSIZE) CPU_SET(static_cast<size_t>(settings.engine_cpu), &cpus);
  if (sched_setaffinity(0, sizeof cpus, &cpus) != 0 && settings.warnings) {
    warn("the engine's thread cannot run on core " + std::to_string(settings.engine_cpu) +
             " (HOROVOD_THREAD_AFFINITY): " + std::strerror(errno),
         settings.log_time);
  }
}

void Engine::engine_thread() {
  constexpr int64_t kWatchdogNs = 1000000000;
  constexpr int64_t kPendingIdsNs = 10000000;  // the last reader of a RETIRE does not ring
  // While calls come that are not waited for at once, this thread naps. Then no caller has to wake it for a batch that
  // it opens, which would cost more than a small operation.
  constexpr int kNaps = 20;  // in ten cycles: chosen
  const auto nap_ns = static_cast<int64_t>(options_.settings.cycle_time_ms * 1e6 / 2);
  uint32_t calls_seen = 0;
  int naps = kNaps;
  const auto look = [&, this]() -> Bells::Sleep {
    const Bells::Sleep stay_awake;
    bells_->nap_until(0);
    if (ending_->stopped()) return stay_awake;
    // The token's holder looks for work when it drops the token; a stop drives by itself; an abort is handled once.
    const bool mine =
        !wakeup_->somebody_drives() && !ending_->stopping() && !(ending_->poisoned() && ending_->is_spread());
    const bool due = runner_->open_batch().since_ns() != 0 && board_->anybody_waits();
    if (mine && (has_work() || due)) return stay_awake;
    const int64_t linger_ns = linger_left_ns();
    const bool ids_pending = service_ != nullptr && service_->has_unread_retirements();
    const uint32_t calls = calls_->asynchronous();
    naps = std::exchange(calls_seen, calls) == calls ? naps + 1 : 0;
    const bool naps_now = naps < kNaps && nap_ns > 0;
    int64_t at_most = ids_pending ? kPendingIdsNs : kWatchdogNs;
    if (naps_now) at_most = std::min(at_most, nap_ns);
    const int64_t sleep_ns =
        linger_ns < 0 ? at_most : std::clamp<int64_t>(linger_ns, 1000, std::max<int64_t>(at_most, 1000));
    if (naps_now) bells_->nap_until(now_ns() + static_cast<uint64_t>(sleep_ns));
    return {sleep_ns, !wakeup_->callers_wait()};
  };
  pin_thread(options_.settings);
  while (!ending_->stopped()) {
    if (wakeup_->take_token()) {
      drive(false);
      wakeup_->drop_token();
    }
    bells_->sleep(Sleeper::kEngine, look);
    wakeup_->note_engine_wake();
  }
}

}  // namespace hvd
