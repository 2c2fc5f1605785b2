// SPDX-License-Identifier: Apache-2.0
// Calls: the calls of this rank that are in flight, from their entry to their end, and the process sets that they are
// made in (steps 4, 5 and 8). Submitter enters calls, on users' threads; the token's holder ends them.
//
// Owns the member. The mutex guards it, the sets and what users' threads have said; all that it guards is here. It is
// never held across a wait, a collective or a callback. Any thread, except what says otherwise. Only announce() blocks,
// for room in the log.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/parts.h"
#include "execution/process_set.h"
#include "execution/submission.h"
#include "negotiation/member.h"

namespace hvd {

class Calls {
 public:
  explicit Calls(const EngineParts& parts);

  // A call begins, or waits for its turn under its name. Then announce() is due, once the caller is ready for its end.
  Status enter(const SubmissionPtr& submission, Member::Announcement* announcement);
  Status enter_refusal(const SubmissionPtr& refusal, const ProcessSet& set, const std::string& name,
                       Member::Announcement* announcement);
  Status enter_join(const SubmissionPtr& join, Member::Announcement* announcement);
  // Tells the others what the member wants them to know. May wait for room in the log.
  void announce(const Member::Announcement& announcement, bool driving = false);
  // The process waits for these calls and does nothing else meanwhile (hvd_declare_blocked).
  void declare_blocked(const HandleTable& handles, std::span<const hvd_handle> waited_for);
  // The ranks of this host that have not called it (hvd_missing). Null: none.
  std::vector<int> missing(const SubmissionPtr& submission);

  int in_flight() const { return in_flight_.load(); }
  // How many calls have begun whose callers do not wait at once.
  uint32_t asynchronous() const { return asynchronous_.load(std::memory_order_relaxed); }
  // In a completion callback: it may submit but must not wait.
  bool is_calling_back() const { return calling_back_.is_here(); }
  uint64_t slow_requests();

  // The set that takes calls under this number.
  Status find_set(int32_t number, std::shared_ptr<ProcessSet>* out);
  // The set of this rank and another one, for messages between them.
  std::shared_ptr<ProcessSet> pair_with(int rank);
  // Before a receive from any rank of the set.
  void open_pairs(const ProcessSet& set);
  std::vector<std::shared_ptr<ProcessSet>> pairs();
  bool has_set(int32_t number);
  std::optional<int32_t> number_of(const std::vector<int32_t>& ranks);

  // The rest under the token.
  Status apply(Record record, Member::Applied* out);
  // The contribution of this rank, which has joined, to an entry that is ready. Null if zeros will not do.
  SubmissionPtr zeros_for(const Member::Applied& ready);
  // A receive from any rank, once a message has been given to it.
  SubmissionPtr with_sender(const Member::Applied& ready);
  void all_have_joined(const SubmissionPtr& join, uint32_t last_rank);
  // The end of a call, in three steps. leave(): its name is free for the next call. end(): its caller is told. say():
  // the others are told of the call that has begun in its place.
  void complete(const SubmissionPtr& submission, Status status);
  Member::Finished leave(const SubmissionPtr& submission);
  void end(const SubmissionPtr& submission, Status status);
  void say(const Member::Finished& finished);
  // Tells what could not be told from inside of the log (`following`). False: there was nothing.
  bool say_the_rest();
  // All calls in flight; they are to be completed.
  std::vector<SubmissionPtr> give_up_all();
  // The thread that reads the log, batches and callbacks included: it cannot read on in the middle.
  OnThread& following() { return following_; }

  const std::map<int32_t, std::shared_ptr<ProcessSet>>& sets() const { return sets_; }
  // Null: there is none.
  ProcessSet* set(int32_t number) const {
    const auto found = sets_.find(number);
    return found == sets_.end() ? nullptr : found->second.get();
  }
  void add_set(std::shared_ptr<ProcessSet> set);
  // The operation that is in flight in the set on this rank, in words; empty if nothing is. Takes nothing new from here
  // on.
  std::string close_set(ProcessSet* set);
  void reopen_set(ProcessSet* set);
  std::shared_ptr<ProcessSet> remove_set(int32_t number);

 private:
  void say_join();
  // These with the mutex.
  std::shared_ptr<ProcessSet> find_or_add_pair(int rank);
  Status refuse_if_over();
  Member::Announcement give_to_member(EntryRef entry, const SubmissionPtr& submission);
  void set_blocked(bool blocked);

  const HostMap& map_;
  Segment& segment_;
  SegmentBoard& board_;
  Bells& bells_;
  Ending& ending_;
  Wakeup& wakeup_;
  Publisher& publisher_;
  Trace& trace_;

  std::mutex mutex_;
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;  // by number; changed under the token as well
  std::map<int32_t, std::shared_ptr<ProcessSet>> pairs_;
  Member member_;
  std::thread::id waiter_;  // the last thread that has submitted what it waits for
  bool has_several_waiters_ = false;
  bool is_blocked_ = false;     // what this rank's segment says (hvd_declare_blocked)
  bool has_callbacks_ = false;  // what they start, or a framework's threads do, waits for no thread

  std::atomic<int> in_flight_{0};
  std::atomic<uint32_t> asynchronous_{0};
  OnThread following_;
  OnThread calling_back_;
  struct Later {  // of completions and callbacks: made once no batch is being run; token
    std::vector<Member::Announcement> calls;
    bool join = false;  // after them
  } later_;
};

}  // namespace hvd
