// SPDX-License-Identifier: Apache-2.0
// Ranks that have joined, as the coordinator counts them: what they still contribute, and when all have joined.
#include <algorithm>
#include <utility>

#include "negotiation/coordinator/coordinator.h"

namespace hvd {

bool Coordinator::join(int rank, CountedIn counted, double now, Effects* effects) {
  const auto r = static_cast<size_t>(rank);
  if (joined_[r]) return false;
  joined_[r] = true;
  counted_in_[r] = std::move(counted);
  ++joined_ranks_;
  last_event_ = now;
  last_joined_ = rank;
  came_last_ = -1;
  for (auto& [number, set] : sets_) set.joined += is_member(rank, number) ? 1 : 0;
  for (size_t index = 0; index < entries_.size(); ++index) {
    Entry& entry = entries_[index];
    if (entry.name.empty() || !is_member(rank, entry.set)) continue;
    recall(&entry, effects);
    decide(index, effects);
  }
  end_if_all_joined(effects);
  return true;
}

// Nothing is open by then: to all entries with an arrival, every rank has arrived or will not come.
void Coordinator::end_if_all_joined(Effects* effects) {
  if (joined_ranks_ < joined_.size() || answers_missing_ > 0 || ids_.have_waiting()) return;
  const auto is_under_way = [](const Entry& entry) {
    return entry.is_open() || std::ranges::find(entry.host_ready_to_come, true) != entry.host_ready_to_come.end();
  };
  if (std::ranges::any_of(entries_, is_under_way)) return;
  for (Entry& entry : entries_) entry.recalled = is_pair(entry.set);
  for (auto& [number, set] : sets_) set.joined = 0;
  joined_.assign(joined_.size(), false);
  counted_in_.assign(joined_.size(), {});
  joined_ranks_ = 0;
  effects->decisions.push_back({RecordKind::kJoin, static_cast<uint32_t>(last_joined_), false, {}});
}

// True if a rank that has joined still contributes data, because it submitted before.
bool Coordinator::has_arrived(const Entry& entry, int rank) const {
  const auto host = static_cast<size_t>(host_of_rank_[rank]);
  if (entry.slow.contains(rank) || entry.host_ready[host]) return true;
  const CountedIn& counted = counted_in_[static_cast<size_t>(rank)];
  const auto found = counted.find(entry.id);
  if (found == counted.end()) return false;
  const auto other = entry.round_of_rank.find(rank);
  return other != entry.round_of_rank.end() ? other->second == found->second
                                            : entry.round_of_host[host] == found->second;
}

// The members that have joined and give nothing.
std::vector<int> Coordinator::absent(const Entry& entry) const {
  std::vector<int> ranks;
  const Set& set = sets_.at(entry.set);
  if (set.joined == 0) return ranks;
  for (const int rank : set.ranks) {
    if (has_joined(rank) && !has_arrived(entry, rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace hvd
