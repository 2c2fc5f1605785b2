// SPDX-License-Identifier: Apache-2.0
// Driving: follow the host's log, close batches, run them, complete what is done. Everything here runs under the
// driver's token.
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "engine/engine.h"
#include "fusion/batch.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

// Nothing may leave this: not into a thread's main function, and not past the thread that has to drop the token.
bool Engine::drive(bool somebody_waits) {
  try {
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
    progressed |= finish_launched();  // also in the end: the other ranks have given to it what they had
    if (ending_->poisoned()) {
      spread_abort();
      finish_launched();  // what waited in NCCL has been aborted
      fail_all(ending_->cause());
      return true;
    }
    if (ending_->stopped()) {
      fail_all(ending_->end_of_job());
      return true;
    }
    progressed |= serve();
    if (suspended_.load()) {
      go_on();
      if (suspended_.load()) return progressed;
    }
    if (follow_log()) {
      progressed = true;
      continue;
    }
    if (!later_.calls.empty()) {
      const Later later = std::exchange(later_, {});
      for (const Member::Announcement& announcement : later.calls) announce(announcement, true);
      if (later.join) say_join();
      continue;
    }
    if (ending_->somebody_left()) {
      // The log is drained: what is not ready by now needs the rank that left, and never will be.
      fail_all(ending_->end_of_job());
      return true;
    }
    if (service_ != nullptr) service_->speak();
    if (may_close(somebody_waits)) {
      if (segment_->try_append_at(cursor_.load(), {RecordKind::kClose, 0})) {
        segment_->header().ready_bytes.store(0);
        bells_->ring_others();
      }
      continue;
    }
    if (service_ != nullptr) service_->watch_for_room();
    return progressed;
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
  const OnThread::Scope following(following_);
  apply(record);
  // After that: who sees this cursor beyond a record knows that this rank has no use for its text, and beyond a RETIRE
  // for the number, any more.
  segment_->rank(map_.local_rank).cursor.store(position + 1);
  return true;
}

bool Engine::may_close(bool somebody_waits) const {
  if (!publisher_->ends_batches() || open_.is_empty()) return false;
  return somebody_waits || open_.bytes() >= options_.settings.close_bytes || board_->anybody_waits() ||
         batch_linger_left_ns() == 0;
}

// How long operations that are ready, or not told yet, still wait for company; negative: none does. Any thread.
int64_t Engine::batch_linger_left_ns() const {
  const int64_t silence_ns = service_ == nullptr ? -1 : service_->leader().silence_left_ns();
  const uint64_t since = open_.since_ns();
  if (since == 0) return silence_ns;
  const uint64_t until = since + static_cast<uint64_t>(options_.settings.cycle_time_ms * 1e6);
  const uint64_t now = now_ns();
  const int64_t linger_ns = now >= until ? 0 : static_cast<int64_t>(until - now);
  return silence_ns < 0 ? linger_ns : std::min(linger_ns, silence_ns);
}

// GPUs ring no bell: what is launched is looked at from time to time.
int64_t Engine::linger_left_ns() const {
  const int64_t batch_ns = batch_linger_left_ns();
  const int64_t look_ns = launched_.look_again_in_ns(suspended_.load(), wakeup_->callers_wait());
  if (batch_ns < 0 || look_ns < 0) return std::max(batch_ns, look_ns);
  return std::min(batch_ns, look_ns);
}

void Engine::apply(Record record) {
  if (record.kind == RecordKind::kReady && service_ != nullptr) service_->leader().note_ready(record.id);
  if (record.kind == RecordKind::kLeave) {
    close_batch();
    ending_->note_left(record.id);
    return;
  }
  if (record.kind == RecordKind::kClose) {
    if (service_ != nullptr) service_->hand_out_batch();
    close_batch();
    return;
  }
  Member::Applied applied;
  Status outcome;
  {
    const std::lock_guard lock(mutex_);
    outcome = member_->apply(record, &applied);
    if (applied.call != nullptr) {
      submission_of(applied.call)->decided = true;
      set_blocked(false);
    }
  }
  if (!outcome.ok()) {
    ending_->poison(outcome);
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

// It is part of the next batch.
void Engine::open(SubmissionPtr submission) {
  if (submission == nullptr) {
    ending_->poison(
        HVD_INTERNAL, -1,
        "rank " + std::to_string(map_.rank) + " has joined and was told to run an operation that needs its data");
    return;
  }
  if (ending_->somebody_left()) {  // the rank that left may have submitted it, but will not take part
    complete(submission, failure_of(*submission, ending_->end_of_job()));
    return;
  }
  trace_.enter(submission.get(), Submission::Stage::kQueued);
  open_.add(std::move(submission), now_ns());
}

void Engine::close_batch() {
  if (open_.is_empty()) return;
  trace_.mark_cycle();
  execute(open_.take());
}

void Engine::execute(std::vector<SubmissionPtr> closed) {
  std::vector<const Descriptor*> descriptors;
  for (const SubmissionPtr& submission : closed) descriptors.push_back(&submission->prepared->descriptor);
  running_.batches =
      plan_batches(descriptors, options_.settings.fusion_threshold_bytes, options_.settings.groups_apart);
  running_.next = 0;
  running_.tensors_left.clear();
  for (const SubmissionPtr& submission : closed) {
    running_.tensors_left.push_back(submission->prepared->tensors.size());
  }
  running_.calls = std::move(closed);
  go_on();
}

// With the batches that were closed together, in order. Stops before one whose inputs a GPU is still computing; then
// the log is not read on.
void Engine::go_on() {
  const OnThread::Scope following(following_);
  Status failure;
  while (failure.ok() && running_.next < running_.batches.size()) {
    const Batch& batch = running_.batches[running_.next];
    bool ready = true;
    failure = await_inputs(batch, &ready);
    suspended_.store(failure.ok() && !ready);
    if (suspended_.load()) return;
    if (failure.ok()) failure = run_next(batch);
    ++running_.next;
    if (!failure.ok()) communicator_failed(failure, quote_name(*running_.calls[batch.entry]->name));
  }
  for (size_t i = 0; i < running_.calls.size(); ++i) {
    const SubmissionPtr& call = running_.calls[i];
    if (has_run(i)) continue;
    if (failure.ok()) {
      complete(call, call->outcome);  // of no tensors
    } else {
      fail(call);
    }
  }
  running_.calls.clear();
}

// True if a call of tensors has left with its last batch.
bool Engine::has_run(size_t call) const {
  return running_.calls[call]->done.load() ||
         (running_.tensors_left[call] == 0 && running_.calls[call]->on_device != nullptr);
}

void Engine::fail(const SubmissionPtr& call) { complete(call, failure_of(*call, ending_->cause())); }

Status Engine::failure_of(const Submission& call, Status cause) {
  const std::string name = quote_name(*call.name);
  return cause.text().starts_with(name + ": ") ? cause : std::move(cause).while_doing(name + " failed");
}

Status Engine::await_inputs(const Batch& batch, bool* ready) {
  if (batch.descriptor->place == HVD_ON_HOST) return {};
  HVD_RETURN_IF_ERROR(of_this_rank(device_batches_->fetch(batch, running_.calls, ready)));
  if (*ready) return {};
  return gpu_watch_.look_at_inputs(device_batches_->fetching_since_ns(), *running_.calls[batch.entry]->name);
}

// A GPU's error says what has failed, and not where.
Status Engine::of_this_rank(Status status) const {
  const hvd_code code = status.code();
  const bool is_own = code == HVD_INTERNAL || code == HVD_OUT_OF_MEMORY || code == HVD_DEVICE_LOST;
  if (!(is_own || code == HVD_RANK_LOST) || status.failed_rank() >= 0) return status;
  return {code, "rank " + std::to_string(map_.rank) + ": " + status.text(), is_own ? map_.rank : -1};
}

Status Engine::run_next(const Batch& batch) {
  for (const BatchTensor& tensor : batch.tensors) {
    Submission& submission = *running_.calls[tensor.entry];
    if (submission.traced == Submission::Stage::kQueued) trace_.enter(&submission, Submission::Stage::kRunning);
  }
  HVD_RETURN_IF_ERROR(run(batch, running_.calls));
  for (const BatchTensor& tensor : batch.tensors) {
    const SubmissionPtr& submission = running_.calls[tensor.entry];
    if (--running_.tensors_left[tensor.entry] > 0) continue;
    if (submission->on_device == nullptr) {
      complete(submission, {});
    } else {
      launched(submission);
    }
  }
  return {};
}

Status Engine::run(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  try {
    switch (batch.descriptor->kind) {
      case HVD_ADD_PROCESS_SET:
        return run_add_process_set(closed[batch.entry].get());
      case HVD_REMOVE_PROCESS_SET:
        return run_remove_process_set(closed[batch.entry].get());
      default:
        return batch.descriptor->place == HVD_ON_HOST ? execution_.run(batch, closed)
                                                      : of_this_rank(device_batches_->run(batch, closed));
    }
  } catch (const std::bad_alloc&) {
    return {HVD_OUT_OF_MEMORY, "rank " + std::to_string(map_.rank) + " has not enough memory for the result",
            map_.rank};
  }
}

// A data link broke inside a collective. Its peer may have died, or may have ended because another rank did: what the
// control links say in the next moments decides which rank is named.
void Engine::communicator_failed(const Status& status, const std::string& doing) {
  constexpr uint64_t kPatienceNs = 300000000;
  const uint64_t deadline = now_ns() + kPatienceNs;
  // Seconds of silence need no other's word; the connections are closed once the cause is on its way (spread_abort).
  if (data_links_ != nullptr && data_links_->met_silence()) {
    ending_->poison(status.code(), status.failed_rank(), doing + ": " + status.text());
    spread_abort();
    return;
  }
  // A rank inside a collective reads no control link. Closing ours gets those out of it that would wait for this rank,
  // rank 0 above all, which passes the cause to all ranks.
  drop_host_communicators();
  // A failure met by this rank alone needs no confirmation. The end of another rank is reported by the monitor or over
  // the links of the host's leader; both may be a moment behind the communicator.
  while (status.code() == HVD_RANK_LOST && !ending_->poisoned() && now_ns() < deadline) {
    if (service_ == nullptr || service_->is_alone()) {
      sleep_ms(1);
    } else if (!service_->await_news(50)) {
      break;
    }
  }
  if (!ending_->poisoned()) ending_->poison(status.code(), status.failed_rank(), doing + ": " + status.text());
  spread_abort();  // GPUs may still work on the tensors of calls that are about to end
}

// The communicators close their links: what waits for this rank over one of them learns of the end. Those of NCCL come
// after the word is out: an abort may wait for the other ranks' aborts.
void Engine::spread_abort() {
  if (!ending_->begin_spreading()) return;
  if (service_ != nullptr) service_->spread_abort(ending_->cause());
  drop_communicators(false);
  bells_->ring_others();
}

void Engine::fail_all(const Status& cause) {
  std::vector<SubmissionPtr> failed;
  {
    const std::lock_guard lock(mutex_);
    for (const ContributionPtr& call : member_->give_up_all()) failed.push_back(submission_of(call));
  }
  for (const SubmissionPtr& submission : open_.take()) {
    if (submission->entry == EntryRef{}) failed.push_back(submission);  // zeros of a rank that has joined
  }
  for (size_t i = 0; suspended_.load() && i < running_.calls.size(); ++i) {
    if (!has_run(i)) failed.push_back(running_.calls[i]);
  }
  suspended_.store(false);
  if (service_ != nullptr) service_->leader().pending().take();
  for (const SubmissionPtr& submission : failed) {
    complete(submission, failure_of(*submission, cause));
  }
}

void Engine::complete(const SubmissionPtr& submission, Status status) {
  const Member::Finished finished = leave(submission);
  end(submission, std::move(status));
  say(finished);
}

// Its name is free for the next call.
void Engine::launched(const SubmissionPtr& submission) {
  const Member::Finished finished = leave(submission);
  launched_.add(submission);
  submission->on_device->is_launched.store(true);
  wakeup_->completed();
  say(finished);
}

// Completes finished GPU work; returns false if there was none. Without a pause between calls, it looks at most every
// 10 us: on an H200 a look takes 0.2 us, and up to 0.8 if another thread calls the driver.
bool Engine::finish_launched() {
  constexpr uint64_t kPauseNs = 10'000;
  if (launched_.is_empty()) return false;
  const uint64_t now = now_ns();
  if (now - looked_at_gpus_ns_ < kPauseNs && !ending_->poisoned() && !ending_->stopped()) return false;
  looked_at_gpus_ns_ = now;
  bool some = false;
  Status how;
  while (const SubmissionPtr submission = launched_.first_ended(&how)) {
    some = true;
    if (!how.ok() && !ending_->poisoned()) communicator_failed(of_this_rank(how), quote_name(*submission->name));
    if (!how.ok()) spread_abort();  // the GPU may still work on the call's tensors
    launched_.drop(submission);     // not before: who settles finds either the call or the end of the job
    end(submission, how.ok() ? Status() : failure_of(*submission, ending_->cause()));
  }
  if (!ending_->poisoned()) ending_->poison_if_failed(of_this_rank(gpu_watch_.look(launched_)));
  return some;
}

Member::Finished Engine::leave(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  Member::Finished finished = member_->finish(submission);
  if (finished.next != nullptr) trace_.enter(submission_of(finished.next).get(), Submission::Stage::kNegotiating);
  return finished;
}

void Engine::end(const SubmissionPtr& submission, Status status) {
  ending_->remember(status);
  in_flight_.fetch_sub(1);
  if (submission->urgent) board_->end_waiting();
  trace_.enter(submission.get(), Submission::Stage::kDone);
  const std::shared_ptr<const Prepared> prepared = submission->prepared;
  submission->status = status;
  submission->done.store(true);
  if (submission->on_device != nullptr) submission->on_device->is_launched.store(true);
  if (prepared != nullptr && prepared->done != nullptr) {
    hvd_status outcome{};
    outcome.size = sizeof outcome;
    outcome.code = status.code();
    outcome.failed_rank = status.failed_rank();
    outcome.member = -1;
    status.text().copy(outcome.text, sizeof outcome.text - 1);
    const OnThread::Scope calling_back(calling_back_);
    prepared->done(submission->user, &outcome);
  }
  wakeup_->completed();
}

void Engine::say(const Member::Finished& finished) {
  announce(finished.of_next);
  if (!finished.joins) return;
  if (later_.calls.empty()) {
    say_join();
  } else {
    later_.join = true;
  }
}

// Others bring the condition about by reading. False where the generation has ended.
bool Engine::wait_until(const std::function<bool()>& have_read, bool driving) {
  for (int i = 0; !have_read(); ++i) {
    if (ending_->poisoned() || ending_->stopped()) return false;
    if (now_ns() > ending_->stop_deadline_ns()) {
      ending_->poison(HVD_RANK_LEFT, map_.rank,
                      "rank " + std::to_string(map_.rank) + " shut down while the others did not read its log");
      return false;
    }
    // Decisions that come in while a failed batch is looked into (communicator_failed): it ends in poison in any case.
    if (following_.is_here()) return false;
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
  const bool has_record = !suspended_.load() && segment_->peek(cursor_.load(), &record);
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
  const auto look = [this]() -> Bells::Sleep {
    const Bells::Sleep stay_awake;
    if (ending_->stopped()) return stay_awake;
    // The token's holder looks for work when it drops the token; a stop drives by itself; an abort is handled once.
    const bool mine =
        !wakeup_->somebody_drives() && !ending_->stopping() && !(ending_->poisoned() && ending_->is_spread());
    const bool due = open_.since_ns() != 0 && board_->anybody_waits();
    if (mine && (has_work() || due)) return stay_awake;
    const int64_t linger_ns = linger_left_ns();
    const bool ids_pending = service_ != nullptr && service_->has_unread_retirements();
    const int64_t at_most = ids_pending ? kPendingIdsNs : kWatchdogNs;
    return {linger_ns < 0 ? at_most : std::clamp<int64_t>(linger_ns, 1000, at_most), !wakeup_->callers_wait()};
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
