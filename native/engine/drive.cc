// SPDX-License-Identifier: Apache-2.0
// Driving: follow the host's log, close batches, complete what is done. Everything here runs under the driver's token.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "engine/engine.h"
#include "negotiation/frames.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/futex.h"
#include "platform/warning.h"

namespace hvd {

// Nothing may leave this: not into a thread's main function, and not past whoever has to drop the token.
bool Engine::drive(bool somebody_waits) {
  try {
    return advance(somebody_waits);
  } catch (const std::bad_alloc&) {
    poison(HVD_OUT_OF_MEMORY, rank_, "rank " + std::to_string(rank_) + " is out of memory");
  } catch (const std::exception& error) {
    poison(HVD_INTERNAL, rank_, "rank " + std::to_string(rank_) + ": internal error: " + error.what());
  }
  return true;
}

bool Engine::advance(bool somebody_waits) {
  bool progressed = false;
  for (;;) {
    if (poisoned()) {
      spread_abort();
      fail_all(segment_->cause());
      return true;
    }
    if (stopped_.load()) {
      fail_all(end_of_job());
      return true;
    }
    progressed |= serve();
    if (follow_log()) {
      progressed = true;
      continue;
    }
    if (!later_.empty()) {
      for (const Member::Announcement& announcement : std::exchange(later_, {})) announce(announcement, true);
      if (std::exchange(join_later_, false)) say_join();
      continue;
    }
    if (left_rank_.load() >= 0) {
      // The log is drained: what is not ready by now needs the rank that left, and never will be.
      fail_all(end_of_job());
      return true;
    }
    if (leader_ != nullptr) follow_orders(leader_->speak());
    if (may_close(somebody_waits)) {
      if (segment_->try_append_at(cursor_.load(), {RecordKind::kClose, 0})) {
        segment_->header().ready_bytes.store(0);
        bells_->ring_others();
      }
      continue;
    }
    for (const ControlLinks::Link& link : control_.all()) {
      bells_->watch_for_room(link.socket.fd(), link.socket.wants_to_write());
    }
    return progressed;
  }
}

bool Engine::follow_log() {
  const uint64_t position = cursor_.load(std::memory_order_relaxed);
  Record record;
  if (!segment_->peek(position, &record)) return false;
  cursor_.store(position + 1);
  const OnThread::Scope following(following_);
  apply(record);
  // After that: who sees this cursor beyond a record knows that this rank has no use for its text, and beyond a RETIRE
  // for the number, any more.
  segment_->rank(local_rank_).cursor.store(position + 1);
  return true;
}

bool Engine::may_close(bool somebody_waits) const {
  if (!publisher_->ends_batches() || open_.calls.empty()) return false;
  return somebody_waits || open_.bytes >= options_.settings.close_bytes || board_->anybody_waits() || linger_is_over();
}

// How long what is ready, or has yet to be told, still waits for company; negative: nothing does. Any thread.
int64_t Engine::linger_left_ns() const {
  const int64_t silence_ns = leader_ == nullptr ? -1 : leader_->silence_left_ns();
  const uint64_t since = open_.since_ns.load();
  if (since == 0) return silence_ns;
  const uint64_t until = since + static_cast<uint64_t>(options_.settings.cycle_time_ms * 1e6);
  const uint64_t now = now_ns();
  const int64_t linger_ns = now >= until ? 0 : static_cast<int64_t>(until - now);
  return silence_ns < 0 ? linger_ns : std::min(linger_ns, silence_ns);
}

bool Engine::linger_is_over() const { return linger_left_ns() == 0; }

void Engine::apply(Record record) {
  if (record.kind == RecordKind::kReady && leader_ != nullptr) leader_->note_ready(record.id);
  if (record.kind == RecordKind::kLeave) {
    apply_leave(record.id);
    return;
  }
  if (record.kind == RecordKind::kClose) {
    control_.hand_out_batch([this] { return poisoned(); });
    close_batch();
    return;
  }
  Member::Applied applied;
  Status outcome;
  {
    const std::lock_guard lock(mutex_);
    outcome = member_->apply(record, &applied);
  }
  if (!outcome.ok()) {
    poison(outcome);
    return;
  }
  switch (applied.what) {
    case Member::Applied::What::kNothing:
      return;
    case Member::Applied::What::kReady:
      open(submission_of(std::move(applied.call)));
      return;
    case Member::Applied::What::kZeros:
      open(zeros_for(applied));
      return;
    case Member::Applied::What::kFailed:
      complete(submission_of(std::move(applied.call)), applied.status);
      return;
    case Member::Applied::What::kJoined:
      all_have_joined(submission_of(std::move(applied.call)), record.id);
      return;
  }
}

void Engine::apply_leave(uint32_t rank) {
  close_batch();
  if (rank >= has_left_.size()) return;
  has_left_[rank] = true;
  if (static_cast<int>(rank) == rank_) segment_->rank(local_rank_).left.store(1);
  int nobody = -1;
  left_rank_.compare_exchange_strong(nobody, static_cast<int>(rank));
}

// It is part of the next batch.
void Engine::open(SubmissionPtr submission) {
  if (submission == nullptr) {
    poison(HVD_INTERNAL, -1,
           "rank " + std::to_string(rank_) + " has joined and was told to run an operation that needs its data");
    return;
  }
  if (left_rank_.load() >= 0) {  // the rank that left may have submitted it, but will not take part
    complete(submission, end_of_job().while_doing(quote_name(*submission->name) + " failed"));
    return;
  }
  if (timeline_.is_on()) trace(submission.get(), Submission::Stage::kQueued);
  if (open_.calls.empty()) open_.since_ns.store(now_ns());
  open_.bytes += submission->total_bytes;
  open_.calls.push_back(std::move(submission));
}

void Engine::close_batch() {
  if (open_.calls.empty()) return;
  if (timeline_.marks_cycles()) timeline_.record(Timeline::Phase::kMark, "CYCLE_START", "", "");
  std::vector<SubmissionPtr> closed;
  closed.swap(open_.calls);
  open_.bytes = 0;
  open_.since_ns.store(0);
  execute(std::move(closed));
}

// Others bring the condition about by reading. False where the generation has ended.
bool Engine::wait_until(const std::function<bool()>& have_read, bool driving) {
  for (int i = 0; !have_read(); ++i) {
    if (poisoned() || stopped_.load()) return false;
    if (now_ns() > stop_deadline_ns_.load()) {
      poison(HVD_RANK_LEFT, rank_,
             "rank " + std::to_string(rank_) + " shut down while the others did not read its log");
      return false;
    }
    // Decisions that come in while a failed batch is looked into (communicator_failed): it ends in poison in any case.
    if (following_.is_here()) return false;
    if (driving) {
      while (!poisoned() && follow_log()) {
      }
    } else if (take_token()) {
      drive(true);
      drop_token();
      hand_over();
    }
    bells_->ring_others();
    if (i > 0) sleep_ms(i < 10 ? 0 : 1);
  }
  return true;
}

// Whether drive() would move something.
bool Engine::has_work() {
  Record record;
  if (poisoned() || stopping_.load() || segment_->peek(cursor_.load(), &record)) return true;
  for (const RingReceiver& ring : from_ranks_) {
    if (ring.has_data()) return true;
  }
  return board_->can_pump() || facts_due_.load() || (leader_ != nullptr && leader_->wants_to_speak());
}

void Engine::hand_over() {
  bells_->hand_over([this] { return has_work() || (spans_hosts() && in_flight_.load() > 0); });
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
  constexpr int64_t kPendingIdsNs = 10000000;  // nobody rings for the last reader of a RETIRE
  const auto look = [this]() -> Bells::Sleep {
    const Bells::Sleep stay_awake;
    if (stopped_.load()) return stay_awake;
    // Who has the token looks when it drops it; a stop drives by itself; an abort is handled once.
    const bool mine = !token_.load() && !stopping_.load() && !(poisoned() && abort_spread_.load());
    const bool due = open_.since_ns.load() != 0 && board_->anybody_waits();
    if (mine && (has_work() || due)) return stay_awake;
    const int64_t linger_ns = linger_left_ns();
    const int64_t at_most = ids_pending_.load() ? kPendingIdsNs : kWatchdogNs;
    return {linger_ns < 0 ? at_most : std::clamp<int64_t>(linger_ns, 1000, at_most), callers_waiting_.load() == 0};
  };
  pin_thread(options_.settings);
  while (!stopped_.load()) {
    if (take_token()) {
      drive(false);
      drop_token();
    }
    bells_->sleep(Sleeper::kEngine, look);
    statistics_.engine_wakes.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace hvd
