// SPDX-License-Identifier: Apache-2.0
// The coordinator: decides what the fast way cannot (step 5). Pure: events in, effects out, no clock, no memory, no
// sockets; rank 0's engine runs the only one of a job, the model checker and the unit tests run others.
//
// A host, here, is what counts as one: where hosts form a tree, a group of hosts, for which its relay speaks.
//
// Fast way, several hosts: a host says host_ready(id); when all have, the entry is READY.
// Slow way: a rank sends its whole request (a new name, another descriptor, or its entry was recalled). The coordinator
// recalls the entry on all hosts; when the slow requests and the arrivals counted before the recall make up all members
// it compares the descriptors (an arrival that was counted stands for the defined one) and answers DEFINE + READY, or
// ERROR to all. One rule for both: uniform and complete means ready.
//
// Join: while a rank has joined, the entries of its sets stay recalled, so that the coordinator decides about each of
// them, and does not wait for that rank. An allreduce gets zeros from it, anything else is an ERROR. Operations that
// the rank had submitted before still count: the join carries the rounds in which it was counted, and the answers to a
// recall carry those of the recalled counts. When all have joined, nothing is open any more, and the fast way is back.
//
// Point-to-point operations always come the slow way; see negotiation/point_to_point.h.
//
// Names come and go; ids.h has the rules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiation/coordinator/ids.h"
#include "negotiation/decision.h"
#include "negotiation/point_to_point.h"
#include "negotiation/tally.h"
#include "negotiation/wire.h"

namespace hvd {

// One entry that some ranks wait for, as a stall report shows it.
struct Undecided {
  uint32_t id = kNoId;     // none: of a name that is new
  std::string name;        // as people read it: quoted, with the set
  std::string plain_name;  // none: join
  std::string descriptor;  // encoded
  double since = 0;
  std::vector<int> arrived;  // known to have submitted it; with one host only those that came the slow way
  std::vector<int> missing;
};

class Coordinator {
 public:
  explicit Coordinator(std::vector<int> host_of_rank, NameLimits limits = {});  // with set 0, all ranks

  // At the moment when all ranks do so, and nothing of the set is under way. A number may come back with other ranks.
  void add_set(int32_t set, std::vector<int> ranks);
  void remove_set(int32_t set);
  bool is_member(int rank, int32_t set) const;

  // Equal requests of one host's ranks. These three return false, and do nothing, for a rank that is not a member of
  // the set, that has joined, or that has asked for the entry already.
  bool request(const std::vector<Requester>& ranks, int32_t set, const std::string& name, const std::string& descriptor,
               double now, Effects* effects);
  // The rank's own call failed before it could be submitted; counts as its arrival.
  bool refuse(int rank, int32_t set, const std::string& name, const std::string& why, double now, Effects* effects);
  // The rank will submit nothing more until all have joined.
  bool join(int rank, CountedIn counted, double now, Effects* effects);
  // These two return false, and do nothing, for an undefined entry or for a count that a host cannot have. `last_rank`:
  // the host's rank that came last.
  bool host_ready(int host, uint32_t id, double now, Effects* effects, int last_rank = -1);
  // A host's answer to a recall: its ranks that had arrived the fast way. `others`: a group's ranks whose host has
  // another number for the round.
  bool recalled(int host, uint32_t id, const Recalled& found, Effects* effects, const RoundOfRank& others = {});
  // A host's answer to the question whether a name may go; a host's message that all its ranks have read a RETIRE.
  // False if it was not asked.
  bool may_retire(int host, uint32_t id, bool idle, Effects* effects);
  bool retired(int host, uint32_t id, Effects* effects);
  // The entry has become READY by the counters alone: it now counts as used last.
  void touch(uint32_t id) { ids_.touch(id); }
  uint64_t evicted() const { return ids_.evicted(); }
  bool waits_for_ids() const { return ids_.have_waiting(); }

  int hosts() const { return hosts_; }
  bool has_joined(int rank) const { return joined_[static_cast<size_t>(rank)]; }
  std::vector<Undecided> undecided() const;
  // True if the host has members of the entry's set: only such a host counts, and is asked.
  bool counts_on(uint32_t id, int host) const;
  // The entry of an id, and its ranks. False for an unknown id.
  bool describe(uint32_t id, Undecided* item, std::vector<int>* ranks) const;
  // For the model checker: coordinators with equal snapshots behave the same.
  std::string snapshot() const;

 private:
  struct Answer {  // a whole request, or a refusal; most ranks say the same
    std::string descriptor;
    std::string refusal;
    bool operator==(const Answer&) const = default;
  };
  struct Slow {  // one rank's part in the slow way
    uint32_t answer = 0;
    bool waits = false;
  };
  struct Receive {  // from any rank of a set
    Requester from;
    int32_t set = 0;
    std::string name;
    std::string descriptor;
    int32_t tag = 0;
    double since = 0;
  };
  struct Set {
    std::vector<int> ranks;  // empty: the set does not exist now
    std::vector<uint32_t> members_of_host;
    int hosts = 0;                                    // with members
    int joined = 0;                                   // members
    std::unordered_map<std::string, size_t> by_name;  // into entries_
    std::unordered_map<std::string, std::vector<size_t>> slow_by_subject;
  };
  struct Entry {
    int32_t set = 0;
    std::string name;
    uint32_t id = kNoId;     // while it is defined
    std::string definition;  // of one that has an id
    double since = 0;
    std::vector<bool> host_ready;
    int hosts_ready = 0;
    // The slow way, on which the ranks come while it is recalled: in this round, or as long as a rank has joined.
    bool recalled = false;
    std::vector<Answer> answers;  // all different
    std::map<int, Slow> slow;     // by rank
    std::vector<bool> host_answered;
    int answers_missing = 0;
    uint32_t counted = 0;
    std::vector<std::optional<uint32_t>> round_of_host;  // with those who were counted in this round
    RoundOfRank round_of_rank;                           // whose host numbers it otherwise than its group
    std::vector<bool> host_ready_to_come;                // complete when it was recalled, as it will say
    std::optional<Receive> receive;                      // the message was given to it

    bool defined() const { return id != kNoId; }
    bool is_open() const { return !slow.empty() || counted > 0 || hosts_ready > 0; }
    bool may_go() const { return (!recalled || is_pair(set)) && !is_open(); }
    const Answer& answer_of(const Slow& of) const { return answers[of.answer]; }
    // As the first rank sees it that asked the slow way and was not refused; otherwise as all know it.
    const std::string& descriptor() const {
      for (const auto& [rank, one] : slow) {
        if (!answer_of(one).descriptor.empty()) return answer_of(one).descriptor;
      }
      return definition;
    }
  };
  size_t find_or_create(int32_t set, const std::string& name);
  // point_to_point.cc
  bool receive_from_any(Receive receive, Effects* effects);
  void match(size_t index, Effects* effects);
  bool add_slow(const std::vector<Requester>& ranks, int32_t set, const std::string& name, Answer answer, double now,
                Effects* effects);
  void recall(Entry* entry, Effects* effects);
  void decide(size_t index, Effects* effects);
  void decide_if_complete(size_t index, Effects* effects);
  void decide_conflict(size_t index, Effects* effects);
  void end_if_all_joined(Effects* effects);
  bool has_arrived(const Entry& entry, int rank) const;
  std::vector<int> absent(const Entry& entry) const;
  Status verdict(const Entry& entry, const std::vector<int>& none_from) const;
  static Status without(const Entry& entry, const std::string& agreed, const std::vector<int>& none_from);
  void fail(size_t index, Status why, std::vector<int> ranks, Effects* effects);
  void conclude(size_t index, std::vector<Decision> decisions, Effects* effects);
  void finish(Entry* entry);
  void forget(size_t index);
  void make_room(uint64_t wanted_bytes, Effects* effects);
  Entry* entry_of(uint32_t id) {
    const size_t index = ids_.entry_of(id);
    return index == Ids::kNoEntry ? nullptr : &entries_[index];
  }
  const Entry* entry_of(uint32_t id) const { return const_cast<Coordinator*>(this)->entry_of(id); }

  static std::string in_words(const Entry& entry, std::string_view descriptor = {});

  std::vector<int> host_of_rank_;
  int hosts_ = 0;
  std::map<int32_t, Set> sets_;
  std::vector<Entry> entries_;  // with gaps, which have no name
  std::vector<size_t> gaps_;
  Ids ids_;
  int answers_missing_ = 0;  // to recalls of all entries

  std::vector<bool> joined_;           // by rank
  std::vector<CountedIn> counted_in_;  // by rank that has joined
  size_t joined_ranks_ = 0;
  int last_joined_ = -1;
  int came_last_ = -1;     // whose arrival is being looked at
  double last_event_ = 0;  // since when those who have joined wait for more

  std::vector<Receive> receives_;  // from any rank, that wait for a message, in order
};

}  // namespace hvd
