// SPDX-License-Identifier: Apache-2.0
// Frames of a host's ranks and of other hosts, and when a leader speaks.
#include "negotiation/leader.h"

#include <algorithm>
#include <utility>

#include "negotiation/point_to_point.h"

namespace hvd {
Status unreadable_from(int from, int to, const std::string& what, size_t bytes) {
  return {HVD_RANK_LOST,
          "rank " + std::to_string(from) + " sent rank " + std::to_string(to) + " " + what +
              (bytes == 0 ? "" : " of " + std::to_string(bytes) + " bytes") +
              " that cannot be read\nhint: install the same version of Horovod for all ranks",
          from};
}

static Status unknown_entry(int leader) {
  const std::string name = "rank " + std::to_string(leader);
  return {HVD_RANK_LOST,
          "a rank of " + name + "'s host counted an operation as complete that " + name +
              " does not know\nhint: install the same version of Horovod for all ranks",
          leader};
}

Leader::Leader(const HostMap& map, LeaderSettings settings, LeaderPorts ports)
    : map_(map),
      settings_(settings),
      board_(ports.board),
      uplink_(ports.uplink),
      clock_(ports.clock),
      log_(map, ports.board, ports.clock, ports.waker, ports.readers),
      facts_(map, settings.late_ms, ports.board, ports.uplink, ports.clock) {
  if (map_.coordinates()) {
    std::vector<int> group_of_rank;
    for (const int host : map_.topology.host_of_rank()) group_of_rank.push_back(map_.tree.group_of(host));
    coordinator_.emplace(std::move(group_of_rank), settings_.names);
  } else {
    merger_.emplace();
    if (map_.relays()) relay_.emplace(map_);
  }
  std::vector<int> all;
  for (int rank = 0; rank < map_.world_size(); ++rank) all.push_back(rank);
  add_set(0, all);
}

void Leader::add_set(int32_t set, const std::vector<int>& ranks) {
  std::vector<int> members_here = log_.add_set(set, ranks);
  if (coordinates()) {
    coordinator_->add_set(set, ranks);
  } else {
    merger_->add_set(set, relay_.has_value() ? relay_->add_set(set, ranks) : std::move(members_here));
  }
}

void Leader::remove_set(int32_t set) {
  log_.remove_set(set);
  if (coordinates()) {
    coordinator_->remove_set(set);
  } else {
    merger_->remove_set(set);
    if (relay_.has_value()) relay_->remove_set(set);
  }
}

Status Leader::take_from_rank(uint32_t local_rank, FrameKind kind, const std::string& payload) {
  const int rank = map_.ranks_here[local_rank], world_size = map_.world_size();
  const auto unreadable = [&] {
    const std::string what = "a message of kind " + std::to_string(static_cast<int>(kind));
    return unreadable_from(rank, map_.rank, what, payload.size());
  };
  if (CompleteFrame complete; kind == FrameKind::kComplete) {
    if (!parse_complete(payload, &complete)) return unreadable();
    pending_.add(complete.id, complete.bytes, local_rank, complete.waits, clock_.now_ns());
    return {};
  }
  RequestFrame request;
  const bool is_about_itself = kind == FrameKind::kRequest
                                   ? parse_request(payload, world_size, &request) && request.ranks.size() == 1 &&
                                         request.ranks.front().rank == rank
                                   : sender_of(kind, payload, world_size) == rank;
  if (!is_about_itself) return unreadable();
  HVD_RETURN_IF_ERROR(pass_on());
  if (coordinates()) {
    // Complete entries were complete before this rank left.
    if (kind == FrameKind::kLeave) HVD_RETURN_IF_ERROR(say_pending());
    Effects effects;
    if (!coordinate(map_.group_of(rank), kind, payload, &effects)) return unreadable();
    return spread(std::move(effects));
  }
  if (kind == FrameKind::kRequest && !is_receive(request.descriptor)) {
    send_requests(merger_->ask(std::move(request), clock_.now_ns()));
    return {};
  }
  send_requests(merger_->take_of(rank));
  if (kind == FrameKind::kLeave) HVD_RETURN_IF_ERROR(say_pending());
  send_word_of(rank, kind, payload);
  return {};
}

void Leader::send_word_of(int rank, FrameKind kind, const std::string& payload) {
  send_requests(merger_->take_of(rank));  // a rank's frames stay in order
  send_up(kind, payload);
  if (JoinFrame join; kind == FrameKind::kJoin && parse_join(payload, map_.world_size(), &join)) {
    send_requests(merger_->join(rank, std::move(join.counted)));
  }
}

Status Leader::take_from_host(int host, FrameKind kind, const std::string& payload) {
  const int from = map_.leader_of(host);
  const bool is_report = kind == FrameKind::kHostReady;
  Status outcome;
  if (!is_report) HVD_RETURN_IF_ERROR(pass_on());
  if (coordinates()) {
    const bool is_sound = map_.tree.is_relay(host) && coordinate(map_.tree.group_of(host), kind, payload, &decided_);
    if (is_sound) return is_report ? Status() : pass_on();
  } else if (host == map_.above()) {
    if (obey(kind, payload, &outcome)) return outcome;
  } else if (relay_.has_value() && map_.tree.above(host) == map_.host && take_from_group(host, kind, payload)) {
    return is_report ? Status() : pass_on();
  }
  return unreadable_from(from, map_.rank, "a message of kind " + std::to_string(static_cast<int>(kind)),
                         payload.size());
}

Status Leader::pass_on() {
  if (coordinates()) return spread(std::exchange(decided_, {}));
  if (relay_.has_value()) send_answers(std::exchange(answered_, {}));
  return {};
}

void Leader::send_requests(const std::vector<RequestFrame>& requests) {
  for (const RequestFrame& request : requests) send_up(FrameKind::kRequest, request_payload(request));
  pending_.hold_until(merger_->due_ns());
}

// True if it is time to send the complete entries up: they are large or old enough, or the ranks that submitted them
// all wait, so that nothing more can come from these.
bool Leader::is_time(const Pending::Contents& pending) const {
  if (pending.ids.empty()) return false;
  if (pending.urgent || pending.bytes >= settings_.close_bytes) return true;
  if (clock_.now_ns() >= pending.since_ns + settings_.linger_ns) return true;
  return std::ranges::all_of(pending.ranks, [this](uint32_t rank) { return board_.waits(rank); });
}

bool Leader::wants_to_speak() const {
  if (pending_.is_empty()) return false;
  return pending_.look([this](const Pending::Contents& pending) { return is_time(pending); });
}

int64_t Leader::silence_left_ns() const {
  if (pending_.is_empty()) return -1;
  uint64_t until_ns = pending_.hold_until_ns();
  const uint64_t since_ns = pending_.look([](const Pending::Contents& pending) { return pending.since_ns; });
  if (since_ns != 0 && (until_ns == 0 || since_ns + settings_.linger_ns < until_ns)) {
    until_ns = since_ns + settings_.linger_ns;
  }
  if (until_ns == 0) return -1;
  const uint64_t now_ns = clock_.now_ns();
  return now_ns >= until_ns ? 0 : static_cast<int64_t>(until_ns - now_ns);
}

Status Leader::speak() {
  if (pending_.is_empty()) return {};
  const uint64_t hold_until_ns = pending_.hold_until_ns();
  if (hold_until_ns != 0 && clock_.now_ns() >= hold_until_ns) {
    send_requests(merger_->take_late(clock_.now_ns()));
  }
  return wants_to_speak() ? say_pending() : Status();
}

Status Leader::say_pending() {
  std::vector<HostReady> ready;
  for (const uint32_t id : pending_.take().ids) ready.push_back({id, board_.last_arrival(id).rank});
  if (ready.empty()) return {};
  if (!coordinates() && !relay_.has_value()) {
    send_up(FrameKind::kHostReady, host_ready_payload(ready));
    return {};
  }
  for (const HostReady& entry : ready) {
    const bool is_known = coordinates()
                              ? coordinator_->host_ready(0, entry.id, now_seconds(), &decided_, entry.last_rank)
                              : relay_->host_ready(0, entry, &answered_);
    if (!is_known) return unknown_entry(map_.rank);
  }
  return pass_on();
}

// False: the frame makes no sense, coming from this group: without a tree, from this host.
bool Leader::coordinate(int group, FrameKind kind, const std::string& payload, Effects* effects) {
  switch (kind) {
    case FrameKind::kRequest:
    case FrameKind::kRefuse:
    case FrameKind::kJoin:
    case FrameKind::kLeave:
      return coordinate_ranks(group, kind, payload, effects);
    case FrameKind::kHostReady:
    case FrameKind::kRecalled:
    case FrameKind::kMayRetire:
    case FrameKind::kRetired:
      return coordinate_ids(group, kind, payload, effects);
    case FrameKind::kStack:
    case FrameKind::kWaiting:
      return facts_.take(group, kind, payload);
    default:
      return false;
  }
}

// Frames of the group's ranks.
bool Leader::coordinate_ranks(int group, FrameKind kind, const std::string& payload, Effects* effects) {
  const int world_size = map_.world_size();
  const double now = now_seconds();
  const auto lives_there = [&](int rank) { return map_.group_of(rank) == group; };
  if (RequestFrame request; kind == FrameKind::kRequest) {
    return parse_request(payload, world_size, &request) &&
           std::ranges::all_of(request.ranks, [&](const Requester& from) { return lives_there(from.rank); }) &&
           coordinator_->request(request.ranks, request.set, request.name, request.descriptor, now, effects);
  }
  if (RefuseFrame refusal; kind == FrameKind::kRefuse) {
    return parse_refuse(payload, world_size, &refusal) && lives_there(refusal.rank) &&
           coordinator_->refuse(refusal.rank, refusal.set, refusal.name, refusal.why, now, effects);
  }
  if (JoinFrame join; kind == FrameKind::kJoin) {
    return parse_join(payload, world_size, &join) && lives_there(join.rank) &&
           coordinator_->join(join.rank, std::move(join.counted), now, effects);
  }
  int rank = -1;
  if (!parse_leave(payload, world_size, &rank) || !lives_there(rank)) return false;
  effects->decisions.push_back({RecordKind::kLeave, static_cast<uint32_t>(rank), false, {}});
  return true;
}

// Frames of the group's relay about entries.
bool Leader::coordinate_ids(int group, FrameKind kind, const std::string& payload, Effects* effects) {
  if (RecalledFrame answer; kind == FrameKind::kRecalled) {
    const auto lives_there = [&](const auto& other) { return map_.group_of(other.first) == group; };
    return parse_recalled(payload, map_.world_size(), &answer) && std::ranges::all_of(answer.others, lives_there) &&
           coordinator_->recalled(group, answer.id, answer.found, effects, answer.others);
  }
  if (std::vector<RetireAnswer> answers; kind == FrameKind::kMayRetire) {
    return parse_may_retire(payload, &answers) && std::ranges::all_of(answers, [&](const RetireAnswer& answer) {
             return coordinator_->may_retire(group, answer.id, answer.idle, effects);
           });
  }
  if (std::vector<HostReady> ready; kind == FrameKind::kHostReady) {
    return parse_host_ready(payload, map_.world_size(), &ready) && std::ranges::all_of(ready, [&](HostReady entry) {
             return coordinator_->host_ready(group, entry.id, now_seconds(), effects, entry.last_rank);
           });
  }
  std::vector<uint32_t> ids;
  return parse_ids(payload, &ids) &&
         std::ranges::all_of(ids, [&](uint32_t id) { return coordinator_->retired(group, id, effects); });
}

// Frames of rank 0 to another leader, maybe by way of its relay. False: the frame makes no sense.
bool Leader::obey(FrameKind kind, const std::string& payload, Status* outcome) {
  if (uint32_t id = 0; kind == FrameKind::kRecall) {
    if (!parse_recall(payload, &id)) return false;
    if (relay_.has_value()) return ask_group_to_recall(id, payload, outcome);
    *outcome = answer_recall(id, nullptr);
    return true;
  }
  if (std::vector<Decision> decisions; kind == FrameKind::kRecords) {
    if (!parse_records(payload, map_.world_size(), &decisions)) return false;
    if (relay_.has_value()) {
      for (const Decision& decision : decisions) relay_->note(decision);
      for (const int host : map_.tree.below(map_.host)) uplink_.send(host, kind, payload);
      uplink_.end_batch();  // as rank 0: it ends with a CLOSE
    }
    *outcome = log_.apply(decisions, &*merger_);
    return true;
  }
  if (std::vector<uint32_t> ids; kind == FrameKind::kMayRetire) {
    if (!parse_ids(payload, &ids)) return false;
    if (relay_.has_value()) return ask_group_to_retire(ids);
    std::vector<RetireAnswer> answers;
    for (const uint32_t id : ids) answers.push_back({id, log_.is_idle(id)});
    send_up(FrameKind::kMayRetire, may_retire_payload(answers));
    return true;
  }
  if (kind == FrameKind::kWhoWaits) {
    if (!payload.empty()) return false;
    facts_.answer(log_.ids());
    return true;
  }
  int rank = -1;
  if (kind != FrameKind::kStackWanted || !parse_stack_wanted(payload, map_.world_size(), &rank)) return false;
  const int host = map_.host_of(rank);
  if (host == map_.host) facts_.ask_for_stack_here(rank);
  if (relay_.has_value() && map_.tree.above(host) == map_.host) uplink_.send(host, kind, payload);
  return true;
}

std::string Leader::snapshot() const {
  Writer text;
  pending_.look([&](const Pending::Contents& pending) {
    for (const uint32_t id : pending.ids) text.put(id);
    for (const uint32_t rank : pending.ranks) text.put(rank);
    text.put('|').put(pending.urgent);
  });
  if (merger_.has_value()) text.put_string(merger_->snapshot());
  if (relay_.has_value()) text.put_string(relay_->snapshot());
  text.put('|');
  if (!decided_.is_empty()) text.put_string(records_payload(decided_.decisions));
  for (const uint32_t id : decided_.recalls) text.put(id);
  if (!answered_.is_empty()) text.put_string(host_ready_payload(answered_.ready));
  for (const RecalledFrame& answer : answered_.recalled) text.put_string(recalled_payload(answer));
  log_.add_to_snapshot(&text);
  if (coordinator_.has_value()) text.put_string(coordinator_->snapshot());
  return text.take();
}

}  // namespace hvd
