// SPDX-License-Identifier: Apache-2.0
// A relay merges the messages of its group's hosts into one message to rank 0 (step 5). The leader of the group's first
// host owns a Relay if the hosts form a tree (world/control_tree.h); for rank 0 the group is one host.
//
//   ready        an entry is complete in the group once it is on all of its hosts that have members of the entry's set
//   recalled     the counts of all hosts. Hosts that were complete have said so before, or the answer waits until they
//                have: rank 0 would wait for it just the same. If all were, the group was
//   may retire   idle if all hosts are
//   retired      once all hosts have read it
//
// A host's `place` is its number in the group. Pure: no clock, no ports. A plain value: the model checks copy it.
// Under the driver's token.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/frames.h"
#include "negotiation/host_map.h"

namespace hvd {

class Relay {
 public:
  // For rank 0, in this order.
  struct Answers {
    std::vector<HostReady> ready;
    std::vector<RecalledFrame> recalled;
    std::vector<RetireAnswer> may_retire;
    std::vector<uint32_t> retired;

    bool is_empty() const { return ready.empty() && recalled.empty() && may_retire.empty() && retired.empty(); }
  };

  explicit Relay(const HostMap& map);
  size_t hosts() const { return hosts_; }

  // At the moment when all ranks do so. add_set returns the set's members in the group.
  std::vector<int> add_set(int32_t set, const std::vector<int>& ranks);
  void remove_set(int32_t set) { sets_.erase(set); }

  // Rank 0's word on its way down. The questions return false for an entry that no host of the group counts; counts_on
  // tells which hosts must be asked.
  void note(const Decision& decision);
  bool ask_recall(uint32_t id);
  bool ask_may_retire(uint32_t id);
  bool counts_on(uint32_t id, size_t place) const;

  // A host's word on its way up. These return false, and do nothing, for what a host cannot say, or was not asked.
  bool host_ready(size_t place, const HostReady& entry, Answers* answers);
  bool recalled(size_t place, const RecalledFrame& answer, Answers* answers);
  bool may_retire(size_t place, const RetireAnswer& answer, Answers* answers);
  bool retired(size_t place, uint32_t id, Answers* answers);

  std::string snapshot() const;  // as Member's

 private:
  struct Members {  // of a set
    std::vector<uint32_t> of_host;
    size_t hosts = 0;  // that have some
  };
  using MembersPtr = std::shared_ptr<const Members>;
  class Awaited {  // answers that are to come
   public:
    void expect_all(size_t hosts) { from_.assign(missing_ = hosts, true); }
    void expect(const Members& of);
    void expect_of(size_t place, size_t hosts);
    bool take(size_t place);
    bool is_empty() const { return missing_ == 0; }
    void clear() {
      from_.clear();
      missing_ = 0;
    }
    void put(Writer* text) const;

   private:
    std::vector<bool> from_;
    size_t missing_ = 0;
  };
  struct Entry {
    MembersPtr members;       // null: it has not been defined
    std::vector<bool> ready;  // by host, in this round
    size_t hosts_ready = 0;
    // A recall
    Awaited counts, ready_to_come;
    std::vector<Recalled> found;  // by host
    // A question, and a RETIRE
    Awaited idles, readers;
    bool idle = true;
  };

  Entry* entry_of(uint32_t id) { return id < entries_.size() ? &entries_[id] : nullptr; }
  Entry* defined(uint32_t id);
  void answer_recall(uint32_t id, Entry* entry, Answers* answers);

  const HostMap& map_;
  const size_t hosts_;
  std::map<int32_t, MembersPtr> sets_;
  std::vector<Entry> entries_;  // by id
};

}  // namespace hvd
