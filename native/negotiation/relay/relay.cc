// SPDX-License-Identifier: Apache-2.0
#include "negotiation/relay/relay.h"

#include <algorithm>

#include "negotiation/point_to_point.h"

namespace hvd {

void Relay::Awaited::expect(const Members& of) {
  from_.assign(of.of_host.size(), false);
  for (size_t place = 0; place < from_.size(); ++place) from_[place] = of.of_host[place] > 0;
  missing_ = of.hosts;
}

void Relay::Awaited::expect_of(size_t place, size_t hosts) {
  if (from_.size() < hosts) from_.resize(hosts, false);
  missing_ += from_[place] ? 0 : 1;
  from_[place] = true;
}

bool Relay::Awaited::take(size_t place) {
  if (place >= from_.size() || !from_[place]) return false;
  from_[place] = false;
  --missing_;
  return true;
}

void Relay::Awaited::put(Writer* text) const {
  for (const bool awaited : from_) text->put(awaited);
  text->put('|');
}

Relay::Relay(const HostMap& map)
    : map_(map), hosts_(static_cast<size_t>(map.tree.end_of(map.tree.group_of(map.host)) - map.host)) {}

std::vector<int> Relay::add_set(int32_t set, const std::vector<int>& ranks) {
  Members members{std::vector<uint32_t>(hosts_), 0};
  std::vector<int> here;
  for (size_t place = 0; place < hosts_; ++place) {
    for (const int rank : map_.topology.ranks_of(map_.host + static_cast<int>(place))) {
      if (!std::ranges::binary_search(ranks, rank)) continue;
      here.push_back(rank);
      members.hosts += members.of_host[place]++ == 0 ? 1 : 0;
    }
  }
  sets_[set] = std::make_shared<const Members>(std::move(members));
  std::ranges::sort(here);
  return here;
}

Relay::Entry* Relay::defined(uint32_t id) {
  Entry* const entry = entry_of(id);
  return entry == nullptr || entry->members == nullptr ? nullptr : entry;
}

bool Relay::counts_on(uint32_t id, size_t place) const { return entries_[id].members->of_host[place] > 0; }

void Relay::note(const Decision& decision) {
  if (!is_about_entry(decision.kind)) return;
  if (entries_.size() <= decision.id) entries_.resize(decision.id + 1);
  Entry& entry = entries_[decision.id];
  if (decision.kind == RecordKind::kRetire) {
    entry.readers.expect_all(hosts_);
    return;
  }
  if (Definition definition; decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    const int32_t set = definition.set;
    if (is_pair(set) && !sets_.contains(set)) add_set(set, ranks_of_pair(set));
    const auto found = sets_.find(set);
    entry.members = found == sets_.end() ? nullptr : found->second;
  }
  entry.ready.assign(hosts_, false);
  entry.hosts_ready = 0;
}

bool Relay::ask_recall(uint32_t id) {
  Entry* const entry = defined(id);
  if (entry == nullptr || entry->members->hosts == 0) return false;
  entry->counts.expect(*entry->members);
  entry->ready_to_come.clear();
  entry->found.assign(hosts_, {});
  return true;
}

bool Relay::ask_may_retire(uint32_t id) {
  Entry* const entry = defined(id);
  if (entry == nullptr || entry->members->hosts == 0) return false;
  entry->idles.expect(*entry->members);
  entry->idle = true;
  return true;
}

bool Relay::host_ready(size_t place, const HostReady& said, Answers* answers) {
  Entry* const entry = defined(said.id);
  if (entry == nullptr || entry->members->of_host[place] == 0) return false;
  if (entry->ready[place]) return true;
  entry->ready[place] = true;
  if (++entry->hosts_ready == entry->members->hosts) answers->ready.push_back(said);
  if (entry->ready_to_come.take(place)) answer_recall(said.id, entry, answers);
  return true;
}

bool Relay::recalled(size_t place, const RecalledFrame& answer, Answers* answers) {
  Entry* const entry = defined(answer.id);
  if (entry == nullptr || answer.found.count > entry->members->of_host[place] || !answer.others.empty()) return false;
  if (!entry->counts.take(place)) return false;
  entry->found[place] = answer.found;
  if (answer.found.complete && !entry->ready[place]) entry->ready_to_come.expect_of(place, hosts_);
  answer_recall(answer.id, entry, answers);
  return true;
}

// Once there is nothing more to come.
void Relay::answer_recall(uint32_t id, Entry* entry, Answers* answers) {
  if (!entry->counts.is_empty() || !entry->ready_to_come.is_empty()) return;
  RecalledFrame merged{id, {}, {}};
  merged.found.complete = entry->hosts_ready == entry->members->hosts;
  bool is_first = true;
  for (size_t place = 0; place < hosts_; ++place) {
    const uint32_t members = entry->members->of_host[place];
    if (members == 0) continue;
    const Recalled& found = entry->found[place];
    if (std::exchange(is_first, false)) merged.found.round = found.round;
    if (!merged.found.complete) merged.found.count += entry->ready[place] ? members : found.count;
    // Hosts number the rounds of an entry by what they have seen of its number.
    if (found.round == merged.found.round) continue;
    for (const int rank : map_.topology.ranks_of(map_.host + static_cast<int>(place))) {
      merged.others.emplace(rank, found.round);
    }
  }
  entry->found = {};
  answers->recalled.push_back(std::move(merged));
}

bool Relay::may_retire(size_t place, const RetireAnswer& answer, Answers* answers) {
  Entry* const entry = entry_of(answer.id);
  if (entry == nullptr || !entry->idles.take(place)) return false;
  entry->idle = entry->idle && answer.idle;
  if (entry->idles.is_empty()) answers->may_retire.push_back({answer.id, entry->idle});
  return true;
}

bool Relay::retired(size_t place, uint32_t id, Answers* answers) {
  Entry* const entry = entry_of(id);
  if (entry == nullptr || !entry->readers.take(place)) return false;
  if (entry->readers.is_empty()) answers->retired.push_back(id);
  return true;
}

std::string Relay::snapshot() const {
  Writer text;
  for (const Entry& entry : entries_) {
    text.put(entry.members != nullptr).put(entry.idle);
    for (const bool ready : entry.ready) text.put(ready);
    for (const Awaited* awaited : {&entry.counts, &entry.ready_to_come, &entry.idles, &entry.readers}) {
      awaited->put(&text);
    }
    for (const Recalled& found : entry.found) text.put(found.round).put(found.count).put(found.complete);
  }
  return text.take();
}

}  // namespace hvd
