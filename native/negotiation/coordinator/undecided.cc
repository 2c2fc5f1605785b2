// SPDX-License-Identifier: Apache-2.0
// The coordinator's reports about itself: undecided entries and their missing ranks, for stall reports; the meaning of
// an id; its whole state, for the model checks.
#include <algorithm>

#include "negotiation/coordinator/coordinator.h"
#include "negotiation/names.h"

namespace hvd {

std::vector<Undecided> Coordinator::undecided() const {
  std::vector<Undecided> all;
  for (const Entry& entry : entries_) {
    if (!entry.is_open()) continue;
    const std::string& descriptor = entry.descriptor();
    Undecided item{entry.id, in_words(entry, descriptor), entry.name, descriptor, entry.since, {}, {}};
    for (const int rank : sets_.at(entry.set).ranks) {
      const bool here = entry.slow.contains(rank) || entry.host_ready[host_of_rank_[rank]];
      if (here || !has_joined(rank)) (here ? item.arrived : item.missing).push_back(rank);
    }
    all.push_back(std::move(item));
  }
  for (const Receive& receive : receives_) {
    Undecided item{kNoId, quote_name(receive.name), receive.name, receive.descriptor, receive.since, {}, {}};
    for (const int rank : sets_.at(receive.set).ranks) {
      const bool here = rank == receive.from.rank;
      if (here || !has_joined(rank)) (here ? item.arrived : item.missing).push_back(rank);
    }
    all.push_back(std::move(item));
  }
  if (joined_ranks_ > 0 && all.empty()) {  // else those who have joined wait for the same ranks, or with them
    Undecided join{kNoId, "join", "", "", last_event_, {}, {}};
    for (const int rank : sets_.at(0).ranks) (has_joined(rank) ? join.arrived : join.missing).push_back(rank);
    all.push_back(std::move(join));
  }
  return all;
}

bool Coordinator::counts_on(uint32_t id, int host) const {
  const Entry* entry = entry_of(id);
  return entry != nullptr && sets_.at(entry->set).members_of_host[host] > 0;
}

bool Coordinator::describe(uint32_t id, Undecided* item, std::vector<int>* ranks) const {
  const Entry* entry = entry_of(id);
  if (entry == nullptr) return false;
  item->id = id;
  item->name = in_words(*entry, entry->definition);
  item->plain_name = entry->name;
  item->descriptor = entry->definition;
  *ranks = sets_.at(entry->set).ranks;
  return true;
}

std::string Coordinator::snapshot() const {
  Writer text;
  std::map<std::pair<int32_t, std::string>, const Entry*> by_name;
  for (const Entry& entry : entries_) {
    if (!entry.name.empty()) by_name.emplace(std::pair(entry.set, entry.name), &entry);
  }
  for (const auto& [key, entry] : by_name) {
    text.put(entry->set).put_string(entry->name).put(entry->id).put_string(entry->definition).put(entry->counted);
    text.put(entry->answers_missing).put(entry->hosts_ready).put(entry->recalled);
    for (const bool ready : entry->host_ready) text.put(ready);
    for (const bool answered : entry->host_answered) text.put(answered);
    for (const bool to_come : entry->host_ready_to_come) text.put(to_come);
    for (const auto& round : entry->round_of_host) text.put(round.has_value()).put(round.value_or(0));
    for (const auto& [rank, round] : entry->round_of_rank) text.put(rank).put(round);
    for (const auto& [rank, slow] : entry->slow) {
      const Answer& answer = entry->answer_of(slow);
      text.put(rank).put_string(answer.descriptor).put_string(answer.refusal);
    }
  }
  for (const Receive& receive : receives_) text.put(receive.set).put_string(receive.name);
  ids_.add_to_snapshot(&text);
  for (const bool joined : joined_) text.put(joined);
  for (const CountedIn& counted : counted_in_) {
    for (const auto& [id, round] : counted) text.put(id).put(round);
    text.put('|');
  }
  text.put(last_joined_);
  return text.take();
}

}  // namespace hvd
