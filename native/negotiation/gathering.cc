// SPDX-License-Identifier: Apache-2.0
#include "negotiation/gathering.h"

#include <algorithm>
#include <iterator>

namespace hvd {
namespace {

// So long after the first request they go up as they are. This is no time that work takes on some machine: whatever
// can run is complete without it. What waits for it is an error or a stall report, which a person reads, and a rank
// that comes later than this costs one more message.
constexpr uint64_t kHoldNs = 10000000;

}  // namespace

void Gathering::remove_set(int32_t set) {
  sets_.erase(set);
  const auto is_of_set = [set](const Name& name) { return name.first == set; };
  std::erase_if(names_, [&](const auto& item) { return is_of_set(item.first); });
  std::erase_if(name_of_id_, [&](const auto& item) { return is_of_set(item.second); });
  std::erase_if(id_of_name_, [&](const auto& item) { return is_of_set(item.first); });
}

void Gathering::ask(RequestFrame request, uint64_t now_ns) {
  Asked& asked = names_[{request.set, request.name}];
  asked.ranks.push_back(request.ranks.front().rank);
  if (asked.unsent.empty()) asked.due_ns = now_ns + kHoldNs;
  const auto equal = std::ranges::find(asked.unsent, request.descriptor, &RequestFrame::descriptor);
  if (equal == asked.unsent.end()) {
    asked.unsent.push_back(std::move(request));
  } else {
    equal->ranks.push_back(request.ranks.front());
  }
}

void Gathering::define(uint32_t id, int32_t set, const std::string& name) {
  name_of_id_[id] = {set, name};
  id_of_name_[{set, name}] = id;
}

void Gathering::end_round(int32_t set, const std::string& name) {
  names_.erase({set, name});
  if (const auto id = id_of_name_.find({set, name}); id != id_of_name_.end()) recalled_.erase(id->second);
}

void Gathering::end_round(uint32_t id) {
  recalled_.erase(id);
  if (const auto name = name_of_id_.find(id); name != name_of_id_.end()) names_.erase(name->second);
}

void Gathering::retire(uint32_t id) {
  const auto name = name_of_id_.find(id);
  if (name == name_of_id_.end()) return;
  id_of_name_.erase(name->second);
  name_of_id_.erase(name);
  recalled_.erase(id);
}

// The ranks, of those that have not joined, that the answer to a recall has counted.
size_t Gathering::counted_of_others(uint32_t id) const {
  const auto found = recalled_.find(id);
  if (found == recalled_.end()) return 0;
  const auto joined = std::ranges::count_if(joined_, [&](const auto& item) {
    const auto round = item.second.find(id);
    return round != item.second.end() && round->second == found->second.round;
  });
  return found->second.count - std::min(found->second.count, static_cast<uint32_t>(joined));
}

bool Gathering::is_complete(const Name& name, const Asked& asked) const {
  const auto set = sets_.find(name.first);
  if (set == sets_.end()) return true;  // for the coordinator to refuse
  const auto missing = std::ranges::count_if(set->second, [&](int rank) {
    return !joined_.contains(rank) && std::ranges::find(asked.ranks, rank) == asked.ranks.end();
  });
  const auto id = id_of_name_.find(name);
  return static_cast<size_t>(missing) <= (id == id_of_name_.end() ? 0 : counted_of_others(id->second));
}

template <class Wanted>
std::vector<RequestFrame> Gathering::take_if(Wanted&& is_wanted) {
  std::vector<RequestFrame> taken;
  for (auto& [name, asked] : names_) {
    if (asked.unsent.empty() || !is_wanted(name, asked)) continue;
    std::ranges::move(std::exchange(asked.unsent, {}), std::back_inserter(taken));
  }
  return taken;
}

std::vector<RequestFrame> Gathering::take_due(uint64_t now_ns) {
  return take_if([&](const Name& name, const Asked& asked) {  //
    return asked.due_ns <= now_ns || is_complete(name, asked);
  });
}

std::vector<RequestFrame> Gathering::take_of(int rank) {
  return take_if(
      [rank](const Name&, const Asked& asked) { return std::ranges::find(asked.ranks, rank) != asked.ranks.end(); });
}

std::vector<RequestFrame> Gathering::take_all() {
  return take_if([](const Name&, const Asked&) { return true; });
}

bool Gathering::is_empty() const { return due_ns() == 0; }

uint64_t Gathering::due_ns() const {
  uint64_t first_ns = 0;
  for (const auto& [name, asked] : names_) {
    if (!asked.unsent.empty() && (first_ns == 0 || asked.due_ns < first_ns)) first_ns = asked.due_ns;
  }
  return first_ns;
}

std::string Gathering::snapshot() const {
  Writer text;
  for (const auto& [name, asked] : names_) {
    text.put(name.first).put_string(name.second);
    for (const int rank : asked.ranks) text.put(rank);
    for (const RequestFrame& request : asked.unsent) {
      text.put_string(request.descriptor);
      for (const Requester& from : request.ranks) text.put(from.rank).put(from.waits);
    }
  }
  for (const auto& [id, found] : recalled_) text.put(id).put(found.round).put(found.count);
  for (const auto& [rank, counted] : joined_) {
    text.put(rank);
    for (const auto& [id, round] : counted) text.put(id).put(round);
  }
  return text.take();
}

}  // namespace hvd
