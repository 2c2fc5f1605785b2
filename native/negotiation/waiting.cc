// SPDX-License-Identifier: Apache-2.0
#include "negotiation/waiting.h"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace hvd {
namespace {

// A relay answers for hosts that are silent, for rank 0 waits for 2 s (liveness/stall.cc).
constexpr uint64_t kPatienceNs = 1000000000;
constexpr size_t kMostRanksTold = 1u << 20;  // so that a frame has half of kMaxFrameBytes

WhoWaits merged(const std::vector<WhoWaits>& all) {
  std::map<uint32_t, Waiting> by_id;
  WhoWaits one;
  for (const WhoWaits& of_host : all) {
    for (const Waiting& waiting : of_host.entries) {
      Waiting& known = by_id[waiting.id];
      known.id = waiting.id;
      known.waited_ms = std::max(known.waited_ms, waiting.waited_ms);
      known.ranks.insert(known.ranks.end(), waiting.ranks.begin(), waiting.ranks.end());
    }
    one.blocked.insert(one.blocked.end(), of_host.blocked.begin(), of_host.blocked.end());
  }
  for (auto& [id, waiting] : by_id) one.entries.push_back(std::move(waiting));
  return one;
}

}  // namespace

StallFacts::StallFacts(const HostMap& map, uint64_t late_ms, Board& board, Uplink& uplink, Clock& clock)
    : map_(map), late_ms_(late_ms), board_(board), uplink_(uplink), clock_(clock) {
  const size_t others = map_.coordinates() || map_.relays() ? map_.tree.below(map_.host).size() : 0;
  waiting_there_.resize(others + 1);  // this host comes first
  asked_who_waits_.assign(others + 1, false);
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
  if (!all_have_told()) {
    if (clock_.now_ns() >= asked_ns_ + kPatienceNs) tell_of_group();
    return;
  }
  WhoWaits waiting = waiting_here(ids);
  const auto is_late = [this](const Waiting& item) { return item.waited_ms >= late_ms_; };
  if (std::ranges::none_of(waiting.entries, is_late)) waiting = {};
  if (!waiting.entries.empty() || told_waiting_) {
    tell(std::move(waiting));
  } else if (has_news_) {
    tell_of_group();
  }
}

void StallFacts::tell(WhoWaits waiting) {
  told_waiting_ = !waiting.entries.empty();
  waiting_there_.front() = std::move(waiting);
  tell_of_group();
}

// Of one host, where there are no others. What has been waited for longest comes first, if it is too much.
void StallFacts::tell_of_group() {
  WhoWaits all = merged(waiting_there_);
  size_t ranks = 0;
  for (const Waiting& waiting : all.entries) ranks += waiting.ranks.size();
  if (ranks > kMostRanksTold) {
    std::ranges::sort(all.entries, std::greater(), &Waiting::waited_ms);
    for (; ranks > kMostRanksTold; all.entries.pop_back()) ranks -= all.entries.back().ranks.size();
  }
  send_up(FrameKind::kWaiting, waiting_payload(all));
  asked_who_waits_.assign(asked_who_waits_.size(), false);
  has_news_ = false;
}

void StallFacts::answer(size_t ids) {
  WhoWaits waiting = waiting_here(ids);
  if (!map_.relays()) {
    tell(std::move(waiting));
    return;
  }
  told_waiting_ = !waiting.entries.empty();
  waiting_there_.front() = std::move(waiting);
  asked_ns_ = clock_.now_ns();
  asked_who_waits_.assign(asked_who_waits_.size(), true);
  asked_who_waits_.front() = false;
  for (const int host : map_.tree.below(map_.host)) uplink_.send(host, FrameKind::kWhoWaits, {});
}

bool StallFacts::take_for_group(int host, FrameKind kind, const std::string& payload) {
  const auto lives_there = [&](int rank) { return map_.host_of(rank) == host; };
  if (kind == FrameKind::kWaiting) {
    const auto place = static_cast<size_t>(host - map_.host);
    const bool was_asked = asked_who_waits_[place];
    if (!take_waiting(place, payload, lives_there)) return false;
    has_news_ = true;
    if (was_asked && all_have_told()) tell_of_group();
    return true;
  }
  int rank = -1;
  std::string text;
  if (!parse_stack(payload, map_.world_size(), &rank, &text) || !lives_there(rank)) return false;
  send_up(kind, payload);
  return true;
}

template <class LivesThere>
bool StallFacts::take_waiting(size_t from, const std::string& payload, const LivesThere& lives_there) {
  WhoWaits waiting;
  if (!parse_waiting(payload, map_.world_size(), &waiting)) return false;
  const auto is_sound = [&](const Waiting& item) { return std::ranges::all_of(item.ranks, lives_there); };
  if (!std::ranges::all_of(waiting.entries, is_sound) || !std::ranges::all_of(waiting.blocked, lives_there)) {
    return false;
  }
  waiting_there_[from] = std::move(waiting);
  asked_who_waits_[from] = false;
  return true;
}

void StallFacts::ask_who_waits() {
  for (int group = 1; group < map_.tree.groups(); ++group) {
    asked_who_waits_[static_cast<size_t>(group)] = true;
    uplink_.send(map_.tree.relay_of(group), FrameKind::kWhoWaits, {});
  }
}

bool StallFacts::take(int group, FrameKind kind, const std::string& payload) {
  const auto lives_there = [&](int rank) { return map_.group_of(rank) == group; };
  if (kind == FrameKind::kWaiting) return take_waiting(static_cast<size_t>(group), payload, lives_there);
  int rank = -1;
  std::string text;
  if (!parse_stack(payload, map_.world_size(), &rank, &text) || !lives_there(rank)) return false;
  stacks_[rank] = std::move(text);
  return true;
}

std::vector<Undecided> StallFacts::undecided(const Coordinator& coordinator, size_t ids) {
  std::vector<Undecided> all = coordinator.undecided();
  waiting_there_.front() = waiting_here(ids);
  WhoWaits everywhere = merged(waiting_there_);
  for (Waiting& waiting : everywhere.entries) {
    const uint32_t id = waiting.id;
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
      const int relay = map_.tree.relay_of(map_.group_of(rank));
      uplink_.send(relay, FrameKind::kStackWanted, stack_wanted_payload(rank));
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
