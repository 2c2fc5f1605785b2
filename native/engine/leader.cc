// SPDX-License-Identifier: Apache-2.0
// The leaders' duties. A host's leader (its lowest rank) takes its followers' frames from their rings. Rank 0 answers
// them, and those of the other leaders, with the coordinator; the others pass them up and apply what comes down. Under
// the token.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "negotiation/frames.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

bool Engine::serve() {
  bool any = false;
  bool sent = false;
  {
    const std::lock_guard lock(mutex_);
    sent = to_leader_.pump();
  }
  if (!is_leader()) {
    if (sent) bells_->ring(0);  // it sleeps once it has read all there was
    return false;
  }
  FrameKind kind;
  std::string payload;
  for (uint32_t r = 0; r < from_followers_.size(); ++r) {
    RingReceiver& ring = from_followers_[r];
    if (!ring.receive()) continue;
    any = true;
    if (r != local_rank_) bells_->ring(r);  // it may sleep on what did not fit
    while (ring.frames().next(&kind, &payload)) handle_upward(ranks_of_host_[r], kind, payload);
    if (ring.frames().broken()) poison_unreadable(ranks_of_host_[r], "what is no frame", 0);
  }
  for (SocketLink& link : control_) {
    link.pump();
    while (!poisoned() && link.receive()) {
      any = true;
      serve_control(&link);
      if (link.closed()) link_closed(&link);
    }
  }
  any |= tell_retired();
  if (!stacks_asked_here_.empty()) collect_stacks();
  if (stall_check_due_.exchange(false) && coordinates()) report_stalls();
  return any;
}

void Engine::serve_control(SocketLink* link) {
  FrameKind kind;
  std::string payload;
  while (link->frames().next(&kind, &payload)) {
    statistics_.control_messages.fetch_add(1, std::memory_order_relaxed);
    if (kind == FrameKind::kAbort) {
      take_abort(link->peer(), payload);
    } else if (coordinates()) {
      handle_upward(link->peer(), kind, payload);
    } else {
      handle_downward(kind, payload);
    }
  }
  if (link->frames().broken()) poison_unreadable(link->peer(), "what is no frame", 0);
}

void Engine::take_abort(int from, const std::string& payload) {
  AbortFrame abort;
  if (parse_abort(payload, world_size_, &abort)) {
    poison(abort.code, abort.rank, abort.text);
  } else {
    poison_unreadable(from, "a cause of failure", payload.size());
  }
}

void Engine::link_closed(SocketLink* link) {
  const int peer = link->peer();
  bells_->unwatch(link->fd());
  if (may_close_[static_cast<size_t>(peer)]) return;
  poison(HVD_RANK_LOST, peer,
         "rank " + std::to_string(peer) + " is gone: its process ended or its host is unreachable");
}

// Whoever sends such a thing has another version, or damaged memory: nothing it says can be relied on.
void Engine::poison_unreadable(int from, const std::string& what, size_t bytes) {
  poison(HVD_RANK_LOST, from,
         "rank " + std::to_string(from) + " sent rank " + std::to_string(rank_) + " " + what +
             (bytes == 0 ? "" : " of " + std::to_string(bytes) + " bytes") +
             " that cannot be read\nhint: do all ranks run the same version of Horovod?");
}

// `from` is the rank at the other end: a follower, or another host's leader, which passes on what its followers say.
void Engine::handle_upward(int from, FrameKind kind, const std::string& payload) {
  if (!coordinates()) {
    send_upward(kind, payload);
    return;
  }
  Effects effects;
  if (coordinate(options_.host_of_rank[from], kind, payload, &effects)) {
    spread(std::move(effects));
  } else {
    poison_unreadable(from, "a message of kind " + std::to_string(static_cast<int>(kind)), payload.size());
  }
}

void Engine::send_upward(FrameKind kind, const std::string& payload) { control_.front().send(kind, payload); }

// False where the frame makes no sense, coming from this host.
bool Engine::coordinate(int host, FrameKind kind, const std::string& payload, Effects* effects) {
  const double now = now_seconds();
  switch (kind) {
    case FrameKind::kRequest:
    case FrameKind::kRefuse: {
      RequestFrame request;
      if (!parse_request(kind, payload, world_size_, &request)) return false;
      if (options_.host_of_rank[request.rank] != host) return false;
      if (!coordinator_->is_member(request.rank, request.set) || coordinator_->has_joined(request.rank)) return false;
      if (kind == FrameKind::kRequest) {
        coordinator_->request(request.rank, request.set, request.name, request.body, request.waits, now, effects);
      } else {
        coordinator_->refuse(request.rank, request.set, request.name, request.body, now, effects);
      }
      return true;
    }
    case FrameKind::kHostReady: {
      std::vector<uint32_t> ids;
      if (!parse_ids(payload, &ids)) return false;
      return std::all_of(ids.begin(), ids.end(),
                         [&](uint32_t id) { return coordinator_->host_ready(host, id, now, effects); });
    }
    case FrameKind::kRecalled: {
      RecalledFrame answer;
      return parse_recalled(payload, &answer) && coordinator_->recalled(host, answer.id, answer.found, effects);
    }
    case FrameKind::kJoin: {
      JoinFrame join;
      if (!parse_join(payload, world_size_, &join) || options_.host_of_rank[join.rank] != host) return false;
      return coordinator_->join(join.rank, std::move(join.counted), now, effects);
    }
    case FrameKind::kStack: {
      int rank = -1;
      std::string text;
      if (!parse_stack(payload, world_size_, &rank, &text) || options_.host_of_rank[rank] != host) return false;
      stacks_[rank] = std::move(text);
      return true;
    }
    case FrameKind::kMayRetire: {
      std::vector<RetireAnswer> answers;
      return parse_may_retire(payload, &answers) && std::ranges::all_of(answers, [&](const RetireAnswer& answer) {
               return coordinator_->may_retire(host, answer.id, answer.idle, effects);
             });
    }
    case FrameKind::kRetired: {
      std::vector<uint32_t> ids;
      return parse_ids(payload, &ids) &&
             std::ranges::all_of(ids, [&](uint32_t id) { return coordinator_->retired(host, id, effects); });
    }
    case FrameKind::kLeave: {
      int rank = -1;
      if (!parse_leave(payload, world_size_, &rank) || options_.host_of_rank[rank] != host) return false;
      effects->decisions.push_back({RecordKind::kLeave, static_cast<uint32_t>(rank), false, {}});
      return true;
    }
    default:
      return false;
  }
}

void Engine::answer_recall(uint32_t id, Effects* effects) {
  if (id >= kMaxEntries) return;
  const Recalled found = segment_->tally(id, spans_hosts()).recall();
  if (coordinates()) {
    coordinator_->recalled(host_, id, found, effects);
    return;
  }
  // What this host has announced but not yet told must arrive before the answer.
  flush_ready(true);
  send_upward(FrameKind::kRecalled, recalled_payload({id, found}));
}

void Engine::answer_may_retire(const std::vector<uint32_t>& ids, Effects* effects) {
  Writer payload;
  payload.put(static_cast<uint32_t>(ids.size()));
  for (const uint32_t id : ids) {
    auto tally = segment_->tally(id, spans_hosts());
    Retirement<> retirement(segment_->local_size());
    while (!retirement.finished()) {
      retirement.step(tally, [&](uint32_t r) { return segment_->in_flight(r, id).load() != 0; });
    }
    const bool idle = retirement.state() == Retirement<>::State::kIdle;
    if (coordinates()) coordinator_->may_retire(host_, id, idle, effects);
    payload.put(id).put(static_cast<uint8_t>(idle));
  }
  if (!coordinates()) send_upward(FrameKind::kMayRetire, payload.take());
}

// What all ranks of this host have read by now: nobody here needs the number any more.
bool Engine::tell_retired() {
  std::vector<uint32_t> ids;
  for (; !retired_here_.empty() && segment_->all_have_read(retired_here_.front().end); retired_here_.pop_front()) {
    ids.push_back(retired_here_.front().id);
    segment_->release_texts(ids.back());
  }
  ids_pending_.store(!retired_here_.empty());
  if (ids.empty()) return false;
  if (!coordinates()) {
    send_upward(FrameKind::kRetired, ids_payload(ids));
    return false;
  }
  Effects effects;
  for (const uint32_t id : ids) coordinator_->retired(host_, id, &effects);
  const bool any = !effects.decisions.empty();
  spread(std::move(effects));
  return any;
}

void Engine::warn_of_eviction() {
  statistics_.names_evicted.store(coordinator_->evicted(), std::memory_order_relaxed);
  if (eviction_warned_ || coordinator_->evicted() == 0) return;
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

// Rank 0: carries out what the coordinator wants, on all hosts.
void Engine::spread(Effects effects) {
  while (!effects.recalls.empty()) {
    const std::vector<uint32_t> recalls = std::exchange(effects.recalls, {});
    for (const uint32_t id : recalls) {
      if (id >= kMaxEntries) continue;
      flush_ready(true);
      Writer payload;
      payload.put(id);
      const std::string frame = payload.take();
      for (SocketLink& link : control_) {
        if (coordinator_->counts_on(id, options_.host_of_rank[link.peer()])) link.send(FrameKind::kRecall, frame);
      }
      if (coordinator_->counts_on(id, host_)) answer_recall(id, &effects);
    }
  }
  if (!effects.retires.empty()) {
    for (SocketLink& link : control_) {
      std::vector<uint32_t> asked;
      for (const uint32_t id : effects.retires) {
        if (coordinator_->counts_on(id, options_.host_of_rank[link.peer()])) asked.push_back(id);
      }
      if (!asked.empty()) link.send(FrameKind::kMayRetire, ids_payload(asked));
    }
    std::vector<uint32_t> here = std::exchange(effects.retires, {});
    std::erase_if(here, [&](uint32_t id) { return !coordinator_->counts_on(id, host_); });
    answer_may_retire(here, &effects);
    warn_of_eviction();
  }
  if (effects.decisions.empty()) return;
  if (spans_hosts()) {
    effects.decisions.push_back({RecordKind::kClose, 0, false, {}});
    const std::string frame = records_payload(effects.decisions);
    for (SocketLink& link : control_) {
      link.send(FrameKind::kRecords, frame);
      statistics_.control_messages.fetch_add(1, std::memory_order_relaxed);
    }
    std::vector<uint64_t> until;
    for (const SocketLink& link : control_) until.push_back(link.bytes_queued());
    closes_.push_back(std::move(until));
  }
  apply_decisions(effects.decisions);
}

// Rank 0 may block in a batch only when the others can know of it: what tells them must not wait behind a full socket.
// What comes after this batch's CLOSE may, for they may be in the batch by now and read nothing.
void Engine::hand_out_decisions() {
  if (closes_.empty()) return;
  const std::vector<uint64_t> until = std::move(closes_.front());
  closes_.pop_front();
  while (!poisoned()) {
    std::vector<pollfd> full;
    for (size_t i = 0; i < until.size(); ++i) {
      control_[i].pump();
      if (control_[i].bytes_sent() < until[i] && !control_[i].closed()) {
        full.push_back({control_[i].fd(), POLLOUT, 0});
      }
    }
    if (full.empty()) return;
    ::poll(full.data(), full.size(), 100);
  }
}

void Engine::handle_downward(FrameKind kind, const std::string& payload) {
  uint32_t id = 0;
  std::vector<Decision> decisions;
  if (kind == FrameKind::kRecall && parse_recall(payload, &id)) {
    Effects none;
    answer_recall(id, &none);
  } else if (int rank = -1; kind == FrameKind::kStackWanted && parse_stack_wanted(payload, world_size_, &rank)) {
    ask_here(rank);
  } else if (std::vector<uint32_t> ids; kind == FrameKind::kMayRetire && parse_ids(payload, &ids)) {
    answer_may_retire(ids, nullptr);
  } else if (kind == FrameKind::kRecords && parse_records(payload, world_size_, &decisions)) {
    apply_decisions(decisions);
  } else {
    poison_unreadable(0, "a message of kind " + std::to_string(static_cast<int>(kind)), payload.size());
  }
}

void Engine::apply_decisions(const std::vector<Decision>& decisions) {
  for (const Decision& decision : decisions) {
    assign_entry(decision);
    const bool has_text = decision.kind == RecordKind::kDefine || decision.kind == RecordKind::kError;
    // Not so for the others: they have submitted since, or this would not have been decided.
    const auto joined_have_read = [&] { return segment_->joined_have_read(text_read_at_[decision.id]); };
    if (has_text && !wait_for_readers(true, joined_have_read)) return;
    bool stored = true;
    if (decision.kind == RecordKind::kDefine) stored = segment_->write_definition(decision.id, decision.payload);
    if (decision.kind == RecordKind::kError) stored = segment_->write_error(decision.id, decision.payload);
    if (!stored) {
      poison(HVD_OUT_OF_MEMORY, rank_, "the memory for tensor names and shapes is full");
      return;
    }
    if (decision.kind == RecordKind::kLeave && decision.id < may_close_.size()) may_close_[decision.id] = true;
    // Reset first: a rank that reads the record may submit the next round at once.
    if (decision.reset) {
      segment_->tally(decision.id, spans_hosts()).reset(decision.stays_recalled);
    } else if (has_text) {
      segment_->tally(decision.id, spans_hosts()).retire();
    }
    if (decision.kind == RecordKind::kJoin) back_to_the_fast_way();
    if (!wait_for_room_in_log(true)) return;
    const uint64_t position = segment_->append({decision.kind, decision.id});
    if (has_text) text_read_at_[decision.id] = position + 1;
    if (decision.kind == RecordKind::kRetire) retired_here_.push_back({position + 1, decision.id});
  }
  ids_pending_.store(!retired_here_.empty());
  // This thread drives: it reads on by itself, and lingers or closes, where it takes part.
  const auto concerns_others = [this](const Decision& decision) {
    return (is_about_entry(decision.kind) && !takes_part_in(decision.id)) || decision.kind == RecordKind::kJoin;
  };
  if (spans_hosts() || segment_->header().waiting.load() > 0 || std::ranges::any_of(decisions, concerns_others)) {
    bells_->ring_others();
  }
}

// Before the first record of an entry, and whenever its set may have come back with other members.
void Engine::assign_entry(const Decision& decision) {
  Definition definition;
  Failure failure;
  int32_t number = 0;
  if (decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    number = definition.set;
  } else if (decision.kind == RecordKind::kError && parse_failure(decision.payload, world_size_, &failure)) {
    number = failure.set;
  } else {
    return;
  }
  const ProcessSet* set = find_set(number);
  segment_->assign(decision.id, number, set == nullptr ? 0 : set->local_members);
  if (text_read_at_.size() <= decision.id) text_read_at_.resize(decision.id + 1, 0);
}

// Tells rank 0 what is complete on this host: when somebody waits, enough has come together, or it is old enough.
void Engine::flush_ready(bool somebody_waits) {
  if (!spans_hosts() || !is_leader()) return;
  std::vector<uint32_t> ready;
  {
    const std::lock_guard lock(mutex_);
    if (ready_here_.empty()) return;
    if (!somebody_waits && ready_here_bytes_.load() < options_.settings.close_bytes &&
        segment_->header().waiting.load() == 0 && !linger_is_over()) {
      return;
    }
    ready.swap(ready_here_);
    ready_here_bytes_.store(0);
    ready_here_since_ns_.store(0);
  }
  if (coordinates()) {
    Effects effects;
    for (const uint32_t id : ready) coordinator_->host_ready(host_, id, now_seconds(), &effects);
    spread(std::move(effects));
    return;
  }
  send_upward(FrameKind::kHostReady, ids_payload(ready));
}

void Engine::send_leave() {
  const uint32_t me = static_cast<uint32_t>(rank_);
  if (!spans_hosts()) {
    if (!wait_for_room_in_log(true)) return;
    segment_->append({RecordKind::kLeave, me});
    bells_->ring_others();
    return;
  }
  Writer payload;
  payload.put(static_cast<int32_t>(rank_));
  const std::string bytes = payload.take();
  if (is_leader()) {
    handle_upward(rank_, FrameKind::kLeave, bytes);
  } else {
    const std::lock_guard lock(mutex_);
    to_leader_.send(FrameKind::kLeave, bytes);
    bells_->ring(0);
  }
}

// Other hosts learn the cause from their leaders' links; the data links close after it.
void Engine::spread_abort() {
  if (abort_spread_) return;
  abort_spread_ = true;
  const std::string frame = abort_payload(segment_->cause());
  for (SocketLink& link : control_) link.send(FrameKind::kAbort, frame);
  drop_communicators();
  bells_->ring_others();
}

// A data link broke inside a collective. Its peer may have died, or may have ended because somebody else did: what the
// control links say in the next moments decides who is named.
void Engine::communicator_failed(const Status& status, const std::string& doing) {
  constexpr uint64_t kPatienceNs = 300000000;
  const uint64_t deadline = now_ns() + kPatienceNs;
  // A rank inside a collective reads no control link. Closing ours gets those out of it that would wait for this rank,
  // rank 0 above all, through which the cause reaches everybody.
  if (spans_hosts()) drop_communicators();
  while (spans_hosts() && !poisoned() && now_ns() < deadline) {
    if (!is_leader()) {  // its leader's links say it
      sleep_ms(1);
      continue;
    }
    std::vector<pollfd> watched;
    for (const SocketLink& link : control_) {
      if (!link.closed()) watched.push_back({link.fd(), POLLIN, 0});
    }
    if (watched.empty()) break;
    ::poll(watched.data(), watched.size(), 50);
    serve();
  }
  // On one host the monitor sees a death itself, at once; it may be a moment behind the communicator.
  if (!poisoned()) poison(status.code(), status.failed_rank(), doing + ": " + status.text());
}

}  // namespace hvd
