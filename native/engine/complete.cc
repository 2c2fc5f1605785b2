// SPDX-License-Identifier: Apache-2.0
// How calls end (step 8): with a result, with an error of their own, or because the generation has ended. Under the
// driver's token.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "negotiation/names.h"

namespace hvd {

void Engine::fail_all(const Status& cause) {
  std::vector<SubmissionPtr> failed;
  {
    const std::lock_guard lock(mutex_);
    for (const ContributionPtr& call : member_->give_up_all()) failed.push_back(submission_of(call));
  }
  for (const SubmissionPtr& submission : open_.take()) {
    if (submission->entry == EntryRef{}) failed.push_back(submission);  // zeros of a rank that has joined
  }
  if (service_ != nullptr) service_->leader().pending().take();
  for (const SubmissionPtr& submission : failed) {
    complete(submission, Status(cause).while_doing(quote_name(*submission->name) + " failed"));
  }
}

void Engine::complete(const SubmissionPtr& submission, Status status) {
  Member::Finished finished;
  {
    const std::lock_guard lock(mutex_);
    ending_->remember(status);
    finished = member_->finish(submission);
    if (finished.next != nullptr) trace_.enter(submission_of(finished.next).get(), Submission::Stage::kNegotiating);
  }
  in_flight_.fetch_sub(1);
  if (submission->urgent) board_->end_waiting();
  trace_.enter(submission.get(), Submission::Stage::kDone);
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
  wakeup_->completed();
  announce(finished.of_next);
  if (!finished.joins) return;
  if (later_.calls.empty()) {
    say_join();
  } else {
    later_.join = true;
  }
}

}  // namespace hvd
