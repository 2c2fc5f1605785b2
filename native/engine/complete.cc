// SPDX-License-Identifier: Apache-2.0
// How calls end (step 8): with a result, with an error of their own, or because the generation has ended; and what the
// timeline shows of them. Under the driver's token.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "negotiation/names.h"
#include "platform/futex.h"

namespace hvd {

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
    for (const ContributionPtr& call : member_->give_up_all()) failed.push_back(submission_of(call));
  }
  for (const SubmissionPtr& submission : open_.calls) {
    if (submission->entry == EntryRef{}) failed.push_back(submission);  // zeros of a rank that has joined
  }
  if (leader_ != nullptr) leader_->pending().take();
  open_.calls.clear();
  open_.bytes = 0;
  open_.since_ns.store(0);
  for (const SubmissionPtr& submission : failed) {
    complete(submission, Status(cause).while_doing(quote_name(*submission->name) + " failed"));
  }
}

void Engine::complete(const SubmissionPtr& submission, Status status) {
  Member::Finished finished;
  {
    const std::lock_guard lock(mutex_);
    remember_end(status);
    finished = member_->finish(submission);
    if (finished.next != nullptr && timeline_.is_on()) {
      trace(submission_of(finished.next).get(), Submission::Stage::kNegotiating);
    }
  }
  in_flight_.fetch_sub(1);
  if (submission->urgent) board_->end_waiting();
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
    const OnThread::Scope calling_back(calling_back_);
    prepared->done(submission->user, &outcome);
  }
  completions_.fetch_add(1);
  if (completion_waiters_.load() > 0) futex_wake(completions_);
  announce(finished.of_next);
  if (!finished.joins) return;
  if (later_.empty()) {
    say_join();
  } else {
    join_later_ = true;
  }
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
  const std::string& tensor = *submission->name;
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

}  // namespace hvd
