// SPDX-License-Identifier: Apache-2.0
#include "engine/serve.h"

#include <algorithm>
#include <utility>

#include "negotiation/frames.h"
#include "platform/warning.h"

namespace hvd {

static LeaderSettings leader_settings(const EngineSettings& settings) {
  return {NameLimits{settings.cached_names, kMaxEntries}, settings.close_bytes,
          static_cast<uint64_t>(settings.cycle_time_ms * 1e6), StallReport::late_ms(settings)};
}

HostService::HostService(const EngineSettings& settings, const HostMap& map, Segment& segment, SegmentBoard& board,
                         Clock& clock, Bells& bells, Ending& ending, Readers& readers)
    : settings_(settings),
      map_(map),
      bells_(bells),
      ending_(ending),
      leader_(map, leader_settings(settings), LeaderPorts{board, links_, clock, bells, readers}),
      from_ranks_(segment.local_size()) {
  for (uint32_t r = 0; r < from_ranks_.size(); ++r) from_ranks_[r].attach(&segment.ring(r));
  if (map_.coordinates()) stall_.emplace(settings_, leader_);
}

Status HostService::take_links(std::vector<EngineOptions::Link>* links) {
  std::vector<int> sockets;
  for (EngineOptions::Link& link : *links) {
    if (link.purpose != HVD_LINK_CONTROL) continue;
    const int host = map_.host_of(link.peer);
    links_.add(std::exchange(link.fd, -1), link.peer, host, map_.tree.above(host) == map_.host);
    sockets.push_back(links_.all().back().socket.fd());
  }
  const size_t expected = map_.tree.below(map_.host).size() + (map_.coordinates() ? 0 : 1);
  if (links_.size() != expected) {
    return {HVD_INVALID_ARGUMENT, "rank " + std::to_string(map_.rank) + ": expected " + std::to_string(expected) +
                                      " control links, got " + std::to_string(links_.size())};
  }
  bells_.watch(sockets);
  return {};
}

bool HostService::serve() {
  bool any = serve_ranks();
  any |= serve_hosts();
  if (!ending_.poisoned()) ending_.poison_if_failed(leader_.pass_on());
  bool told = false;
  ending_.poison_if_failed(leader_.tell_retired(&told));
  leader_.facts().collect_stacks();
  report_facts();
  if (ids_pending_.load() != leader_.has_unread_retirements()) ids_pending_.store(leader_.has_unread_retirements());
  warn_of_eviction();
  return any || told;
}

void HostService::report_facts() {
  const bool due = facts_due_.load() && facts_due_.exchange(false);
  if (due) leader_.tell_waiting();
  if (stall_.has_value() && (due || stall_->is_answered())) ending_.poison_if_failed(stall_->report());
}

void HostService::watch_for_room() {
  for (const ControlLinks::Link& link : links_.all()) {
    bells_.watch_for_room(link.socket.fd(), link.socket.wants_to_write());
  }
}

void HostService::hand_out_batch() {
  links_.hand_out_batch([this] { return ending_.poisoned(); });
}

bool HostService::await_news(int timeout_ms) {
  if (!links_.wait_to_read(timeout_ms)) return false;
  serve();
  return true;
}

bool HostService::has_work() const {
  return facts_due_.load() || leader_.wants_to_speak() ||
         std::ranges::any_of(from_ranks_, [](const RingReceiver& ring) { return ring.has_data(); });
}

void HostService::tick() {
  if (stall_.has_value()) stall_->note_tick();
  facts_due_.store(true);
}

void HostService::note_pause() {
  if (stall_.has_value()) stall_->note_pause();
}

bool HostService::serve_ranks() {
  bool any = false;
  FrameKind kind;
  std::string payload;
  for (uint32_t r = 0; r < from_ranks_.size(); ++r) {
    RingReceiver& ring = from_ranks_[r];
    if (!ring.receive()) continue;
    any = true;
    if (r != map_.local_rank) bells_.ring(r);  // it may sleep on what did not fit
    while (!ending_.poisoned() && ring.frames().next(&kind, &payload))
      ending_.poison_if_failed(leader_.take_from_rank(r, kind, payload));
    if (ring.frames().broken()) ending_.poison(unreadable_from(map_.ranks_here[r], map_.rank, "data", 0));
  }
  return any;
}

bool HostService::serve_hosts() {
  bool any = false;
  for (ControlLinks::Link& link : links_.all()) {
    link.socket.pump();
    while (!ending_.poisoned() && link.socket.receive()) {
      any = true;
      serve_link(&link);
      if (link.socket.closed()) link_closed(&link);
    }
  }
  return any;
}

void HostService::serve_link(ControlLinks::Link* link) {
  FrameKind kind;
  std::string payload;
  while (!ending_.poisoned() && link->socket.frames().next(&kind, &payload)) {
    links_.count_received();
    if (kind == FrameKind::kAbort) {
      ending_.take_abort(link->socket.peer(), payload);
    } else {
      ending_.poison_if_failed(leader_.take_from_host(link->host, kind, payload));
    }
  }
  if (link->socket.frames().broken()) ending_.poison(unreadable_from(link->socket.peer(), map_.rank, "data", 0));
}

void HostService::link_closed(ControlLinks::Link* link) {
  const int peer = link->socket.peer();
  bells_.unwatch(link->socket.fd());
  // Once rank 0 has left, the others go without a word.
  if (leader_.has_left(peer) || (!map_.coordinates() && leader_.has_left(0))) return;
  ending_.poison(HVD_RANK_LOST, peer,
                 "rank " + std::to_string(peer) + " is gone: its process ended or its host is unreachable");
}

void HostService::warn_of_eviction() {
  const uint64_t evicted = leader_.evicted();
  names_evicted_.store(evicted, std::memory_order_relaxed);
  if (eviction_warned_ || evicted == 0) return;
  eviction_warned_ = true;
  if (!settings_.warnings) return;
  warn(
      "the script uses more tensor names than Horovod remembers (" + std::to_string(settings_.cached_names) +
          "; fewer with large groups). Horovod forgets the least recently used names; their next call is slower\n"
          "hint: give a tensor the same name in every step, or none; HOROVOD_CACHE_CAPACITY sets the number (at most " +
          std::to_string(kMaxCachedNames) + ")",
      settings_.log_time);
}

}  // namespace hvd
