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

// True while a completion callback runs on this thread: it may submit but must not wait.
thread_local bool in_completion_callback = false;
// The engine whose log this thread is just following, batches and callbacks included: it cannot read on in the middle.
thread_local const Engine* following = nullptr;

namespace {

std::string failure_of(const SubmissionPtr& submission) { return quote_name(submission->entry->name) + " failed"; }

}  // namespace

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
      for (const Announcement& announcement : std::exchange(later_, {})) announce(announcement, true);
      continue;
    }
    if (left_rank_.load() >= 0) {
      // The log is drained: what is not ready by now needs the rank that left, and never will be.
      fail_all(end_of_job());
      return true;
    }
    flush_ready(somebody_waits);
    if (may_close(somebody_waits)) {
      if (segment_->try_append_at(cursor_.load(), {RecordKind::kClose, 0})) {
        segment_->header().ready_bytes.store(0);
        bells_->ring_others();
      }
      continue;
    }
    for (const SocketLink& link : control_) bells_->watch_for_room(link.fd(), link.wants_to_write());
    return progressed;
  }
}

bool Engine::follow_log() {
  const uint64_t position = cursor_.load(std::memory_order_relaxed);
  Record record;
  if (!segment_->peek(position, &record)) return false;
  cursor_.store(position + 1);
  struct Following {
    explicit Following(const Engine* engine) { following = engine; }
    ~Following() { following = nullptr; }
  } const now(this);
  apply(record);
  // After that: who sees this cursor beyond a record knows that this rank has no use for its text, and beyond a RETIRE
  // for the number, any more.
  segment_->rank(local_rank_).cursor.store(position + 1);
  return true;
}

bool Engine::may_close(bool somebody_waits) const {
  // Where the set spans hosts, rank 0 decides where a batch ends.
  if (spans_hosts() || open_.empty()) return false;
  return somebody_waits || open_bytes_ >= options_.settings.close_bytes || segment_->header().waiting.load() > 0 ||
         linger_is_over();
}

int64_t Engine::linger_left_ns() const {
  uint64_t since = 0;
  for (const auto* start : {&open_since_ns_, &ready_here_since_ns_}) {
    const uint64_t value = start->load();
    if (value != 0 && (since == 0 || value < since)) since = value;
  }
  if (since == 0) return -1;
  const auto linger_ns = static_cast<uint64_t>(options_.settings.cycle_time_ms * 1e6);
  const uint64_t now = now_ns();
  return now >= since + linger_ns ? 0 : static_cast<int64_t>(since + linger_ns - now);
}

bool Engine::linger_is_over() const { return linger_left_ns() == 0; }

void Engine::apply(Record record) {
  if (record.kind == RecordKind::kReady && coordinates()) coordinator_->touch(record.id);
  if (is_about_entry(record.kind) && !takes_part_in(record.id)) return;
  switch (record.kind) {
    case RecordKind::kDefine:
      apply_definition(record.id);
      return;
    case RecordKind::kError:
      apply_error(record.id);
      return;
    case RecordKind::kRetire:
      apply_retirement(record.id);
      return;
    case RecordKind::kReady: {
      SubmissionPtr submission = ready_submission(record.id);
      if (submission == nullptr || submission->is_refusal) {
        poison(HVD_INTERNAL, -1, "rank " + std::to_string(rank_) + " was told to run an operation it never submitted");
        return;
      }
      if (left_rank_.load() >= 0) {  // the rank that left may have submitted it, but will not take part
        complete(submission, end_of_job().while_doing(failure_of(submission)));
        return;
      }
      if (timeline_.is_on()) trace(submission.get(), Submission::Stage::kQueued);
      if (open_.empty()) open_since_ns_.store(now_ns());
      open_bytes_ += submission->prepared->total_bytes;
      open_.push_back(std::move(submission));
      return;
    }
    case RecordKind::kClose:
      hand_out_decisions();
      close_batch();
      return;
    case RecordKind::kLeave: {
      close_batch();
      if (record.id >= has_left_.size()) return;
      has_left_[record.id] = true;
      if (static_cast<int>(record.id) == rank_) {
        segment_->rank(local_rank_).left.store(1);
      }
      int nobody = -1;
      left_rank_.compare_exchange_strong(nobody, static_cast<int>(record.id));
      return;
    }
    case RecordKind::kJoin:
      apply_join(record.id);
      return;
    case RecordKind::kNone:
      break;
  }
  poison(HVD_INTERNAL, -1, "a record in shared memory cannot be read");
}

void Engine::apply_definition(uint32_t id) {
  Definition definition;
  if (id >= kMaxEntries || !parse_definition(segment_->definition(id), &definition)) {
    poison(HVD_INTERNAL, -1, "a definition in shared memory cannot be read");
    return;
  }
  const std::lock_guard lock(mutex_);
  ProcessSet* const set = find_set(definition.set);
  if (set == nullptr) return;
  const std::shared_ptr<Entry> entry = intern(set, definition.name);
  if (entry_of_id_.size() <= id) entry_of_id_.resize(id + 1, nullptr);
  entry_of_id_[id] = entry;
  entry->id = id;
  entry->definition = std::move(definition.descriptor);
}

// Whatever is in flight under the name is ready and runs, or came too late to be counted and took the slow way.
void Engine::apply_retirement(uint32_t id) {
  const std::lock_guard lock(mutex_);
  if (id >= entry_of_id_.size() || entry_of_id_[id] == nullptr) return;
  const std::shared_ptr<Entry> entry = std::exchange(entry_of_id_[id], nullptr);
  segment_->in_flight(local_rank_, id).store(0);
  entry->id = -1;
  entry->definition.clear();
  entry->counted_in.reset();
  forget_if_idle(entry);
}

void Engine::apply_error(uint32_t id) {
  Failure failure;
  if (id >= kMaxEntries || !parse_failure(segment_->error(id), world_size_, &failure)) {
    poison(HVD_INTERNAL, -1, "an error in shared memory cannot be read");
    return;
  }
  if (!failure.ranks.empty() && std::find(failure.ranks.begin(), failure.ranks.end(), rank_) == failure.ranks.end()) {
    return;
  }
  SubmissionPtr failed;
  {
    const std::lock_guard lock(mutex_);
    const ProcessSet* set = find_set(failure.set);
    if (set == nullptr) return;
    const auto found = set->entries.find(failure.name);
    if (found != set->entries.end()) failed = found->second->in_flight;
  }
  if (failed != nullptr) complete(failed, {HVD_MISMATCH, failure.text, failure.culprit});
}

// Of one submission by one thread at a time, in order: the submitter's, then the driver's.
void Engine::trace(Submission* submission, Submission::Stage next) {
  using Stage = Submission::Stage;
  static constexpr const char* kOperations[] = {"ALLREDUCE", "ALLGATHER",     "BROADCAST",       "BARRIER",
                                                "ALLTOALL",  "REDUCESCATTER", "ADD_PROCESS_SET", "REMOVE_PROCESS_SET"};
  if (submission->prepared == nullptr) return;
  const Stage before = submission->traced;
  if (next != Stage::kNegotiating && before == Stage::kNone) return;  // submitted before the timeline was on
  const Descriptor& descriptor = submission->prepared->descriptor;
  const char* operation = kOperations[descriptor.kind];
  const std::string& tensor = submission->entry->name;
  const auto record = [&](Timeline::Phase phase, const char* label, const char* what, std::string_view detail = {}) {
    timeline_.record(phase, label, what, tensor, detail);
  };
  if (before == Stage::kNegotiating) record(Timeline::Phase::kEnd, "NEGOTIATE_", operation);
  if (before == Stage::kQueued) record(Timeline::Phase::kEnd, "QUEUE", "");
  if (before == Stage::kRunning) record(Timeline::Phase::kEnd, world_row_->label, operation);
  if (next == Stage::kNegotiating) record(Timeline::Phase::kBegin, "NEGOTIATE_", operation);
  if (next == Stage::kQueued) {
    record(Timeline::Phase::kBegin, "", operation);
    record(Timeline::Phase::kBegin, "QUEUE", "");
  }
  if (next == Stage::kRunning) record(Timeline::Phase::kBegin, world_row_->label, operation);
  if (next == Stage::kDone && before >= Stage::kQueued) {
    std::string detail;
    if (!descriptor.tensors.empty()) {
      const TensorSpec& first = submission->prepared->tensors.front();
      detail = std::string(name_of(first.dtype)) + " " + describe_shape(first.shape);
      if (descriptor.tensors.size() > 1) detail += " and " + std::to_string(descriptor.tensors.size() - 1) + " more";
    }
    record(Timeline::Phase::kEnd, "", operation, detail);
  }
  submission->traced = next;
}

void Engine::close_batch() {
  if (open_.empty()) return;
  if (timeline_.marks_cycles()) timeline_.record(Timeline::Phase::kMark, "CYCLE_START", "", "");
  std::vector<SubmissionPtr> closed;
  closed.swap(open_);
  open_bytes_ = 0;
  open_since_ns_.store(0);
  execute(std::move(closed));
}

Status Engine::end_of_job() const {
  const int left = left_rank_.load();
  if (stopping_.load() || left < 0) return {HVD_NOT_RUNNING, "this rank has shut down"};
  return {HVD_RANK_LEFT,
          "rank " + std::to_string(left) + " has left the job (it shut down or exited) while others wait for it", left};
}

void Engine::remember_end(const Status& status) {
  const int code = status.code();
  if (end_seen_.ok() && (code == HVD_RANK_LOST || code == HVD_RANK_LEFT || code == HVD_ABORTED)) end_seen_ = status;
}

Status Engine::end_seen() {
  const std::lock_guard lock(mutex_);
  return end_seen_;
}

void Engine::fail_all(const Status& cause) {
  std::vector<SubmissionPtr> failed;
  {
    const std::lock_guard lock(mutex_);
    for (const SubmissionPtr& submission : open_) {
      if (submission->entry->in_flight != submission) failed.push_back(submission);  // zeros of a rank that has joined
    }
    if (join_->in_flight != nullptr) failed.push_back(join_->in_flight);
    deferred_ = 0;
    for (auto& [number, set] : sets_) {
      for (auto& [name, entry] : set->entries) {
        if (entry->in_flight == nullptr) continue;
        failed.push_back(entry->in_flight);
        failed.insert(failed.end(), entry->deferred.begin(), entry->deferred.end());
        entry->deferred.clear();
      }
    }
    ready_here_.clear();
    ready_here_bytes_.store(0);
    ready_here_since_ns_.store(0);
  }
  open_.clear();
  open_bytes_ = 0;
  open_since_ns_.store(0);
  for (const SubmissionPtr& submission : failed) {
    complete(submission, Status(cause).while_doing(failure_of(submission)));
  }
}

void Engine::complete(const SubmissionPtr& submission, Status status) {
  Announcement next, join;
  const std::shared_ptr<Entry>& entry = submission->entry;
  {
    const std::lock_guard lock(mutex_);
    remember_end(status);
    if (entry->in_flight == submission) {
      entry->in_flight = nullptr;
      entry->counted_in.reset();
      if (entry->id >= 0) segment_->in_flight(local_rank_, static_cast<uint32_t>(entry->id)).store(0);
      if (!entry->deferred.empty()) {
        const SubmissionPtr following = entry->deferred.front();
        entry->deferred.pop_front();
        next = begin(following);
        if (--deferred_ == 0 && join_->in_flight != nullptr) join = send_join();
      }
      forget_if_idle(entry);
    }
  }
  in_flight_.fetch_sub(1);
  if (submission->urgent) segment_->header().waiting.fetch_sub(1);
  if (timeline_.is_on()) trace(submission.get(), Submission::Stage::kDone);
  const std::shared_ptr<const Prepared> prepared = submission->prepared;
  submission->status = status;
  submission->done.store(true);
  if (prepared != nullptr && prepared->done != nullptr) {
    hvd_status outcome{};
    outcome.size = sizeof outcome;
    outcome.code = status.code();
    outcome.failed_rank = status.failed_rank();
    outcome.member = -1;
    status.text().copy(outcome.text, sizeof outcome.text - 1);
    in_completion_callback = true;
    prepared->done(submission->user, &outcome);
    in_completion_callback = false;
  }
  completions_.fetch_add(1);
  if (completion_waiters_.load() > 0) futex_wake(completions_);
  announce(next);
  announce(join);
}

// What drive() would move. What is ready on this host lingers in it where nobody waits.
bool Engine::has_work(bool somebody_waits) {
  Record record;
  if (poisoned() || stopping_.load() || segment_->peek(cursor_.load(), &record)) return true;
  if (is_leader()) {
    for (const RingReceiver& ring : from_followers_) {
      if (ring.has_data()) return true;
    }
  }
  return to_leader_.can_pump() || stall_check_due_.load() || (somebody_waits && ready_here_since_ns_.load() != 0);
}

void Engine::hand_over() {
  bells_->hand_over([this] { return has_work(true) || (spans_hosts() && in_flight_.load() > 0); });
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
    const bool due = open_since_ns_.load() != 0 && segment_->header().waiting.load() > 0;
    if (mine && (has_work(false) || due)) return stay_awake;
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
