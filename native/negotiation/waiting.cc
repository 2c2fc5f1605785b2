// SPDX-License-Identifier: Apache-2.0
// The facts of stall reports: which ranks wait for which entries, and which are blocked. A host's in-flight
// rows tell which of its ranks wait for a defined entry; only the coordinator knows the ranks that wait for a new name.
#include <algorithm>
#include <utility>

#include "negotiation/leader.h"

namespace hvd {

WhoWaits Leader::waiting_here() {
  WhoWaits all;
  const uint64_t now_ms = clock_.now_ns() / 1000000 + 1;
  for (uint32_t id = 0; id < text_read_at_.size(); ++id) {
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
    if (since_ms != 0 && now_ms >= since_ms + settings_.late_ms / 2) all.blocked.push_back(rank_of(local));
  }
  return all;
}

void Leader::tell_waiting() {
  if (coordinates() || settings_.late_ms == 0) return;
  WhoWaits waiting = waiting_here();
  const auto is_late = [this](const Waiting& item) { return item.waited_ms >= settings_.late_ms; };
  if (std::ranges::none_of(waiting.entries, is_late)) waiting = {};
  if (!waiting.entries.empty() || told_waiting_) say_who_waits(waiting);
}

void Leader::say_who_waits(const WhoWaits& waiting) {
  told_waiting_ = !waiting.entries.empty();
  send_up(FrameKind::kWaiting, waiting_payload(waiting));
}

void Leader::ask_who_waits() {
  for (int host = 0; host < map_.hosts(); ++host) {
    if (host == map_.host) continue;
    asked_who_waits_[static_cast<size_t>(host)] = true;
    uplink_.send(host, FrameKind::kWhoWaits, {});
  }
}

bool Leader::take_facts(int host, FrameKind kind, const std::string& payload) {
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

// Rank 0. Entries that another host has told do not grow older here: they may be over since.
std::vector<Undecided> Leader::undecided() {
  std::vector<Undecided> all = coordinator_->undecided();
  waiting_there_[static_cast<size_t>(map_.host)] = waiting_here();
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
    if (!coordinator_->describe(id, &item, &members)) continue;
    item.since = now_seconds() - static_cast<double>(waiting.waited_ms) * 1e-3;
    const auto known = std::ranges::find(all, id, &Undecided::id);
    if (known != all.end()) {
      waiting.ranks.insert(waiting.ranks.end(), known->arrived.begin(), known->arrived.end());
      all.erase(known);
    }
    for (const int rank : members) {
      const bool here = std::ranges::find(waiting.ranks, rank) != waiting.ranks.end();
      if (here || !coordinator_->has_joined(rank)) (here ? item.arrived : item.missing).push_back(rank);
    }
    if (!item.arrived.empty() && !item.missing.empty()) all.push_back(std::move(item));
  }
  return all;
}

std::vector<int> Leader::blocked() const {
  std::vector<int> all;
  for (const WhoWaits& of_host : waiting_there_) all.insert(all.end(), of_host.blocked.begin(), of_host.blocked.end());
  return all;
}

void Leader::ask_here(int rank) {
  const auto local = std::ranges::find(map_.ranks_here, rank) - map_.ranks_here.begin();
  board_.ask_for_stack(static_cast<uint32_t>(local));
  stacks_asked_.push_back(rank);
}

void Leader::ask_for_stacks(const std::vector<int>& ranks) {
  stacks_.clear();
  for (const int rank : ranks) {
    if (map_.host_of(rank) == map_.host) {
      ask_here(rank);
    } else {
      uplink_.send(map_.host_of(rank), FrameKind::kStackWanted, stack_wanted_payload(rank));
    }
  }
}

// Passes on what ranks of this host have answered.
void Leader::collect_stacks() {
  std::erase_if(stacks_asked_, [this](int rank) {
    const auto local = std::ranges::find(map_.ranks_here, rank) - map_.ranks_here.begin();
    std::string text;
    if (!board_.take_stack(static_cast<uint32_t>(local), &text)) return false;
    if (coordinates()) {
      stacks_[rank] = std::move(text);
    } else {
      send_up(FrameKind::kStack, stack_payload(rank, text));
    }
    return true;
  });
}

}  // namespace hvd
