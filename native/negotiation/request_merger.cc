// SPDX-License-Identifier: Apache-2.0
#include "negotiation/request_merger.h"

#include <algorithm>
#include <iterator>

namespace hvd {
namespace {

// This long after the first request, the requests go up even if some are missing. The limit does not depend on the
// machine: operations that can run are complete without it. Only errors and stall reports, which a person reads, wait
// for it, and a rank that comes later than this costs one more message.
constexpr uint64_t kHoldNs = 10000000;

}  // namespace

void RequestMerger::remove_set(int32_t set) {
  sets_.erase(set);
  const auto is_of_set = [set](const Name& name) { return name.first == set; };
  std::erase_if(names_, [&](const auto& item) { return is_of_set(item.first); });
  std::erase_if(waiting_, [&](const auto& item) { return is_of_set(item.second); });
  std::erase_if(name_of_id_, [&](const auto& item) { return is_of_set(item.second); });
  std::erase_if(id_of_name_, [&](const auto& item) { return is_of_set(item.first); });
}

std::vector<RequestFrame> RequestMerger::ask(RequestFrame request, uint64_t now_ns) {
  const Name name{request.set, request.name};
  Asked& asked = names_[name];
  for (const Requester& from : request.ranks) asked.ranks.push_back(from.rank);
  if (asked.unsent.empty()) {
    asked.due_ns = now_ns + kHoldNs;
    waiting_.emplace(asked.due_ns, name);
  }
  const auto equal = std::ranges::find(asked.unsent, request.descriptor, &RequestFrame::descriptor);
  if (equal == asked.unsent.end()) {
    asked.unsent.push_back(std::move(request));
  } else {
    equal->ranks.insert(equal->ranks.end(), request.ranks.begin(), request.ranks.end());
  }
  return take_if_complete(name);
}

std::vector<RequestFrame> RequestMerger::join(int rank, CountedIn counted) {
  joined_[rank] = std::move(counted);
  return take_if([this](const Name& name, const Asked& asked) { return is_complete(name, asked); });
}

std::vector<RequestFrame> RequestMerger::recall(uint32_t id, const Recalled& found) {
  recalled_[id] = found;
  const auto name = name_of_id_.find(id);
  return name == name_of_id_.end() ? std::vector<RequestFrame>() : take_if_complete(name->second);
}

void RequestMerger::note(const Decision& decision, int world_size) {
  Definition definition;
  Failure failure;
  if (decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    define(decision.id, definition.set, definition.name);
  } else if (decision.kind == RecordKind::kError && parse_failure(decision.payload, world_size, &failure)) {
    end_round(failure.set, failure.name);
  } else if (decision.kind == RecordKind::kReady) {
    end_round(decision.id);
  } else if (decision.kind == RecordKind::kRetire) {
    retire(decision.id);
  } else if (decision.kind == RecordKind::kJoin) {
    all_have_joined();
  }
}

void RequestMerger::define(uint32_t id, int32_t set, const std::string& name) {
  name_of_id_[id] = {set, name};
  id_of_name_[{set, name}] = id;
}

void RequestMerger::end_round(int32_t set, const std::string& name) {
  forget({set, name});
  if (const auto id = id_of_name_.find({set, name}); id != id_of_name_.end()) recalled_.erase(id->second);
}

void RequestMerger::end_round(uint32_t id) {
  recalled_.erase(id);
  if (const auto name = name_of_id_.find(id); name != name_of_id_.end()) forget(name->second);
}

void RequestMerger::forget(const Name& name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  waiting_.erase({found->second.due_ns, name});
  names_.erase(found);
}

void RequestMerger::retire(uint32_t id) {
  const auto name = name_of_id_.find(id);
  if (name == name_of_id_.end()) return;
  id_of_name_.erase(name->second);
  name_of_id_.erase(name);
  recalled_.erase(id);
}

// The ranks, of those that have not joined, that the answer to a recall has counted.
size_t RequestMerger::counted_of_others(uint32_t id) const {
  const auto found = recalled_.find(id);
  if (found == recalled_.end()) return 0;
  const auto joined = std::ranges::count_if(joined_, [&](const auto& item) {
    const auto round = item.second.find(id);
    return round != item.second.end() && round->second == found->second.round;
  });
  return found->second.count - std::min(found->second.count, static_cast<uint32_t>(joined));
}

bool RequestMerger::is_complete(const Name& name, const Asked& asked) const {
  const auto set = sets_.find(name.first);
  if (set == sets_.end()) return true;  // for the coordinator to refuse
  const auto id = id_of_name_.find(name);
  const size_t counted = id == id_of_name_.end() ? 0 : counted_of_others(id->second);
  // Counts first: this is asked at every request.
  if (asked.ranks.size() + joined_.size() + counted < set->second.size()) return false;
  const auto missing = std::ranges::count_if(set->second, [&](int rank) {
    return !joined_.contains(rank) && std::ranges::find(asked.ranks, rank) == asked.ranks.end();
  });
  return static_cast<size_t>(missing) <= counted;
}

void RequestMerger::take(const Name& name, std::vector<RequestFrame>* taken) {
  Asked& asked = names_.at(name);
  waiting_.erase({asked.due_ns, name});
  std::ranges::move(std::exchange(asked.unsent, {}), std::back_inserter(*taken));
}

std::vector<RequestFrame> RequestMerger::take_if_complete(const Name& name) {
  std::vector<RequestFrame> taken;
  const auto asked = names_.find(name);
  if (asked != names_.end() && !asked->second.unsent.empty() && is_complete(name, asked->second)) take(name, &taken);
  return taken;
}

template <class Wanted>
std::vector<RequestFrame> RequestMerger::take_if(Wanted&& is_wanted) {
  std::vector<Name> wanted;
  for (const auto& [due_ns, name] : waiting_) {
    if (is_wanted(name, names_.at(name))) wanted.push_back(name);
  }
  std::vector<RequestFrame> taken;
  for (const Name& name : wanted) take(name, &taken);
  return taken;
}

std::vector<RequestFrame> RequestMerger::take_late(uint64_t now_ns) {
  std::vector<RequestFrame> taken;
  while (!waiting_.empty() && waiting_.begin()->first <= now_ns) {
    const Name name = waiting_.begin()->second;
    take(name, &taken);
  }
  return taken;
}

std::vector<RequestFrame> RequestMerger::take_of(int rank) {
  return take_if([rank](const Name&, const Asked& asked) {
    return std::ranges::any_of(asked.unsent, [rank](const RequestFrame& request) {
      return std::ranges::find(request.ranks, rank, &Requester::rank) != request.ranks.end();
    });
  });
}

std::string RequestMerger::snapshot() const {
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
