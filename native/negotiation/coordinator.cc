// SPDX-License-Identifier: Apache-2.0
#include "negotiation/coordinator.h"

#include <algorithm>

#include "negotiation/names.h"

namespace hvd {
namespace {

constexpr size_t kShownRanks = 8;

// `allreduce.grad.3` and `broadcast.grad.3` are two names about one subject. Where every rank waits for one of them but
// not all for the same, nobody will ever be served, and saying so beats a stall.
std::string subject_of(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

}  // namespace

Coordinator::Coordinator(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  std::vector<int> all;
  for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    hosts_ = std::max(hosts_, host_of_rank_[rank] + 1);
    all.push_back(static_cast<int>(rank));
  }
  add_set(0, std::move(all));
}

void Coordinator::add_set(int32_t set, std::vector<int> ranks) {
  Set& added = sets_[set];
  added.ranks = std::move(ranks);
  added.members_of_host.assign(static_cast<size_t>(hosts_), 0);
  added.hosts = 0;
  for (const int rank : added.ranks) added.hosts += added.members_of_host[host_of_rank_[rank]]++ == 0 ? 1 : 0;
}

void Coordinator::remove_set(int32_t set) {
  sets_[set].ranks.clear();
  // Whoever has the number next has other members, who must hear of each name's definition anew.
  for (const auto& [name, id] : sets_[set].id_of_name) {
    entries_[id].defined = false;
    entries_[id].definition.clear();
  }
}

bool Coordinator::is_member(int rank, int32_t set) const {
  const auto found = sets_.find(set);
  return found != sets_.end() && std::binary_search(found->second.ranks.begin(), found->second.ranks.end(), rank);
}

std::string Coordinator::in_words(const Entry& entry, std::string_view descriptor) {
  return quote_name(entry.name, descriptor) + (entry.set == 0 ? "" : " of process set " + std::to_string(entry.set));
}

Coordinator::Entry* Coordinator::find_or_create(int rank, int32_t set, const std::string& name, Effects* effects) {
  auto& id_of_name = sets_[set].id_of_name;
  const auto found = id_of_name.find(name);
  if (found != id_of_name.end()) return &entries_[found->second];
  if (entries_.size() == kMaxEntries) {
    Decision decision{RecordKind::kError, kMaxEntries, false, {}};
    Writer payload;
    payload.put(set).put_string(name).put(rank).put_string(
        "more than " + std::to_string(kMaxEntries) +
        " different tensor names in one job\nhint: give a tensor the same name in every step, or none");
    payload.put(uint32_t{0});
    decision.payload = payload.take();
    effects->decisions.push_back(std::move(decision));
    return nullptr;
  }
  Entry entry;
  entry.set = set;
  entry.name = name;
  entry.id = static_cast<uint32_t>(entries_.size());
  entry.host_ready.assign(static_cast<size_t>(hosts_), false);
  entry.host_answered.assign(static_cast<size_t>(hosts_), false);
  id_of_name.emplace(name, entry.id);
  entries_.push_back(std::move(entry));
  return &entries_.back();
}

void Coordinator::request(int rank, int32_t set, const std::string& name, const std::string& descriptor, bool waits,
                          double now, Effects* effects) {
  add_slow(rank, set, name, Slow{descriptor, "", waits}, now, effects);
}

void Coordinator::refuse(int rank, int32_t set, const std::string& name, const std::string& why, double now,
                         Effects* effects) {
  add_slow(rank, set, name, Slow{"", why.empty() ? "its call failed" : why, true}, now, effects);
}

void Coordinator::add_slow(int rank, int32_t set_number, const std::string& name, Slow slow, double now,
                           Effects* effects) {
  Entry* entry = find_or_create(rank, set_number, name, effects);
  if (entry == nullptr) return;
  Set& set = sets_[set_number];
  if (entry->slow.empty()) {
    if (entry->hosts_ready == 0) entry->since = now;
    set.slow_by_subject[subject_of(name)].push_back(entry->id);
    entry->answers_missing = 0;
    entry->counted = 0;
    for (int host = 0; host < hosts(); ++host) {
      if (entry->host_ready[host]) entry->counted += set.members_of_host[host];
      // An undefined entry has never been counted anywhere: there is nothing to recall. Nor where nobody is a member.
      const bool counts = entry->defined && set.members_of_host[host] > 0;
      entry->host_answered[host] = !counts;
      entry->answers_missing += counts ? 1 : 0;
    }
    if (entry->defined) effects->recalls.push_back(entry->id);
  }
  entry->slow.insert_or_assign(rank, std::move(slow));
  decide_if_complete(entry, effects);
  if (!entry->slow.empty()) decide_conflict(entry, effects);
}

bool Coordinator::recalled(int host, uint32_t id, uint32_t count, Effects* effects) {
  if (id >= entries_.size() || !entries_[id].defined || count > sets_[entries_[id].set].members_of_host[host]) {
    return false;
  }
  Entry* entry = &entries_[id];
  if (entry->slow.empty() || entry->host_answered[host]) return true;
  entry->host_answered[host] = true;
  --entry->answers_missing;
  // A host that was complete has begun a fresh count: what it gives now is of that one, and zero.
  if (!entry->host_ready[host]) entry->counted += count;
  decide_if_complete(entry, effects);
  if (!entry->slow.empty()) decide_conflict(entry, effects);
  return true;
}

bool Coordinator::host_ready(int host, uint32_t id, double now, Effects* effects) {
  if (id >= entries_.size() || !entries_[id].defined || !counts_on(id, host)) return false;
  if (entries_[id].host_ready[host]) return true;
  Entry* entry = &entries_[id];
  if (entry->hosts_ready == 0 && entry->slow.empty()) entry->since = now;
  entry->host_ready[host] = true;
  ++entry->hosts_ready;
  if (!entry->slow.empty()) {
    entry->counted += sets_[entry->set].members_of_host[host];
    decide_if_complete(entry, effects);
  } else if (entry->hosts_ready == sets_[entry->set].hosts) {
    finish(entry);
    effects->decisions.push_back({RecordKind::kReady, id, false, {}});
  }
  return true;
}

void Coordinator::decide_if_complete(Entry* entry, Effects* effects) {
  if (entry->answers_missing > 0 || entry->counted + entry->slow.size() < sets_[entry->set].ranks.size()) {
    return;
  }
  int culprit = -1;
  const std::string text = verdict(*entry, &culprit);
  if (!text.empty()) {
    fail(entry, culprit, text, {}, effects);
    return;
  }
  const std::string& agreed = entry->slow.begin()->second.descriptor;
  if (!entry->defined || entry->definition != agreed) {
    entry->defined = true;
    entry->definition = agreed;
    Writer payload;
    payload.put_string(entry->name).put_string(agreed);
    effects->decisions.push_back({RecordKind::kDefine, entry->id, true, payload.take()});
    effects->decisions.push_back({RecordKind::kReady, entry->id, false, {}});
  } else {
    effects->decisions.push_back({RecordKind::kReady, entry->id, true, {}});
  }
  finish(entry);
}

// Why this round cannot run; empty where it can. What most ranks say is the expected.
std::string Coordinator::verdict(const Entry& entry, int* culprit) const {
  std::map<std::string, std::vector<int>> ranks_by_descriptor;
  for (const auto& [rank, slow] : entry.slow) {
    if (!slow.refusal.empty()) {
      *culprit = rank;
      return "rank " + std::to_string(rank) + " could not submit " + in_words(entry) + ": " + slow.refusal;
    }
    ranks_by_descriptor[slow.descriptor].push_back(rank);
  }
  const bool counted = entry.counted > 0;
  if (ranks_by_descriptor.size() == 1 && (!counted || ranks_by_descriptor.begin()->first == entry.definition))
    return "";

  // Ties go to the group of the lowest rank; the ranks that came the fast way all hold the definition.
  auto size_of = [&](const auto& group) {
    return group.second.size() + (counted && group.first == entry.definition ? entry.counted : 0);
  };
  const auto* expected = &*ranks_by_descriptor.begin();
  for (const auto& group : ranks_by_descriptor) {
    if (size_of(group) > size_of(*expected) ||
        (size_of(group) == size_of(*expected) && group.second.front() < expected->second.front())) {
      expected = &group;
    }
  }
  std::string expected_bytes = expected->first;
  std::string expected_by = list_ranks(expected->second, kShownRanks);
  if (counted && (expected_bytes == entry.definition || size_of(*expected) < entry.counted)) {
    expected_bytes = entry.definition;
    expected_by = "the other ranks";
  }
  std::string text = "the ranks disagree about " + in_words(entry);
  Descriptor want, got;
  Descriptor::decode(expected_bytes, &want);
  for (const auto& [bytes, ranks] : ranks_by_descriptor) {
    if (bytes == expected_bytes) continue;
    Descriptor::decode(bytes, &got);
    if (*culprit < 0) *culprit = ranks.front();
    text +=
        "; " + list_ranks(ranks, kShownRanks) + ": " + difference(want, got) + " (expected as on " + expected_by + ")";
  }
  if (counted && expected_bytes != entry.definition) {
    Descriptor::decode(entry.definition, &got);
    text += "; the ranks that repeated the last call: " + difference(want, got);
  }
  return text +
         "\nhint: all ranks must give a tensor of one name the same shape, dtype and arguments; look for uneven "
         "batches, or a branch on the rank";
}

// All members wait, but for different operations about one subject. A rank that does not wait may still submit the
// others' operation.
void Coordinator::decide_conflict(Entry* entry, Effects* effects) {
  Set& set = sets_[entry->set];
  const std::vector<uint32_t> ids = set.slow_by_subject[subject_of(entry->name)];
  if (ids.size() < 2) return;
  std::vector<bool> waits(host_of_rank_.size(), false);
  size_t waiting = 0;
  std::string text = "the ranks call different operations";
  for (const uint32_t id : ids) {
    const Entry& other = entries_[id];
    if (other.counted > 0 || other.answers_missing > 0) return;
    std::vector<int> ranks;
    for (const auto& [rank, slow] : other.slow) {
      if (!slow.waits || waits[rank]) return;
      waits[rank] = true;
      ++waiting;
      ranks.push_back(rank);
    }
    text += "; " + list_ranks(ranks, kShownRanks) + ": " + in_words(other);
  }
  if (waiting < set.ranks.size()) return;
  text += "\nhint: all ranks must call the same operations; look for a branch on the rank";
  for (const uint32_t id : ids) {
    // A rank that has read the first of these errors may submit another one's entry before it reads that one.
    std::vector<int> ranks;
    for (const auto& [rank, slow] : entries_[id].slow) ranks.push_back(rank);
    fail(&entries_[id], -1, text, ranks, effects);
  }
}

void Coordinator::fail(Entry* entry, int culprit, const std::string& text, const std::vector<int>& ranks,
                       Effects* effects) {
  Writer payload;
  payload.put(entry->set).put_string(entry->name).put(culprit);
  payload.put_string(std::string_view(text).substr(0, kMaxTextBytes)).put(static_cast<uint32_t>(ranks.size()));
  for (const int rank : ranks) payload.put(rank);
  effects->decisions.push_back({RecordKind::kError, entry->id, true, payload.take()});
  finish(entry);
}

void Coordinator::finish(Entry* entry) {
  if (!entry->slow.empty()) {
    auto& by_subject = sets_[entry->set].slow_by_subject;
    auto& ids = by_subject[subject_of(entry->name)];
    std::erase(ids, entry->id);
    if (ids.empty()) by_subject.erase(subject_of(entry->name));
  }
  entry->slow.clear();
  entry->counted = 0;
  entry->answers_missing = 0;
  entry->hosts_ready = 0;
  std::fill(entry->host_ready.begin(), entry->host_ready.end(), false);
}

std::vector<Undecided> Coordinator::undecided() const {
  std::vector<Undecided> all;
  for (const Entry& entry : entries_) {
    if (entry.slow.empty() && entry.hosts_ready == 0) continue;
    const std::string& descriptor = entry.slow.empty() ? entry.definition : entry.slow.begin()->second.descriptor;
    Undecided item{entry.id, in_words(entry, descriptor), entry.since, {}, {}};
    for (const int rank : sets_.at(entry.set).ranks) {
      const bool here = entry.slow.contains(rank) || entry.host_ready[host_of_rank_[rank]];
      (here ? item.arrived : item.missing).push_back(rank);
    }
    all.push_back(std::move(item));
  }
  return all;
}

bool Coordinator::counts_on(uint32_t id, int host) const {
  return id < entries_.size() && sets_.at(entries_[id].set).members_of_host[host] > 0;
}

bool Coordinator::describe(uint32_t id, std::string* name, std::vector<int>* ranks) const {
  if (id >= entries_.size()) return false;
  *name = in_words(entries_[id], entries_[id].definition);
  *ranks = sets_.at(entries_[id].set).ranks;
  return true;
}

std::string Coordinator::snapshot() const {
  Writer text;
  for (const Entry& entry : entries_) {
    text.put(entry.set).put_string(entry.name).put(entry.defined).put_string(entry.definition).put(entry.counted);
    text.put(entry.answers_missing).put(entry.hosts_ready);
    for (const bool ready : entry.host_ready) text.put(ready);
    for (const bool answered : entry.host_answered) text.put(answered);
    for (const auto& [rank, slow] : entry.slow) text.put(rank).put_string(slow.descriptor).put_string(slow.refusal);
  }
  return text.take();
}

}  // namespace hvd
