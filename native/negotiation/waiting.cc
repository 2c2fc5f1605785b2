// SPDX-License-Identifier: Apache-2.0
#include "negotiation/waiting.h"

#include <algorithm>
#include <utility>

namespace hvd {

StallFacts::StallFacts(const HostMap& map, uint64_t late_ms, Board& board, Uplink& uplink, Clock& clock)
    : map_(map), late_ms_(late_ms), board_(board), uplink_(uplink), clock_(clock) {
  if (!map_.coordinates()) return;
  waiting_there_.resize(static_cast<size_t>(map_.hosts()));
  asked_who_waits_.assign(static_cast<size_t>(map_.hosts()), false);
}

WhoWaits StallFacts::waiting_here(size_t ids) {
  WhoWaits all;
  const uint64_t now_ms = clock_.now_ns() / 1000000 + 1;
  for (uint32_t id = 0; id < ids; ++id) {
    Waiting waiting{id, 0, {}};
    for (uint32_t local = 0; local < map_.ranks_here.size(); ++local) {
      const uint64_t since_ms = board_.in_flight_since_ms(local, id);
      if (since_ms == 0) continue;
      waiting.ranks.push_back(rank_of(local));
      const uint64_t waited_ms = now_ms - std::min(now_ms, since_ms);
      waiting.waited_ms = std::max(waiting.waited_ms, static_cast<uint32_t>(std::min<uint64_t>(waited_ms, UINT32_MAX)));
    }
    if (!waiting.ranks.empty()) all.entries.push_back(std::move(waiting));
  }
  for (uint32_t local = 0; local < map_.ranks_here.size(); ++local) {
    const uint64_t since_ms = board_.blocked_since_ms(local);
    if (since_ms != 0 && now_ms >= since_ms + late_ms_ / 2) all.blocked.push_back(rank_of(local));
  }
  return all;
}

void StallFacts::tell_if_late(size_t ids) {
  if (map_.coordinates() || late_ms_ == 0) return;
  WhoWaits waiting = waiting_here(ids);
  const auto is_late = [this](const Waiting& item) { return item.waited_ms >= late_ms_; };
  if (std::ranges::none_of(waiting.entries, is_late)) waiting = {};
  if (!waiting.entries.empty() || told_waiting_) tell(waiting);
}

void StallFacts::tell(const WhoWaits& waiting) {
  told_waiting_ = !waiting.entries.empty();
  send_up(FrameKind::kWaiting, waiting_payload(waiting));
}

void StallFacts::ask_who_waits() {
  for (int host = 0; host < map_.hosts(); ++host) {
    if (host == map_.host) continue;
    asked_who_waits_[static_cast<size_t>(host)] = true;
    uplink_.send(host, FrameKind::kWhoWaits, {});
  }
}

bool StallFacts::take(int host, FrameKind kind, const std::string& payload) {
  const auto lives_there = [&](int rank) { return map_.host_of(rank) == host; };
  if (WhoWaits waiting; kind == FrameKind::kWaiting) {
    if (!parse_waiting(payload, map_.world_size(), &waiting)) return false;
    const auto is_sound = [&](const Waiting& item) { return std::ranges::all_of(item.ranks, lives_there); };
    if (!std::ranges::all_of(waiting.entries, is_sound) || !std::ranges::all_of(waiting.blocked, lives_there))
      return false;
    waiting_there_[static_cast<size_t>(host)] = std::move(waiting);
    asked_who_waits_[static_cast<size_t>(host)] = false;
    return true;
  }
  int rank = -1;
  std::string text;
  if (!parse_stack(payload, map_.world_size(), &rank, &text) || !lives_there(rank)) return false;
  stacks_[rank] = std::move(text);
  return true;
}

std::vector<Undecided> StallFacts::undecided(const Coordinator& coordinator, size_t ids) {
  std::vector<Undecided> all = coordinator.undecided();
  waiting_there_[static_cast<size_t>(map_.host)] = waiting_here(ids);
  std::map<uint32_t, Waiting> by_id;
  for (const auto& of_host : waiting_there_) {
    for (const Waiting& waiting : of_host.entries) {
      Waiting& merged = by_id[waiting.id];
      merged.waited_ms = std::max(merged.waited_ms, waiting.waited_ms);
      merged.ranks.insert(merged.ranks.end(), waiting.ranks.begin(), waiting.ranks.end());
    }
  }
  for (auto& [id, waiting] : by_id) {
    Undecided item;
    std::vector<int> members;
    if (!coordinator.describe(id, &item, &members)) continue;
    item.since = static_cast<double>(clock_.now_ns()) * 1e-9 - static_cast<double>(waiting.waited_ms) * 1e-3;
    const auto known = std::ranges::find(all, id, &Undecided::id);
    if (known != all.end()) {
      waiting.ranks.insert(waiting.ranks.end(), known->arrived.begin(), known->arrived.end());
      // Its name now: an unnamed call may take the turn of another operation.
      item.name = std::move(known->name);
      item.plain_name = std::move(known->plain_name);
      item.descriptor = std::move(known->descriptor);
      all.erase(known);
    }
    for (const int rank : members) {
      const bool here = std::ranges::find(waiting.ranks, rank) != waiting.ranks.end();
      if (here || !coordinator.has_joined(rank)) (here ? item.arrived : item.missing).push_back(rank);
    }
    if (!item.arrived.empty() && !item.missing.empty()) all.push_back(std::move(item));
  }
  return all;
}

std::vector<int> StallFacts::blocked() const {
  std::vector<int> all;
  for (const WhoWaits& of_host : waiting_there_) all.insert(all.end(), of_host.blocked.begin(), of_host.blocked.end());
  return all;
}

void StallFacts::ask_for_stack_here(int rank) {
  const auto local = std::ranges::find(map_.ranks_here, rank) - map_.ranks_here.begin();
  board_.ask_for_stack(static_cast<uint32_t>(local));
  stacks_asked_.push_back(rank);
}

void StallFacts::ask_for_stacks(const std::vector<int>& ranks) {
  stacks_.clear();
  for (const int rank : ranks) {
    if (map_.host_of(rank) == map_.host) {
      ask_for_stack_here(rank);
    } else {
      uplink_.send(map_.host_of(rank), FrameKind::kStackWanted, stack_wanted_payload(rank));
    }
  }
}

void StallFacts::collect_stacks() {
  std::erase_if(stacks_asked_, [this](int rank) {
    const auto local = std::ranges::find(map_.ranks_here, rank) - map_.ranks_here.begin();
    std::string text;
    if (!board_.take_stack(static_cast<uint32_t>(local), &text)) return false;
    if (map_.coordinates()) {
      stacks_[rank] = std::move(text);
    } else {
      send_up(FrameKind::kStack, stack_payload(rank, text));
    }
    return true;
  });
}

}  // namespace hvd
