// SPDX-License-Identifier: Apache-2.0
// The facts of stall reports (step 5): which ranks wait for which entries, which are blocked, and where their main
// threads are. Each leader has one. A host's in-flight rows tell which of its ranks wait for a defined entry; only the
// coordinator knows the ranks that wait for a new name.
//
// Another host's leader tells rank 0 by itself only that something is late. Before rank 0 says who is missing, it asks
// all leaders, because it knows only the late ones of the entries that are complete on no host. A relay merges
// the facts of its group's hosts into one frame, rank by rank.
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

  // Another host's leader tells rank 0: at each tick what is late, and on a relay what it was told unasked; all
  // when it is asked.
  void tell_if_late(size_t ids);
  void answer(size_t ids);
  // A relay takes a word of another host of its group. False: it makes no sense, coming from this host.
  bool take_for_group(int host, FrameKind kind, const std::string& payload);
  // Rank 0 asks, and takes an answer. False: the frame makes no sense, coming from this group.
  void ask_who_waits();
  bool take(int group, FrameKind kind, const std::string& payload);
  // All who were asked have answered.
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
  void tell(WhoWaits waiting);
  void tell_of_group();
  template <class LivesThere>
  bool take_waiting(size_t from, const std::string& payload, const LivesThere& lives_there);
  int rank_of(uint32_t local_rank) const { return map_.ranks_here[local_rank]; }
  void send_up(FrameKind kind, const std::string& payload) { uplink_.send(map_.above(), kind, payload); }

  const HostMap& map_;
  const uint64_t late_ms_;
  Board& board_;
  Uplink& uplink_;
  Clock& clock_;

  // The last words of the others, and whose answer is yet to come: on rank 0 by group, on a relay by host.
  std::vector<WhoWaits> waiting_there_;
  std::vector<bool> asked_who_waits_;
  uint64_t asked_ns_ = 0;  // a relay
  bool has_news_ = false;  // likewise: was told something unasked
  bool told_waiting_ = false;
  std::map<int, std::string> stacks_;  // rank 0: the answers
  std::vector<int> stacks_asked_;      // of this host, without an answer
};

}  // namespace hvd
