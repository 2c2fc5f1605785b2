// SPDX-License-Identifier: Apache-2.0
// A rank's side of negotiation (steps 4 and 5): the names that this rank knows, what it has in flight under them, and
// what each kind of log record does to them.
//
//   begin    a call whose descriptor is the one that all ranks know is counted: one addition on the host's board. Any
//            other call goes to the coordinator as a whole request (the slow way).
//   apply    a record of the host's log: what a number stands for, that an entry is ready or failed, that a number is
//            gone, that all ranks have joined.
//   join     this rank has run out of data. It gives zeros to the others' allreduces until all have joined.
//
// Never blocks. The caller serialises all calls (the mutex of Calls does). A plain value: the model checks copy it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "negotiation/host_map.h"
#include "negotiation/ports.h"
#include "negotiation/publisher.h"
#include "platform/status.h"

namespace hvd {

struct Message;

// Refers to a name; a stale one is noticed.
struct EntryRef {
  uint32_t slot = UINT32_MAX;
  uint32_t serial = 0;
  bool operator==(const EntryRef&) const = default;
};

// A rank's contribution to one round of a name. Owned by its submitter, and by the member while it is in flight. The
// member reads it only.
struct Contribution {
  virtual ~Contribution() = default;

  EntryRef entry;
  std::shared_ptr<const std::string> name;
  std::string_view descriptor;  // encoded; lives as long as the call
  std::string refusal;          // why the call failed, if is_refusal
  uint64_t total_bytes = 0;
  uint64_t begun_ns = 0;    // when this rank came; the member writes it
  bool sync = false;        // the caller waits for it and for nothing else
  bool is_only = false;     // and no other thread of this rank has ever waited so: nothing else is submitted meanwhile
  bool is_refusal = false;  // stands for a call that failed before it could be submitted
};
using ContributionPtr = std::shared_ptr<Contribution>;

// Reading which rank came last costs a cache miss, about 0.1 us: below 1% of any wait that is longer than this.
constexpr uint64_t kShortWaitNs = 20'000;

class Member {
 public:
  Member(const HostMap& map, Board& board, Clock& clock, Publisher& publisher);

  // Process sets that this rank is a member of; 0, all ranks, is there from the start.
  void add_set(int32_t set);
  void remove_set(int32_t set);
  bool takes_part_in(uint32_t id) const;

  // Names. Unnamed calls take turns under few names, so that a program without names soon repeats itself.
  EntryRef find_or_add(int32_t set, const std::string& name);
  EntryRef next_unnamed(int32_t set);
  bool knows(EntryRef entry) const;
  std::optional<uint32_t> id_of(EntryRef entry) const;
  bool is_duplicate(EntryRef entry) const;        // a call, and not a refusal, is in flight under the name
  std::string name_in_flight(int32_t set) const;  // some name in flight in the set; empty: none

  // The caller's tasks once it has unlocked.
  struct Announcement {
    std::optional<Completed> completed;  // give it to the publisher
    bool asked_leader = false;           // a frame went to the leader: ring it
    bool sync = false;                   // ... unless this is the leader's process, and the caller drives anyway
  };
  // Begins the call, or lets it wait for its turn under the name.
  Announcement submit(EntryRef entry, const ContributionPtr& call, bool* begun);
  // The call is over. `next`, if any, is the call that has begun in its place; `joins`: say_join() is due once that has
  // been announced.
  struct Finished {
    ContributionPtr next;
    Announcement of_next;
    bool joins = false;
  };
  Finished finish(const ContributionPtr& call);

  // This rank's submissions have been announced by then: the others must not learn of the join before.
  Announcement join(const ContributionPtr& call);
  Announcement say_join();
  bool has_joined() const { return join_ != nullptr; }

  // The meaning of a record for this rank.
  struct Applied {
    enum class What : uint8_t { kNothing, kReady, kZeros, kReceives, kFailed, kJoined } what = What::kNothing;
    ContributionPtr call;  // kReady, kReceives, kFailed, kJoined
    Status status;         // kFailed: why
    // kZeros: the entry is ready, and this rank, which has joined, gives zeros. kReceives: it is the message that a
    // receive from any rank has been given.
    EntryRef entry;
    int32_t set = 0;
    std::shared_ptr<const std::string> name;
    std::string descriptor;
    // kReady: how long the call has waited for other ranks, and which one came last (-1: unknown, or a short wait).
    uint64_t waited_ns = 0;
    int last_rank = -1;
  };
  // `out` is new. A failure means that this rank cannot follow the log: the generation has to end.
  Status apply(Record record, Applied* out);

  // All calls in flight, those that wait for their turn included. They are to be finished one by one.
  std::vector<ContributionPtr> give_up_all();

  uint64_t slow_requests() const { return slow_requests_; }
  // For the model checks: members with equal snapshots behave the same.
  std::string snapshot() const;

 private:
  // One name of a set. Forgotten when it has no number and nothing in flight.
  struct Entry {
    uint32_t serial = 0;
    bool used = false;
    int32_t set = 0;
    std::shared_ptr<const std::string> name;
    std::optional<uint32_t> id;  // given by the coordinator
    std::string definition;      // the descriptor that all ranks know; empty: none is agreed
    ContributionPtr in_flight;
    std::optional<uint32_t> counted_in;   // the tally's round, if the call in flight took the fast way
    std::list<ContributionPtr> deferred;  // calls that wait for their turn; an empty deque has half a kilobyte
  };
  struct Set {
    std::unordered_map<std::string_view, uint32_t> slots;  // by the entry's own name
    uint64_t unnamed = 0;
  };

  Entry& at(EntryRef entry) { return entries_[entry.slot]; }
  Announcement begin(Entry* entry, const ContributionPtr& call);
  Announcement ask(const Entry& entry, const Contribution& call);
  void clear_row(const Entry& entry);
  void forget_if_idle(uint32_t slot);
  Entry* entry_of(uint32_t id);
  Status apply_definition(uint32_t id);
  Status apply_error(uint32_t id, Applied* out);
  Status apply_ready(uint32_t id, Applied* out);
  Status apply_received(const Message& message, const Entry& entry, Applied* out);
  Status never_called() const;
  void apply_retirement(uint32_t id);
  Status apply_join(uint32_t last_rank, Applied* out);

  const HostMap& map_;
  Board& board_;
  Clock& clock_;
  Publisher& publisher_;
  std::map<int32_t, Set> sets_;
  std::vector<Entry> entries_;  // with gaps
  std::vector<uint32_t> gaps_;
  std::vector<uint32_t> slot_of_id_;
  size_t deferred_ = 0;   // calls that wait for their turn, under all names
  ContributionPtr join_;  // in flight: this rank has joined, not all have
  uint64_t slow_requests_ = 0;
};

}  // namespace hvd
