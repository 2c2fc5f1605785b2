// SPDX-License-Identifier: Apache-2.0
#include "negotiation/coordinator/ids.h"

#include <algorithm>
#include <utility>

#include "negotiation/arena.h"

namespace hvd {

bool Ids::take_for(size_t entry, uint64_t bytes, uint32_t* id) {
  const bool has_room =
      cached_ < limits_.names && cached_bytes_ + bytes <= limits_.bytes && bytes_ + bytes <= limits_.all_bytes();
  if (!has_room || !take(id)) return false;
  ids_[*id].entry = entry;
  ++cached_;
  cached_bytes_ += ids_[*id].bytes();  // of the name that had this id when its set was removed
  return true;
}

bool Ids::take(uint32_t* id) {
  if (!free_.empty()) {
    *id = free_.back();
    free_.pop_back();
  } else if (ids_.size() < limits_.ids) {
    *id = static_cast<uint32_t>(ids_.size());
    ids_.emplace_back();
  } else {
    return false;
  }
  ids_[*id].state = Id::State::kTaken;
  return true;
}

void Ids::forget_entry(uint32_t id) {
  ids_[id].entry = kNoEntry;
  --cached_;
  cached_bytes_ -= ids_[id].bytes();
}

void Ids::abandon(uint32_t id, std::vector<bool> answered, int missing) {
  Id& of = ids_[id];
  if (of.state != Id::State::kTaken) return;  // hosts were asked whether it may go, and will still answer
  if (missing == 0) {
    of.state = Id::State::kFree;
    free_.push_back(id);
    return;
  }
  of.state = Id::State::kAbandoned;
  of.expected = std::move(answered);
  of.expected.flip();
  of.answers_missing = missing;
}

// A number that is asked for or retired waits for another answer.
bool Ids::take_late_answer(int host, uint32_t id, Effects* effects) {
  if (id >= ids_.size() || ids_[id].state == Id::State::kFree) return false;
  if (take_answer(host, id, Id::State::kAbandoned) && ids_[id].answers_missing == 0) give_back(id, effects);
  return true;
}

void Ids::say(uint32_t id, Decision decision, Effects* effects) {
  Id& of = ids_[id];
  if (!decision.payload.empty()) {
    uint64_t& has = decision.kind == RecordKind::kDefine ? of.definition_bytes : of.error_bytes;
    const uint64_t more = std::max(has, Arena::piece_bytes(decision.payload.size())) - has;
    has += more;
    bytes_ += more;
    if (of.entry != kNoEntry) cached_bytes_ += more;
  }
  decision.id = id;
  effects->decisions.push_back(std::move(decision));
}

void Ids::run_once(std::vector<Decision> decisions, Effects* effects) {
  uint32_t id = kNoId;
  // Retired entries give their bytes back soon, so it is worth waiting for them.
  const uint64_t wanted = Arena::piece_bytes(decisions.front().payload.size());
  const bool has_bytes = retiring_ == 0 || bytes_ + wanted <= limits_.all_bytes();
  if (!waiting_.empty() || !has_bytes || !take(&id)) {
    waiting_.push_back(std::move(decisions));
    return;
  }
  decisions.front().reset = false;
  for (Decision& decision : decisions) say(id, std::move(decision), effects);
  retire(id, effects);
}

void Ids::retire(uint32_t id, Effects* effects) {
  expect_answers(&ids_[id], Id::State::kRetired, nullptr);
  ++retiring_;
  effects->decisions.push_back({RecordKind::kRetire, id, false, {}});
}

// Of all hosts, or of those that have members.
void Ids::expect_answers(Id* of, Id::State state, const std::vector<uint32_t>* members_of_host) {
  of->state = state;
  of->idle = true;
  of->expected.assign(hosts_, false);
  of->answers_missing = 0;
  for (size_t host = 0; host < of->expected.size(); ++host) {
    of->expected[host] = members_of_host == nullptr || (*members_of_host)[host] > 0;
    of->answers_missing += of->expected[host] ? 1 : 0;
  }
}

bool Ids::take_answer(int host, uint32_t id, Id::State state) {
  if (id >= ids_.size() || ids_[id].state != state || !ids_[id].expected[static_cast<size_t>(host)]) return false;
  ids_[id].expected[static_cast<size_t>(host)] = false;
  --ids_[id].answers_missing;
  return true;
}

void Ids::make_room(uint64_t wanted_bytes, const std::function<const std::vector<uint32_t>*(size_t entry)>& asked,
                    Effects* effects) {
  const bool is_for_bytes = cached_bytes_ + wanted_bytes > limits_.bytes;
  if (questions_ > 0 || (cached_ < limits_.names && !is_for_bytes)) return;
  std::vector<std::pair<uint64_t, uint32_t>> candidates;
  for (uint32_t id = 0; id < ids_.size(); ++id) {
    const size_t entry = ids_[id].entry;
    if (entry != kNoEntry && asked(entry) != nullptr) candidates.emplace_back(ids_[id].used, id);
  }
  std::sort(candidates.begin(), candidates.end());
  uint32_t names = cached_ < limits_.names ? 0 : limits_.evicted_at_once();
  int64_t bytes = is_for_bytes ? static_cast<int64_t>(wanted_bytes + limits_.bytes / 32) : 0;
  for (const auto& [used, id] : candidates) {
    if (names == 0 && bytes <= 0) break;
    names -= names > 0 ? 1 : 0;
    bytes -= static_cast<int64_t>(ids_[id].bytes());
    expect_answers(&ids_[id], Id::State::kAsked, asked(ids_[id].entry));
    ++questions_;
    effects->retires.push_back(id);
  }
}

bool Ids::take_answer(int host, uint32_t id, bool idle, std::optional<bool>* all_idle) {
  if (!take_answer(host, id, Id::State::kAsked)) return false;
  Id& asked = ids_[id];
  asked.idle = asked.idle && idle;
  if (asked.answers_missing > 0) return true;
  --questions_;
  *all_idle = asked.idle;
  return true;
}

void Ids::keep(uint32_t id) {
  ids_[id].state = Id::State::kTaken;
  touch(id);
}

void Ids::evict(uint32_t id, Effects* effects) {
  ++evicted_;
  retire(id, effects);
}

bool Ids::take_retirement(int host, uint32_t id, Effects* effects, bool* is_free) {
  if (!take_answer(host, id, Id::State::kRetired)) return false;
  if (ids_[id].answers_missing > 0) return true;
  --retiring_;
  bytes_ -= std::exchange(ids_[id].definition_bytes, 0) + std::exchange(ids_[id].error_bytes, 0);
  give_back(id, effects);
  *is_free = true;
  return true;
}

void Ids::give_back(uint32_t id, Effects* effects) {
  ids_[id].state = Id::State::kFree;
  free_.push_back(id);
  for (std::deque<std::vector<Decision>> waiting = std::exchange(waiting_, {}); !waiting.empty(); waiting.pop_front()) {
    run_once(std::move(waiting.front()), effects);
  }
}

void Ids::touch(uint32_t id) {
  if (id < ids_.size()) ids_[id].used = ++clock_;
}

void Ids::add_to_snapshot(Writer* text) const {
  std::vector<uint64_t> uses;  // only their order matters
  for (const Id& id : ids_) uses.push_back(id.entry == kNoEntry ? 0 : id.used);
  std::sort(uses.begin(), uses.end());
  for (const Id& id : ids_) {
    const uint64_t used = id.entry == kNoEntry ? 0 : id.used;
    text->put(id.bytes())
        .put(id.state)
        .put(id.idle)
        .put(std::lower_bound(uses.begin(), uses.end(), used) - uses.begin());
    for (const bool expected : id.expected) text->put(expected);
  }
  for (const uint32_t id : free_) text->put(id);
  for (const auto& decisions : waiting_) text->put_string(decisions.front().payload);
}

}  // namespace hvd
