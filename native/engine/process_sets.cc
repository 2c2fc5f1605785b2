// SPDX-License-Identifier: Apache-2.0
// Process sets come and go (steps 4 and 7): as operations of set 0, so that all ranks agree on them in the log, and
// make the change between the same two batches.
//
// Adding. The number is that of an earlier set of the same ranks, or a new one, the same on all ranks: a number that a
// compiled function holds never means other ranks. If the communicator needs shared memory, the host's
// leader allocates it and tells the members where; they map it and report success. Only if all could map it, the
// communicator is made, which nothing but a death can prevent. An earlier failure is raised on all ranks, and the job
// goes on.
//
// Removing. Each rank closes the set, so that nothing new comes in, and reports if anything of it is in flight. If so
// on any rank, all reopen the set, and the removal fails. Otherwise all its operations have been decided, run and
// completed, so that no tally, coordinator's entry, ring or link holds anything of the set.
#include "engine/runner.h"
#include "negotiation/names.h"
#include "platform/kept_memory.h"

namespace hvd {

namespace {

// The message of each rank to the others before and after a step; fixed size, since it is exchanged.
struct Fact {
  int32_t code = HVD_OK;
  uint64_t offset = 0;
  char text[240] = {};

  void say(hvd_code why, const std::string& words) {
    code = why;
    words.copy(text, sizeof text - 1);
  }
};

// The first rank's failure; the same on all ranks.
Status first_failure(const Exchanged<Fact>& facts) {
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (facts[rank].code == HVD_OK) continue;
    return {static_cast<hvd_code>(facts[rank].code), facts[rank].text, static_cast<int>(rank)};
  }
  return {};
}

}  // namespace

Status Runner::run_add_process_set(Submission* submission) {
  auto set = std::make_shared<ProcessSet>();
  set->ranks = submission->prepared->descriptor.ranks;
  set->member = set->member_of(map_.rank);
  set->number = set_numbers_.try_emplace(set->ranks, static_cast<int32_t>(set_numbers_.size()) + 1).first->second;

  set->topology = map_.topology.among(set->ranks);
  HVD_RETURN_IF_ERROR(choose_communicator(settings_.communicator, set->topology, false, &set->row));
  set->area_bytes = shared_bytes_here(*set);
  const bool shares_memory = set->area_bytes > 0;
  Fact mine;
  Exchanged<Fact> facts(static_cast<size_t>(map_.world_size()));
  if (shares_memory && map_.is_leader()) {
    if (const Status taken = segment_.take_area(set->area_bytes, &mine.offset); !taken.ok())
      mine.say(taken.code(), taken.text());
  }
  HVD_RETURN_IF_ERROR(world_->communicator->exchange(&mine, sizeof mine, facts.data()));
  const uint64_t offset = facts[static_cast<size_t>(map_.ranks_here.front())].offset;
  submission->outcome = first_failure(facts);
  if (!submission->outcome.ok()) return {};

  if (shares_memory && set->member >= 0) {
    set->area_offset = offset;
    if (const Status mapped = segment_.map_area(offset, set->area_bytes, &set->area); !mapped.ok()) {
      mine.say(mapped.code(), mapped.text());
    }
  }
  HVD_RETURN_IF_ERROR(world_->communicator->exchange(&mine, sizeof mine, facts.data()));
  submission->outcome = first_failure(facts);
  if (!submission->outcome.ok()) {
    set->area.reset();
    HVD_RETURN_IF_ERROR(world_->communicator->barrier());
    if (shares_memory && map_.is_leader()) segment_.release_area(offset);
    return {};
  }
  if (set->member >= 0) {
    HVD_RETURN_IF_ERROR(
        set->row->make({set->ranks, set->member, set->topology}, parts_in(set->area.get()), &set->communicator));
  }
  if (shares_memory) set->area_offset = offset;  // the leader gives it back, member or not
  if (service_ != nullptr) service_->leader().add_set(set->number, set->ranks);
  Gathered result;
  result.rows.push_back(set->number);
  submission->results.push_back(std::move(result));
  calls_.add_set(std::move(set));
  return {};
}

// The shared memory that the set's members on this host need, whether or not this rank is one of them.
size_t Runner::shared_bytes_here(const ProcessSet& set) const {
  for (const int rank : map_.ranks_here) {
    if (const int member = set.member_of(rank); member >= 0) return set.row->shared_bytes(set.topology, member);
  }
  return 0;
}

Status Runner::run_remove_process_set(Submission* submission) {
  const int32_t number = submission->prepared->descriptor.root_rank;
  ProcessSet* const set = calls_.set(number);
  if (set == nullptr) {  // removed by another thread's call, in this batch
    submission->outcome = {HVD_MISMATCH, "process set " + std::to_string(number) + " has been removed already"};
    return {};
  }
  Fact mine;
  Exchanged<Fact> facts(static_cast<size_t>(map_.world_size()));
  if (const std::string busy = calls_.close_set(set); !busy.empty()) {
    mine.say(HVD_MISMATCH, "process set " + std::to_string(number) + " cannot be removed while " + busy +
                               " is in flight in it on rank " + std::to_string(map_.rank) +
                               "\nhint: wait for it first");
  }
  HVD_RETURN_IF_ERROR(world_->communicator->exchange(&mine, sizeof mine, facts.data()));
  submission->outcome = first_failure(facts);
  if (!submission->outcome.ok()) {
    calls_.reopen_set(set);
    return {};
  }
  const bool shares_memory = set->area_bytes > 0;
  const uint64_t offset = set->area_offset;
  if (service_ != nullptr) service_->leader().remove_set(number);
  const std::shared_ptr<ProcessSet> removed = calls_.remove_set(number);
  removed->communicator.reset();  // prepared requests may keep the rest
  device_runner_.forget(number);
  removed->area.reset();
  // After this barrier, no rank has the area mapped any more.
  HVD_RETURN_IF_ERROR(world_->communicator->barrier());
  if (shares_memory && map_.is_leader()) segment_.release_area(offset);
  return {};
}

}  // namespace hvd
