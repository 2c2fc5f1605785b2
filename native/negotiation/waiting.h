// SPDX-License-Identifier: Apache-2.0
// The facts of stall reports (step 5): which ranks wait for which entries, which are blocked, and where their main
// threads are. Each leader has one. A host's in-flight rows tell which of its ranks wait for a defined entry; only the
// coordinator knows the ranks that wait for a new name.
//
// Another host's leader tells rank 0 by itself only that something is late. Before rank 0 says who is missing, it asks
// all leaders, because it knows only the late ones of the entries that are complete on no host.
//
// `ids`: there may be entries with numbers below it. Under the driver's token. Never blocks. A plain value apart from
// its ports, as the leader.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "negotiation/coordinator/coordinator.h"
#include "negotiation/frames.h"
#include "negotiation/host_map.h"
#include "negotiation/ports.h"

namespace hvd {

class StallFacts {
 public:
  // `late_ms`: what has been waited for so long is told to rank 0 unasked; 0: nothing is.
  StallFacts(const HostMap& map, uint64_t late_ms, Board& board, Uplink& uplink, Clock& clock);

  // Another host's leader tells rank 0.
  void tell_if_late(size_t ids);
  void tell(size_t ids) { tell(waiting_here(ids)); }  // it was asked
  // Rank 0 asks, and takes an answer. False: the frame makes no sense, coming from this host.
  void ask_who_waits();
  bool take(int host, FrameKind kind, const std::string& payload);
  bool all_have_told() const {
    return std::ranges::none_of(asked_who_waits_, [](bool asked) { return asked; });
  }
  // Rank 0: all that some ranks wait for. Entries that another host has told do not grow older here: they may be over
  // since.
  std::vector<Undecided> undecided(const Coordinator& coordinator, size_t ids);
  // Then: the ranks that have submitted nothing for half as long, and cannot before they are served.
  std::vector<int> blocked() const;

  // The stacks of ranks. Rank 0 asks; the answers come in later.
  void ask_for_stacks(const std::vector<int>& ranks);
  void ask_for_stack_here(int rank);
  void collect_stacks();  // passes on what ranks of this host have answered
  const std::map<int, std::string>& stacks() const { return stacks_; }

 private:
  WhoWaits waiting_here(size_t ids);
  void tell(const WhoWaits& waiting);
  int rank_of(uint32_t local_rank) const { return map_.ranks_here[local_rank]; }
  void send_up(FrameKind kind, const std::string& payload) { uplink_.send(map_.coordinating_host(), kind, payload); }

  const HostMap& map_;
  const uint64_t late_ms_;
  Board& board_;
  Uplink& uplink_;
  Clock& clock_;

  std::vector<WhoWaits> waiting_there_;  // rank 0: by host, what its leader has told last
  std::vector<bool> asked_who_waits_;    // rank 0: by host, without an answer
  bool told_waiting_ = false;
  std::map<int, std::string> stacks_;  // rank 0: the answers
  std::vector<int> stacks_asked_;      // of this host, without an answer
};

}  // namespace hvd
