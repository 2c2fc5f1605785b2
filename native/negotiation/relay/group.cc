// SPDX-License-Identifier: Apache-2.0
// A leader as the relay of its group: what the group's other hosts say, and rank 0's word for them.
#include <algorithm>
#include <utility>

#include "negotiation/leader.h"
#include "negotiation/point_to_point.h"

namespace hvd {

// False: the frame makes no sense, coming from this host.
bool Leader::take_from_group(int host, FrameKind kind, const std::string& payload) {
  const auto lives_there = [&](int rank) { return rank >= 0 && map_.host_of(rank) == host; };
  RequestFrame request;
  switch (kind) {
    case FrameKind::kRequest:
      if (!parse_request(payload, map_.world_size(), &request)) return false;
      if (!std::ranges::all_of(request.ranks, [&](const Requester& from) { return lives_there(from.rank); }))
        return false;
      if (is_receive(request.descriptor)) {
        send_word_of(request.ranks.front().rank, kind, payload);
      } else {
        send_requests(merger_->ask(std::move(request), clock_.now_ns()));
      }
      return true;
    case FrameKind::kRefuse:
    case FrameKind::kJoin:
    case FrameKind::kLeave: {
      const int rank = sender_of(kind, payload, map_.world_size());
      if (lives_there(rank)) send_word_of(rank, kind, payload);
      return lives_there(rank);
    }
    case FrameKind::kHostReady:
    case FrameKind::kRecalled:
    case FrameKind::kMayRetire:
    case FrameKind::kRetired:
      return take_ids_of_group(host, kind, payload);
    case FrameKind::kStack:
    case FrameKind::kWaiting:
      return facts_.take_for_group(host, kind, payload);
    default:
      return false;
  }
}

// Frames of the host's leader about entries.
bool Leader::take_ids_of_group(int host, FrameKind kind, const std::string& payload) {
  const auto place = static_cast<size_t>(host - map_.host);
  if (RecalledFrame answer; kind == FrameKind::kRecalled) {
    return parse_recalled(payload, map_.world_size(), &answer) && relay_->recalled(place, answer, &answered_);
  }
  if (std::vector<RetireAnswer> idles; kind == FrameKind::kMayRetire) {
    return parse_may_retire(payload, &idles) && std::ranges::all_of(idles, [&](const RetireAnswer& one) {
             return relay_->may_retire(place, one, &answered_);
           });
  }
  if (std::vector<HostReady> ready; kind == FrameKind::kHostReady) {
    return parse_host_ready(payload, map_.world_size(), &ready) &&
           std::ranges::all_of(ready, [&](const HostReady& one) { return relay_->host_ready(place, one, &answered_); });
  }
  std::vector<uint32_t> ids;
  return parse_ids(payload, &ids) &&
         std::ranges::all_of(ids, [&](uint32_t id) { return relay_->retired(place, id, &answered_); });
}

bool Leader::ask_group_to_recall(uint32_t id, const std::string& payload, Status* outcome) {
  if (!relay_->ask_recall(id)) return false;
  for (size_t place = 1; place < relay_->hosts(); ++place) {
    if (relay_->counts_on(id, place)) uplink_.send(map_.host + static_cast<int>(place), FrameKind::kRecall, payload);
  }
  if (relay_->counts_on(id, 0)) *outcome = answer_recall(id, nullptr);
  return true;
}

bool Leader::ask_group_to_retire(const std::vector<uint32_t>& ids) {
  if (!std::ranges::all_of(ids, [this](uint32_t id) { return relay_->ask_may_retire(id); })) return false;
  for (size_t place = 1; place < relay_->hosts(); ++place) {
    std::vector<uint32_t> asked;
    std::ranges::copy_if(ids, std::back_inserter(asked), [&](uint32_t id) { return relay_->counts_on(id, place); });
    if (!asked.empty()) uplink_.send(map_.host + static_cast<int>(place), FrameKind::kMayRetire, ids_payload(asked));
  }
  Relay::Answers answers;
  for (const uint32_t id : ids) {
    if (relay_->counts_on(id, 0)) relay_->may_retire(0, {id, log_.is_idle(id)}, &answers);
  }
  send_answers(answers);
  return true;
}

// Rank 0 gets them in this order: a host that was complete says so before it answers a recall.
void Leader::send_answers(const Relay::Answers& answers) {
  if (!answers.ready.empty()) send_up(FrameKind::kHostReady, host_ready_payload(answers.ready));
  for (const RecalledFrame& answer : answers.recalled) {
    send_up(FrameKind::kRecalled, recalled_payload(answer));
    send_requests(merger_->recall(answer.id, answer.found));
  }
  if (!answers.may_retire.empty()) send_up(FrameKind::kMayRetire, may_retire_payload(answers.may_retire));
  if (!answers.retired.empty()) send_up(FrameKind::kRetired, ids_payload(answers.retired));
}

}  // namespace hvd
