// SPDX-License-Identifier: Apache-2.0
// The requests of one host's ranks on their way to rank 0 (step 5): equal requests go up as one. Every leader except
// rank 0's owns a RequestMerger, and sends the requests that it returns as due. A relay's merges those of its group of
// hosts, which have been merged before: read "group" for "host".
//
// A name's requests are due once every rank of the host that can still ask has asked, at the latest 10 ms after the
// first request. The ranks that can still ask are the set's members on this host, without those that have joined, and
// without those that took the fast way in this round, which the answer to the recall has counted. Ranks that send
// different requests under one name count as well.
//
// Pure: no clock, no ports. A plain value: the model checks copy it. Under the driver's token.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/frames.h"

namespace hvd {

class RequestMerger {
 public:
  // By set, its members on this host. At the moment when all ranks add or remove the set.
  void add_set(int32_t set, std::vector<int> ranks_here) { sets_[set] = std::move(ranks_here); }
  void remove_set(int32_t set);

  // These three return the requests that are due now. ask: ranks ask. join: a rank will ask no more, and its requests
  // have been sent. recall: the host has answered a recall of the entry.
  std::vector<RequestFrame> ask(RequestFrame request, uint64_t now_ns);
  std::vector<RequestFrame> join(int rank, CountedIn counted);
  std::vector<RequestFrame> recall(uint32_t id, const Recalled& found);

  // A record of the host's log, which means one of these: an id gets a name; a round is over; an id is gone; all ranks
  // have joined.
  void note(const Decision& decision, int world_size);
  void define(uint32_t id, int32_t set, const std::string& name);
  void end_round(int32_t set, const std::string& name);
  void end_round(uint32_t id);
  void retire(uint32_t id);
  void all_have_joined() { joined_.clear(); }

  // Requests that have waited long enough by now.
  std::vector<RequestFrame> take_late(uint64_t now_ns);
  // The held requests of a rank, which must go up before its next message.
  std::vector<RequestFrame> take_of(int rank);
  bool is_empty() const { return waiting_.empty(); }
  uint64_t due_ns() const { return waiting_.empty() ? 0 : waiting_.begin()->first; }  // of the oldest; 0: none

  std::string snapshot() const;  // as Member's

 private:
  using Name = std::pair<int32_t, std::string>;
  struct Asked {
    std::vector<int> ranks;            // that have asked in this round, sent or not
    uint64_t due_ns = 0;               // of what is unsent
    std::vector<RequestFrame> unsent;  // all different
  };

  void forget(const Name& name);
  bool is_complete(const Name& name, const Asked& asked) const;
  size_t counted_of_others(uint32_t id) const;
  void take(const Name& name, std::vector<RequestFrame>* taken);
  std::vector<RequestFrame> take_if_complete(const Name& name);
  template <class Wanted>
  std::vector<RequestFrame> take_if(Wanted&& is_wanted);

  std::map<int32_t, std::vector<int>> sets_;
  std::map<Name, Asked> names_;                  // of rounds that are not over
  std::set<std::pair<uint64_t, Name>> waiting_;  // names with something unsent, by when it is due
  std::map<uint32_t, Name> name_of_id_;
  std::map<Name, uint32_t> id_of_name_;
  std::map<uint32_t, Recalled> recalled_;  // of this round
  std::map<int, CountedIn> joined_;        // by rank
};

}  // namespace hvd
