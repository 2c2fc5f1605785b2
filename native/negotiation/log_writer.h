// SPDX-License-Identifier: Apache-2.0
// Writes rank 0's decisions into the host's memory (step 5): records of the log, with their texts and tallies. Each
// leader has one.
//
// Under the driver's token. Blocks only in Readers. A plain value apart from its ports, as the leader.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "negotiation/decision.h"
#include "negotiation/host_map.h"
#include "negotiation/ports.h"
#include "negotiation/request_merger.h"
#include "platform/status.h"

namespace hvd {

class LogWriter {
 public:
  LogWriter(const HostMap& map, Board& board, Clock& clock, Waker& waker, Readers& readers);

  // Returns the set's members of this host.
  std::vector<int> add_set(int32_t set, const std::vector<int>& ranks);
  void remove_set(int32_t set) { sets_.erase(set); }

  // Writes decisions into this host's log. `merger`: null, or what has to know of them.
  Status apply(const std::vector<Decision>& decisions, RequestMerger* merger);

  // The entries have numbers below this one.
  size_t ids() const { return text_read_at_.size(); }
  // The link to this rank may end without that being a loss: it has left.
  bool has_left(int rank) const { return left_[static_cast<size_t>(rank)]; }
  // True if the name may go. Shuts its fast way.
  bool is_idle(uint32_t id);
  // The retired names that all ranks of this host have read by now: no rank here needs the number any more.
  std::vector<uint32_t> take_read_retirements();
  bool has_unread_retirements() const { return !retired_.empty(); }

  void add_to_snapshot(Writer* text) const;

 private:
  struct SetHere {
    uint32_t members = 0;
    bool has_leader = false;
  };
  struct Retired {
    uint64_t end;  // the log position behind its RETIRE
    uint32_t id;
  };

  bool write(const Decision& decision, RequestMerger* merger, Status* failure);
  void assign(const Decision& decision);
  void back_to_the_fast_way();

  const HostMap& map_;
  Board& board_;
  Clock& clock_;
  Waker& waker_;
  Readers& readers_;

  std::map<int32_t, SetHere> sets_;
  std::vector<uint64_t> text_read_at_;  // by entry, the log position behind the last record with a text
  std::deque<Retired> retired_;         // not read by all ranks of the host, as far as is known
  std::vector<bool> left_;              // by rank
};

}  // namespace hvd
