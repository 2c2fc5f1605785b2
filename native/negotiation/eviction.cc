// SPDX-License-Identifier: Apache-2.0
// The coordinator's numbers: which names have one, which names are asked to give theirs back, and when a number is free
// again.
#include <algorithm>
#include <deque>
#include <utility>

#include "negotiation/coordinator.h"

namespace hvd {

bool Coordinator::take_id(uint32_t* id) {
  if (!free_ids_.empty()) {
    *id = free_ids_.back();
    free_ids_.pop_back();
  } else if (ids_.size() < limits_.ids) {
    *id = static_cast<uint32_t>(ids_.size());
    ids_.emplace_back();
  } else {
    return false;
  }
  ids_[*id].state = Id::State::kTaken;
  return true;
}

void Coordinator::run_once(std::vector<Decision> decisions, Effects* effects) {
  uint32_t id = kNoId;
  // Retired entries give their bytes back soon, so it is worth waiting for them.
  const uint64_t wanted = Arena::piece_bytes(decisions.front().payload.size());
  const bool has_bytes = retiring_ == 0 || bytes_ + wanted <= limits_.all_bytes();
  if (!waiting_.empty() || !has_bytes || !take_id(&id)) {
    waiting_.push_back(std::move(decisions));
    return;
  }
  decisions.front().reset = false;
  for (Decision& decision : decisions) say(id, std::move(decision), effects);
  retire(id, effects);
}

void Coordinator::retire(uint32_t id, Effects* effects) {
  expect_answers(&ids_[id], Id::State::kRetired, nullptr);
  ++retiring_;
  effects->decisions.push_back({RecordKind::kRetire, id, false, {}});
}

// Of all hosts, or of those that have members.
void Coordinator::expect_answers(Id* of, Id::State state, const std::vector<uint32_t>* members_of_host) {
  of->state = state;
  of->idle = true;
  of->expected.assign(static_cast<size_t>(hosts_), false);
  of->answers_missing = 0;
  for (size_t host = 0; host < of->expected.size(); ++host) {
    of->expected[host] = members_of_host == nullptr || (*members_of_host)[host] > 0;
    of->answers_missing += of->expected[host] ? 1 : 0;
  }
}

bool Coordinator::take_answer(int host, uint32_t id, Id::State state) {
  if (id >= ids_.size() || ids_[id].state != state || !ids_[id].expected[static_cast<size_t>(host)]) return false;
  ids_[id].expected[static_cast<size_t>(host)] = false;
  --ids_[id].answers_missing;
  return true;
}

// Asks for the names that were not used for longest, if there are too many, or too many bytes once some more are
// wanted. One question at a time: the next name may find room by itself.
void Coordinator::make_room(uint64_t wanted_bytes, Effects* effects) {
  const bool is_for_bytes = cached_bytes_ + wanted_bytes > limits_.bytes;
  if (questions_ > 0 || (cached_ < limits_.names && !is_for_bytes)) return;
  std::vector<std::pair<uint64_t, uint32_t>> candidates;
  for (uint32_t id = 0; id < ids_.size(); ++id) {
    const Entry* entry = entry_of(id);
    if (entry != nullptr && entry->may_go()) candidates.emplace_back(ids_[id].used, id);
  }
  std::sort(candidates.begin(), candidates.end());
  uint32_t names = cached_ < limits_.names ? 0 : limits_.evicted_at_once();
  int64_t bytes = is_for_bytes ? static_cast<int64_t>(wanted_bytes + limits_.bytes / 32) : 0;
  for (const auto& [used, id] : candidates) {
    if (names == 0 && bytes <= 0) break;
    names -= names > 0 ? 1 : 0;
    bytes -= static_cast<int64_t>(ids_[id].bytes());
    expect_answers(&ids_[id], Id::State::kAsked, &sets_[entry_of(id)->set].members_of_host);
    ++questions_;
    effects->retires.push_back(id);
  }
}

bool Coordinator::may_retire(int host, uint32_t id, bool idle, Effects* effects) {
  if (!take_answer(host, id, Id::State::kAsked)) return false;
  Id& asked = ids_[id];
  asked.idle = asked.idle && idle;
  if (asked.answers_missing > 0) return true;
  --questions_;
  const Entry* entry = entry_of(id);
  if (entry != nullptr && (!asked.idle || !entry->may_go())) {  // in use after all
    asked.state = Id::State::kTaken;
    touch(id);
    return true;
  }
  if (entry != nullptr) forget(asked.entry);  // else its set has been removed meanwhile
  ++evicted_;
  retire(id, effects);
  return true;
}

bool Coordinator::retired(int host, uint32_t id, Effects* effects) {
  if (!take_answer(host, id, Id::State::kRetired)) return false;
  if (ids_[id].answers_missing > 0) return true;
  --retiring_;
  bytes_ -= std::exchange(ids_[id].definition_bytes, 0) + std::exchange(ids_[id].error_bytes, 0);
  give_back(id, effects);
  end_if_all_joined(effects);
  return true;
}

void Coordinator::give_back(uint32_t id, Effects* effects) {
  ids_[id].state = Id::State::kFree;
  free_ids_.push_back(id);
  for (std::deque<std::vector<Decision>> waiting = std::exchange(waiting_, {}); !waiting.empty(); waiting.pop_front()) {
    run_once(std::move(waiting.front()), effects);
  }
}

void Coordinator::touch(uint32_t id) {
  if (id < ids_.size()) ids_[id].used = ++clock_;
}

}  // namespace hvd
