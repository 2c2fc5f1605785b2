// SPDX-License-Identifier: Apache-2.0
// HostService: what the process of a host's leader does for its host (step 5). It feeds the leader with the frames of
// the host's ranks and of other hosts, lets it speak, and reports stalls on rank 0. A world on one host has no links to
// others, and is served the same.
//
// Owns the leader, the receiving ends of the ranks' rings and the control links; borrows everything else. Under the
// driver's token, except what says otherwise. Blocks only in hand_out_batch() and await_news().
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/options.h"
#include "host/board.h"
#include "host/control_links.h"
#include "liveness/stall.h"
#include "negotiation/leader.h"
#include "wakeup/ending.h"

namespace hvd {

class HostService {
 public:
  HostService(const EngineSettings& settings, const HostMap& map, Segment& segment, SegmentBoard& board, Clock& clock,
              Bells& bells, Ending& ending, Readers& readers);
  // Before any thread starts: takes the sockets over.
  Status take_links(std::vector<EngineOptions::Link>* links);

  Leader& leader() { return leader_; }
  bool serve();  // true if something came in
  void speak() { ending_.poison_if_failed(leader_.speak()); }
  void watch_for_room();
  void hand_out_batch();
  // Blocks for a moment, and serves what other hosts say. False: no link to them is open.
  bool await_news(int timeout_ms);
  void spread_abort(const Status& cause) { links_.send_to_all(FrameKind::kAbort, abort_payload(cause)); }
  void finish_sending() { links_.finish_sending(); }

  // Any thread.
  bool has_work() const;
  bool is_alone() const { return links_.empty(); }  // there are no other hosts
  bool has_unread_retirements() const { return ids_pending_.load(); }
  uint64_t messages() const { return links_.messages(); }
  uint64_t names_evicted() const { return names_evicted_.load(std::memory_order_relaxed); }
  // The monitor's thread: time has passed; this process had been held up.
  void tick();
  void note_pause();

 private:
  bool serve_ranks();
  bool serve_hosts();
  void serve_link(ControlLinks::Link* link);
  void link_closed(ControlLinks::Link* link);
  void report_facts();
  void warn_of_eviction();

  const EngineSettings& settings_;
  const HostMap& map_;
  Bells& bells_;
  Ending& ending_;
  ControlLinks links_;
  Leader leader_;
  std::vector<RingReceiver> from_ranks_;  // by local rank, its own included
  std::optional<StallReport> stall_;      // rank 0
  bool eviction_warned_ = false;
  std::atomic<bool> facts_due_{false};  // the monitor has ticked
  std::atomic<bool> ids_pending_{false};
  std::atomic<uint64_t> names_evicted_{0};  // rank 0 knows
};

}  // namespace hvd
