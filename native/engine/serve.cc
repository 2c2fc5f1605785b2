// SPDX-License-Identifier: Apache-2.0
// Negotiation's way in and out (step 5): makes the member, the publisher and the leader over this process's ports, and
// feeds the leader with frames of its host's ranks and of other hosts. Under the driver's token.
#include <algorithm>

#include "engine/engine.h"
#include "negotiation/frames.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

// Before any thread starts. The segment and the control links are there.
void Engine::make_negotiation() {
  const EngineSettings& settings = options_.settings;
  board_ = std::make_unique<SegmentBoard>(*segment_, local_rank_, spans_hosts());
  bells_ = std::make_unique<Bells>(*segment_, local_rank_, options_.poll_bell);
  if (is_leader()) {
    const LeaderSettings how{NameLimits{settings.cached_names, kMaxEntries}, settings.close_bytes,
                             static_cast<uint64_t>(settings.cycle_time_ms * 1e6), StallReport::late_ms(settings)};
    leader_ = std::make_unique<Leader>(map_, how, LeaderPorts{*board_, control_, clock_, *bells_, *this});
    from_ranks_ = std::vector<RingReceiver>(segment_->local_size());
    for (uint32_t r = 0; r < segment_->local_size(); ++r) from_ranks_[r].attach(&segment_->ring(r));
  }
  if (spans_hosts()) {
    publisher_ = std::make_unique<LeaderPublisher>(map_, settings.close_bytes, *board_, clock_, *bells_,
                                                   leader_ == nullptr ? nullptr : &leader_->pending());
  } else {
    publisher_ =
        std::make_unique<LogPublisher>(map_, settings.close_bytes, *board_, *bells_, static_cast<Readers&>(*this));
  }
  member_.emplace(map_, *board_, clock_, *publisher_);
  if (coordinates()) stall_.emplace(settings, *leader_);
}

bool Engine::serve() {
  const bool sent = board_->pump();
  if (leader_ == nullptr) {
    if (sent) bells_->ring(0);  // it sleeps once it has read all there was
    return false;
  }
  bool any = serve_ranks();
  any |= serve_hosts();
  bool told = false;
  follow_orders(leader_->tell_retired(&told));
  leader_->collect_stacks();
  if (facts_due_.load() && facts_due_.exchange(false)) {
    leader_->tell_waiting();
    if (stall_.has_value()) follow_orders(stall_->report());
  } else if (stall_.has_value() && stall_->is_answered()) {
    follow_orders(stall_->report());
  }
  if (ids_pending_.load() != leader_->has_unread_retirements()) ids_pending_.store(leader_->has_unread_retirements());
  warn_of_eviction();
  return any || told;
}

// A leader's answer: what it has to say ends the generation.
void Engine::follow_orders(const Status& outcome) {
  if (!outcome.ok()) poison(outcome);
}

bool Engine::serve_ranks() {
  bool any = false;
  FrameKind kind;
  std::string payload;
  for (uint32_t r = 0; r < from_ranks_.size(); ++r) {
    RingReceiver& ring = from_ranks_[r];
    if (!ring.receive()) continue;
    any = true;
    if (r != local_rank_) bells_->ring(r);  // it may sleep on what did not fit
    while (!poisoned() && ring.frames().next(&kind, &payload)) follow_orders(leader_->take_from_rank(r, kind, payload));
    if (ring.frames().broken()) poison(unreadable_from(map_.ranks_here[r], rank_, "data", 0));
  }
  return any;
}

bool Engine::serve_hosts() {
  bool any = false;
  for (ControlLinks::Link& link : control_.all()) {
    link.socket.pump();
    while (!poisoned() && link.socket.receive()) {
      any = true;
      serve_link(&link);
      if (link.socket.closed()) link_closed(&link);
    }
  }
  return any;
}

void Engine::serve_link(ControlLinks::Link* link) {
  FrameKind kind;
  std::string payload;
  while (!poisoned() && link->socket.frames().next(&kind, &payload)) {
    control_.count_received();
    if (kind == FrameKind::kAbort) {
      take_abort(link->socket.peer(), payload);
    } else {
      follow_orders(leader_->take_from_host(link->host, kind, payload));
    }
  }
  if (link->socket.frames().broken()) poison(unreadable_from(link->socket.peer(), rank_, "data", 0));
}

void Engine::take_abort(int from, const std::string& payload) {
  AbortFrame abort;
  if (parse_abort(payload, world_size_, &abort)) {
    poison(abort.code, abort.rank, abort.text);
  } else {
    poison(unreadable_from(from, rank_, "a cause of failure", payload.size()));
  }
}

void Engine::link_closed(ControlLinks::Link* link) {
  const int peer = link->socket.peer();
  bells_->unwatch(link->socket.fd());
  if (leader_->has_left(peer)) return;
  poison(HVD_RANK_LOST, peer,
         "rank " + std::to_string(peer) + " is gone: its process ended or its host is unreachable");
}

// Other hosts learn the cause from their leaders' links; the data links close after it.
void Engine::spread_abort() {
  if (abort_spread_) return;
  abort_spread_ = true;
  control_.send_to_all(FrameKind::kAbort, abort_payload(segment_->cause()));
  drop_communicators();
  bells_->ring_others();
}

void Engine::warn_of_eviction() {
  const uint64_t evicted = leader_->evicted();
  statistics_.names_evicted.store(evicted, std::memory_order_relaxed);
  if (eviction_warned_ || evicted == 0) return;
  eviction_warned_ = true;
  const EngineSettings& settings = options_.settings;
  if (!settings.warnings) return;
  warn("more than " + std::to_string(settings.cached_names) +
           " different tensor names are in use: those not used for longest are forgotten, and cost a detour when they "
           "come back\nhint: give a tensor the same name in every step, or none; HOROVOD_CACHE_CAPACITY sets the "
           "number (at most " +
           std::to_string(kMaxCachedNames) + ")",
       settings.log_time);
}

// A data link broke inside a collective. Its peer may have died, or may have ended because another rank did: what the
// control links say in the next moments decides which rank is named.
void Engine::communicator_failed(const Status& status, const std::string& doing) {
  constexpr uint64_t kPatienceNs = 300000000;
  const uint64_t deadline = now_ns() + kPatienceNs;
  // A rank inside a collective reads no control link. Closing ours gets those out of it that would wait for this rank,
  // rank 0 above all, through which the cause reaches everybody.
  if (spans_hosts()) drop_communicators();
  while (spans_hosts() && !poisoned() && now_ns() < deadline) {
    if (leader_ == nullptr) {  // its leader's links say it
      sleep_ms(1);
    } else if (control_.wait_to_read(50)) {
      serve();
    } else {
      break;
    }
  }
  // On one host the monitor sees a death itself, at once; it may be a moment behind the communicator.
  if (!poisoned()) poison(status.code(), status.failed_rank(), doing + ": " + status.text());
}

}  // namespace hvd
