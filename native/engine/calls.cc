// SPDX-License-Identifier: Apache-2.0
#include "engine/calls.h"

#include <algorithm>
#include <utility>

#include "negotiation/names.h"
#include "negotiation/point_to_point.h"
#include "platform/clock.h"
#include "platform/fault_point.h"

namespace hvd {

Calls::Calls(const EngineParts& parts)
    : map_(parts.map),
      segment_(parts.segment),
      board_(parts.board),
      bells_(parts.bells),
      ending_(parts.ending),
      wakeup_(parts.wakeup),
      publisher_(parts.publisher),
      trace_(parts.trace),
      member_(parts.map, parts.board, parts.clock, parts.publisher) {
  sets_.emplace(0, parts.world);
}

Status Calls::refuse_if_over() {
  HVD_RETURN_IF_ERROR(ending_.why_over());
  if (member_.has_joined()) return invalid("this rank has joined: it can call nothing before all ranks have joined");
  return {};
}

Status Calls::enter(const SubmissionPtr& submission, Member::Announcement* announcement) {
  const std::lock_guard lock(mutex_);
  const Prepared& prepared = *submission->prepared;
  // Under the lock: after that, give_up_all() finds the submission.
  if (Status over = refuse_if_over(); !over.ok()) {
    over = std::move(over).while_doing(describe(map_.rank, prepared.name, prepared.descriptor.kind));
    ending_.remember(over);
    return over;
  }
  // Urgent: a compiled function's, which has its operations in one order, whatever thread runs it.
  if (submission->sync && !submission->urgent && !calling_back_.is_here()) {
    const std::thread::id before = std::exchange(waiter_, std::this_thread::get_id());
    if (before != waiter_ && before != std::thread::id()) has_several_waiters_ = true;
  }
  submission->is_only = submission->sync && !has_several_waiters_;
  has_callbacks_ |= prepared.done != nullptr;
  const ProcessSet& set = *prepared.set;
  if (set.closing) return invalid("process set " + std::to_string(set.number) + " has been removed");
  if (prepared.name.empty()) {
    *announcement = give_to_member(member_.next_unnamed(set.number), submission);
    return {};
  }
  if (!member_.knows(prepared.entry)) prepared.entry = member_.find_or_add(set.number, prepared.name);
  if (member_.is_duplicate(prepared.entry) && !is_point_to_point(prepared.descriptor.kind)) {
    return {HVD_DUPLICATE_NAME, "rank " + std::to_string(map_.rank) + " called " + quote_name(prepared.name) +
                                    " again before the first call of that name had ended\nhint: wait for the first, "
                                    "or give the second another name"};
  }
  *announcement = give_to_member(prepared.entry, submission);
  return {};
}

Status Calls::enter_refusal(const SubmissionPtr& refusal, const ProcessSet& set, const std::string& name,
                            Member::Announcement* announcement) {
  const std::lock_guard lock(mutex_);
  HVD_RETURN_IF_ERROR(refuse_if_over());
  if (set.closing) return invalid("the process set has been removed");
  const EntryRef entry = name.empty() ? member_.next_unnamed(set.number) : member_.find_or_add(set.number, name);
  *announcement = give_to_member(entry, refusal);
  return {};
}

Member::Announcement Calls::give_to_member(EntryRef entry, const SubmissionPtr& submission) {
  if (submission->urgent) board_.begin_waiting();  // until it is complete
  in_flight_.fetch_add(1);
  if (!submission->sync) asynchronous_.fetch_add(1, std::memory_order_relaxed);
  set_blocked(false);
  bool begun = false;
  const Member::Announcement announcement = member_.submit(entry, submission, &begun);
  if (begun) trace_.enter(submission.get(), Submission::Stage::kNegotiating);
  return announcement;
}

void Calls::announce(const Member::Announcement& announcement, bool driving) {
  if (following_.is_here()) {
    if (announcement.completed.has_value()) later_.calls.push_back(announcement);
    if (announcement.asked_leader && !map_.is_leader()) bells_.ring(0);
    return;
  }
  if (announcement.asked_leader) {
    if (map_.is_leader() && announcement.sync) return;  // the caller is about to drive, and serves its own ring
    bells_.ring(0);
    return;
  }
  if (!announcement.completed.has_value()) return;
  fault_point("count");  // all have arrived, and no rank has been told
  publisher_.announce(*announcement.completed, driving);
}

bool Calls::say_the_rest() {
  if (later_.calls.empty()) return false;
  const Later later = std::exchange(later_, {});
  for (const Member::Announcement& announcement : later.calls) announce(announcement, true);
  if (later.join) say_join();
  return true;
}

// All of it under the lock: what the log says of an operation meanwhile comes before or after.
void Calls::declare_blocked(const HandleTable& handles, std::span<const hvd_handle> waited_for) {
  const std::lock_guard lock(mutex_);
  const bool waits_for_others = std::ranges::all_of(waited_for, [&](hvd_handle handle) {
    const SubmissionPtr submission = handles.find(handle);
    return submission != nullptr && !submission->decided && !submission->done.load();
  });
  set_blocked(!waited_for.empty() && waits_for_others && !has_callbacks_);
}

std::vector<int> Calls::missing(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  if (submission == nullptr || submission->prepared == nullptr || submission->decided || submission->done.load())
    return ranks;
  const std::optional<uint32_t> id = member_.id_of(submission->entry);
  if (!id.has_value()) return ranks;
  for (uint32_t local = 0; local < map_.ranks_here.size(); ++local) {
    const int rank = map_.ranks_here[local];
    if (submission->prepared->set->member_of(rank) >= 0 && board_.in_flight_since_ms(local, *id) == 0)
      ranks.push_back(rank);
  }
  return ranks;
}

// Every submission comes here: the segment's line, which other ranks read, is left alone if it can be.
void Calls::set_blocked(bool blocked) {
  if (std::exchange(is_blocked_, blocked) == blocked) return;
  segment_.rank(map_.local_rank).blocked_since_ms.store(blocked ? now_ns() / 1000000 + 1 : 0);
}

uint64_t Calls::slow_requests() {
  const std::lock_guard lock(mutex_);
  return member_.slow_requests();
}

Status Calls::apply(Record record, Member::Applied* out) {
  const std::lock_guard lock(mutex_);
  Status outcome = member_.apply(record, out);
  if (out->call != nullptr) {
    submission_of(out->call)->decided = true;
    set_blocked(false);
  }
  return outcome;
}

void Calls::complete(const SubmissionPtr& submission, Status status) {
  const Member::Finished finished = leave(submission);
  end(submission, std::move(status));
  say(finished);
}

Member::Finished Calls::leave(const SubmissionPtr& submission) {
  const std::lock_guard lock(mutex_);
  Member::Finished finished = member_.finish(submission);
  if (finished.next != nullptr) trace_.enter(submission_of(finished.next).get(), Submission::Stage::kNegotiating);
  return finished;
}

void Calls::end(const SubmissionPtr& submission, Status status) {
  ending_.remember(status);
  in_flight_.fetch_sub(1);
  if (submission->urgent) board_.end_waiting();
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
  wakeup_.completed();
}

void Calls::say(const Member::Finished& finished) {
  announce(finished.of_next);
  if (!finished.joins) return;
  if (later_.calls.empty()) {
    say_join();
  } else {
    later_.join = true;
  }
}

std::vector<SubmissionPtr> Calls::give_up_all() {
  const std::lock_guard lock(mutex_);
  std::vector<SubmissionPtr> all;
  for (const ContributionPtr& call : member_.give_up_all()) all.push_back(submission_of(call));
  return all;
}

Status Calls::find_set(int32_t number, std::shared_ptr<ProcessSet>* out) {
  const std::lock_guard lock(mutex_);
  const auto is_meant = [number](const auto& item) { return item.second->lasting == number; };
  const auto found = number < kFirstLasting ? sets_.find(number) : std::ranges::find_if(sets_, is_meant);
  if (found == sets_.end() || found->second->closing) {
    return invalid(number < kFirstLasting ? "unknown process set " + std::to_string(number) +
                                                "\nhint: add it first; it may have been removed"
                                          : "the process set of this compiled function is not registered\n"
                                            "hint: add a set of the same ranks; it was removed, or init came since");
  }
  if (number >= kFirstLasting && std::any_of(std::next(found), sets_.end(), is_meant)) {  // one in a thousand million
    return invalid("two process sets have the same lasting number\nhint: remove one of them, and add it later");
  }
  *out = found->second;
  return {};
}

std::shared_ptr<ProcessSet> Calls::pair_with(int rank) {
  const std::lock_guard lock(mutex_);
  return find_or_add_pair(rank);
}

std::shared_ptr<ProcessSet> Calls::find_or_add_pair(int rank) {
  std::shared_ptr<ProcessSet>& pair = pairs_[pair_of(rank, map_.rank)];
  if (pair == nullptr) {
    pair = std::make_shared<ProcessSet>();
    pair->number = pair_of(rank, map_.rank);
    pair->ranks = ranks_of_pair(pair->number);
    pair->member = pair->member_of(map_.rank);
    pair->topology = map_.topology.among(pair->ranks);
    member_.add_set(pair->number);
  }
  return pair;
}

void Calls::open_pairs(const ProcessSet& set) {
  const std::lock_guard lock(mutex_);
  for (const int rank : set.ranks) {
    if (rank != map_.rank) find_or_add_pair(rank);
  }
}

std::vector<std::shared_ptr<ProcessSet>> Calls::pairs() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<ProcessSet>> all;
  for (const auto& [number, pair] : pairs_) all.push_back(pair);
  return all;
}

// It had a name of its own, and now is the other end of its sender's call.
SubmissionPtr Calls::with_sender(const Member::Applied& ready) {
  SubmissionPtr submission = submission_of(ready.call);
  auto prepared = std::make_shared<Prepared>(*submission->prepared);
  Descriptor::decode(ready.descriptor, &prepared->descriptor);
  prepared->descriptor.kind = HVD_SEND;
  prepared->set = pair_with(prepared->descriptor.root_rank);
  submission->prepared = std::move(prepared);
  return submission;
}

bool Calls::has_set(int32_t number) {
  const std::lock_guard lock(mutex_);
  return sets_.contains(number);
}

std::optional<int32_t> Calls::number_of(const std::vector<int32_t>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const auto& [number, set] : sets_) {
    if (std::ranges::equal(set->ranks, ranks)) return number;
  }
  return std::nullopt;
}

void Calls::add_set(std::shared_ptr<ProcessSet> set) {
  const std::lock_guard lock(mutex_);
  if (set->member >= 0) member_.add_set(set->number);
  sets_.emplace(set->number, std::move(set));
}

std::string Calls::close_set(ProcessSet* set) {
  const std::lock_guard lock(mutex_);
  set->closing = true;
  const std::string name = set->member < 0 ? "" : member_.name_in_flight(set->number);
  return name.empty() ? "" : quote_name(name);
}

void Calls::reopen_set(ProcessSet* set) {
  const std::lock_guard lock(mutex_);
  set->closing = false;
}

std::shared_ptr<ProcessSet> Calls::remove_set(int32_t number) {
  const std::lock_guard lock(mutex_);
  member_.remove_set(number);
  std::shared_ptr<ProcessSet> removed = std::move(sets_.at(number));
  sets_.erase(number);
  return removed;
}

}  // namespace hvd
