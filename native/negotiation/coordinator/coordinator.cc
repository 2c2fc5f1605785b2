// SPDX-License-Identifier: Apache-2.0
#include "negotiation/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "negotiation/arena.h"
#include "negotiation/frames.h"
#include "negotiation/names.h"

namespace hvd {
namespace {

// `allreduce.grad.3` and `broadcast.grad.3` are two names about one subject. If every rank waits for one of them, but
// not all for the same, none of these operations can ever run, and an error beats a stall.
std::string subject_of(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

bool is_any(const std::vector<bool>& values) { return std::find(values.begin(), values.end(), true) != values.end(); }

}  // namespace

Coordinator::Coordinator(std::vector<int> host_of_rank, NameLimits limits)
    : host_of_rank_(std::move(host_of_rank)),
      hosts_(*std::ranges::max_element(host_of_rank_) + 1),
      ids_(static_cast<size_t>(hosts_), limits) {
  std::vector<int> all;
  for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) all.push_back(static_cast<int>(rank));
  joined_.assign(all.size(), false);
  counted_in_.resize(all.size());
  add_set(0, std::move(all));
}

void Coordinator::add_set(int32_t set, std::vector<int> ranks) {
  Set& added = sets_[set];
  added.ranks = std::move(ranks);
  added.members_of_host.assign(static_cast<size_t>(hosts_), 0);
  added.hosts = 0;
  added.joined = 0;
  for (const int rank : added.ranks) {
    added.hosts += added.members_of_host[host_of_rank_[rank]]++ == 0 ? 1 : 0;
    added.joined += joined_[static_cast<size_t>(rank)] ? 1 : 0;
  }
}

void Coordinator::remove_set(int32_t set) {
  Set& removed = sets_[set];
  removed.ranks.clear();
  // The number's next set has other members, which need a new definition of each name. All ranks have read the log so
  // far, so the ids are free at once, except an id that hosts were asked about and will still answer for.
  std::vector<size_t> indices;
  for (const auto& [name, index] : removed.by_name) indices.push_back(index);
  std::sort(indices.begin(), indices.end());
  for (const size_t index : indices) {
    const uint32_t id = entries_[index].id;
    std::vector<bool> answered = entries_[index].host_answered;
    const int missing = entries_[index].answers_missing;
    forget(index);
    if (id != kNoId) ids_.abandon(id, std::move(answered), missing);
  }
}

bool Coordinator::is_member(int rank, int32_t set) const {
  const auto found = sets_.find(set);
  return found != sets_.end() && std::binary_search(found->second.ranks.begin(), found->second.ranks.end(), rank);
}

std::string Coordinator::in_words(const Entry& entry, std::string_view descriptor) {
  return quote_name(entry.name, descriptor) + (entry.set <= 0 ? "" : " of process set " + std::to_string(entry.set));
}

size_t Coordinator::find_or_create(int32_t set, const std::string& name) {
  auto& by_name = sets_[set].by_name;
  const auto found = by_name.find(name);
  if (found != by_name.end()) return found->second;
  size_t index = entries_.size();
  if (gaps_.empty()) {
    entries_.emplace_back();
  } else {
    index = gaps_.back();
    gaps_.pop_back();
  }
  Entry& entry = entries_[index];
  entry.set = set;
  entry.name = name;
  entry.recalled = is_pair(set);
  entry.host_ready.assign(static_cast<size_t>(hosts_), false);
  entry.host_answered.assign(static_cast<size_t>(hosts_), false);
  entry.host_ready_to_come.assign(static_cast<size_t>(hosts_), false);
  entry.round_of_host.resize(static_cast<size_t>(hosts_));
  by_name.emplace(name, index);
  return index;
}

void Coordinator::forget(size_t index) {
  Entry& entry = entries_[index];
  sets_[entry.set].by_name.erase(entry.name);
  answers_missing_ -= entry.answers_missing;
  if (entry.defined()) ids_.forget_entry(entry.id);
  entry = Entry();
  gaps_.push_back(index);
}

bool Coordinator::request(const std::vector<Requester>& ranks, int32_t set, const std::string& name,
                          const std::string& descriptor, double now, Effects* effects) {
  if (Descriptor wanted; is_receive(descriptor)) {
    if (ranks.size() != 1 || is_pair(set) || !Descriptor::decode(descriptor, &wanted)) return false;
    return receive_from_any({ranks.front(), set, name, descriptor, wanted.root_rank, now}, effects);
  }
  if (!add_slow(ranks, set, name, Answer{descriptor, ""}, now, effects)) return false;
  if (!is_pair(set)) return true;
  if (const auto& known = sets_[set].by_name; known.contains(name)) match(known.at(name), effects);
  return true;
}

bool Coordinator::refuse(int rank, int32_t set, const std::string& name, const std::string& why, double now,
                         Effects* effects) {
  return add_slow({{rank, true}}, set, name, Answer{"", why.empty() ? "its call failed" : why}, now, effects);
}

bool Coordinator::add_slow(const std::vector<Requester>& ranks, int32_t set_number, const std::string& name,
                           Answer answer, double now, Effects* effects) {
  if (is_pair(set_number) && !is_of_pair(name, set_number)) return false;
  if (is_pair(set_number) && !sets_.contains(set_number)) {
    std::vector<int> pair = ranks_of_pair(set_number);
    if (static_cast<size_t>(pair.back()) >= host_of_rank_.size()) return false;
    add_set(set_number, std::move(pair));
  }
  const auto may_ask = [&](const Requester& from) {
    return is_member(from.rank, set_number) && !has_joined(from.rank);
  };
  if (ranks.empty() || !std::ranges::all_of(ranks, may_ask)) return false;
  const size_t index = find_or_create(set_number, name);
  Entry* entry = &entries_[index];
  if (std::ranges::any_of(ranks, [&](const Requester& from) { return entry->slow.contains(from.rank); })) return false;
  last_event_ = now;
  if (entry->slow.empty()) {
    if (!entry->is_open()) entry->since = now;
    sets_[set_number].slow_by_subject[subject_of(name)].push_back(index);
  }
  recall(entry, effects);
  auto known = std::find(entry->answers.begin(), entry->answers.end(), answer);
  if (known == entry->answers.end()) known = entry->answers.insert(known, std::move(answer));
  const auto place = static_cast<uint32_t>(known - entry->answers.begin());
  for (const Requester& from : ranks) entry->slow.emplace(from.rank, Slow{place, from.waits});
  came_last_ = ranks.back().rank;
  decide(index, effects);
  return true;
}

void Coordinator::recall(Entry* entry, Effects* effects) {
  if (std::exchange(entry->recalled, true)) return;
  const Set& set = sets_[entry->set];
  for (int host = 0; host < hosts(); ++host) {
    if (entry->host_ready[host]) entry->counted += set.members_of_host[host];
    // There is nothing to recall of an undefined entry, which was never counted, or on a host without members.
    const bool counts = entry->defined() && set.members_of_host[host] > 0;
    entry->host_answered[host] = !counts;
    entry->answers_missing += counts ? 1 : 0;
  }
  answers_missing_ += entry->answers_missing;
  if (entry->answers_missing > 0) effects->recalls.push_back(entry->id);
}

bool Coordinator::recalled(int host, uint32_t id, const Recalled& found, Effects* effects, const RoundOfRank& others) {
  Entry* entry = entry_of(id);
  if (entry == nullptr) {  // its set has been removed meanwhile
    if (!ids_.take_late_answer(host, id, effects)) return false;
    end_if_all_joined(effects);
    return true;
  }
  if (found.count > sets_[entry->set].members_of_host[host]) return false;
  if (!entry->recalled || entry->host_answered[host]) return true;
  came_last_ = -1;
  entry->host_answered[host] = true;
  --entry->answers_missing;
  --answers_missing_;
  entry->round_of_host[host] = found.round;
  entry->round_of_rank.insert(others.begin(), others.end());
  entry->host_ready_to_come[host] = found.complete && !entry->host_ready[host];
  entry->counted += found.count;
  decide(ids_.entry_of(id), effects);
  end_if_all_joined(effects);
  return true;
}

bool Coordinator::host_ready(int host, uint32_t id, double now, Effects* effects, int last_rank) {
  Entry* entry = entry_of(id);
  if (entry == nullptr || !counts_on(id, host)) return false;
  if (entry->host_ready[host]) return true;
  if (!entry->is_open()) entry->since = now;
  last_event_ = now;
  came_last_ = last_rank;
  entry->host_ready[host] = true;
  ++entry->hosts_ready;
  if (entry->recalled) {
    entry->counted += sets_[entry->set].members_of_host[host];
    entry->host_ready_to_come[host] = false;
    decide(ids_.entry_of(id), effects);
    end_if_all_joined(effects);
  } else if (entry->hosts_ready == sets_[entry->set].hosts) {
    effects->decisions.push_back({RecordKind::kReady, id, true, {}, false, last_rank});
    finish(entry);
    touch(id);
  }
  return true;
}

void Coordinator::decide(size_t index, Effects* effects) {
  decide_if_complete(index, effects);
  if (!entries_[index].slow.empty()) decide_conflict(index, effects);
}

void Coordinator::decide_if_complete(size_t index, Effects* effects) {
  Entry* entry = &entries_[index];
  const size_t here = entry->counted + entry->slow.size();
  const Set& set = sets_[entry->set];
  // Counts first: this is asked at every request, and all that follows looks at every host or rank.
  if (entry->answers_missing > 0 || here == 0 || here + static_cast<size_t>(set.joined) < set.ranks.size()) return;
  if (is_any(entry->host_ready_to_come)) return;
  const std::vector<int> none_from = absent(*entry);
  if (here + none_from.size() < set.ranks.size()) return;
  if (Status why = verdict(*entry, none_from); !why.ok()) {
    fail(index, std::move(why), {}, effects);
    return;
  }
  std::string agreed = entry->descriptor();
  if (entry->receive.has_value()) agreed = with_kind(std::move(agreed), HVD_RECEIVE);
  if (entry->defined() && entry->definition == agreed) {
    conclude(index, {{RecordKind::kReady, kNoId, true, {}, false, came_last_}}, effects);
    return;
  }
  entry->definition = agreed;
  Writer payload;
  payload.put_string(entry->name).put_string(agreed);
  conclude(
      index,
      {{RecordKind::kDefine, kNoId, true, payload.take()}, {RecordKind::kReady, kNoId, false, {}, false, came_last_}},
      effects);
}

// Why an operation cannot run without these ranks.
Status Coordinator::without(const Entry& entry, const std::string& agreed, const std::vector<int>& none_from) {
  Descriptor descriptor;
  if (none_from.empty() || !Descriptor::decode(agreed, &descriptor) || descriptor.kind == HVD_ALLREDUCE) return {};
  const bool one = none_from.size() == 1;
  return {HVD_JOINED,
          list_ranks(none_from, kShownRanks) + (one ? " has" : " have") + " joined and " + (one ? "gives" : "give") +
              " no data to " + in_words(entry, agreed) + ": expected an allreduce, got " + name_of(descriptor.kind) +
              "\nhint: until all ranks have joined, only allreduce can go on (it gets zeros from those that have)",
          none_from.front()};
}

// Why this round cannot run. The value of most ranks is the expected one; of equally many, that of the lowest rank.
Status Coordinator::verdict(const Entry& entry, const std::vector<int>& none_from) const {
  std::map<std::string_view, std::vector<int>> ranks_by_descriptor;
  for (const int rank : sets_.at(entry.set).ranks) {
    if (const auto found = entry.slow.find(rank); found != entry.slow.end()) {
      const Answer& answer = entry.answer_of(found->second);
      if (!answer.refusal.empty()) {
        const std::string what = in_words(entry, entry.descriptor());
        return {HVD_REFUSED, "rank " + std::to_string(rank) + " could not call " + what + ": " + answer.refusal, rank};
      }
      ranks_by_descriptor[answer.descriptor].push_back(rank);
    } else if (!std::ranges::binary_search(none_from, rank)) {
      ranks_by_descriptor[entry.definition].push_back(rank);  // it came the fast way
    }
  }
  if (ranks_by_descriptor.size() < 2) {
    const bool told = !ranks_by_descriptor.empty();  // not, where a host counts ranks that have joined
    return without(entry, told ? std::string(ranks_by_descriptor.begin()->first) : entry.definition, none_from);
  }

  const auto& [expected, expected_by] = *std::ranges::min_element(ranks_by_descriptor, {}, [](const auto& group) {
    return std::pair(-static_cast<int64_t>(group.second.size()), group.second.front());
  });
  std::string text = "the ranks disagree about " + in_words(entry, expected);
  int culprit = -1;
  const char* hint = nullptr;
  Descriptor want, got;
  Descriptor::decode(expected, &want);
  for (const auto& [bytes, ranks] : ranks_by_descriptor) {
    if (bytes == expected) continue;
    Descriptor::decode(bytes, &got);
    const Difference differs = difference(want, got);
    if (culprit < 0) culprit = ranks.front();
    if (hint == nullptr) hint = differs.hint;
    text += "; " + list_ranks(ranks, kShownRanks) + ": " + differs.text + " (expected as on " +
            list_ranks(expected_by, kShownRanks) + ")";
  }
  return {HVD_MISMATCH, text + "\nhint: " + hint, culprit};
}

// All members wait, but for different operations about one subject. A rank that does not wait may still submit the
// others' operation.
void Coordinator::decide_conflict(size_t index, Effects* effects) {
  const std::string subject = subject_of(entries_[index].name);
  Set& set = sets_[entries_[index].set];
  const std::vector<size_t> indices = set.slow_by_subject[subject];
  if (indices.size() < 2) return;
  std::vector<bool> waits(host_of_rank_.size(), false);
  size_t waiting = 0;
  std::string text = "the ranks call different operations";
  for (const size_t candidate : indices) {
    const Entry& other = entries_[candidate];
    if (other.counted > 0 || other.answers_missing > 0 || is_any(other.host_ready_to_come)) return;
    std::vector<int> ranks;
    for (const auto& [rank, slow] : other.slow) {
      if (!slow.waits || waits[rank]) return;
      waits[rank] = true;
      ++waiting;
      ranks.push_back(rank);
    }
    text += "; " + list_ranks(ranks, kShownRanks) + ": " + in_words(other, other.descriptor());
  }
  for (const int rank : set.ranks) waiting += has_joined(rank) && !waits[rank] ? 1 : 0;
  if (waiting < set.ranks.size()) return;
  text += "\nhint: all ranks must call the same operations; look for a branch on the rank";
  for (const size_t failed : indices) {
    // A rank that has read the first of these errors may submit another one's entry before it reads that one.
    std::vector<int> ranks;
    for (const auto& [rank, slow] : entries_[failed].slow) ranks.push_back(rank);
    fail(failed, {HVD_MISMATCH, text}, std::move(ranks), effects);
  }
}

void Coordinator::fail(size_t index, Status why, std::vector<int> ranks, Effects* effects) {
  const Entry& entry = entries_[index];
  std::string of_receive;
  if (const auto& receive = entry.receive; receive.has_value()) {  // its rank knows the call by another name
    of_receive = failure_payload({receive->set, receive->name, why, {receive->from.rank}});
    std::erase(ranks = sets_[entry.set].ranks, receive->from.rank);
  }
  std::string payload = failure_payload({entry.set, entry.name, std::move(why), std::move(ranks)});
  conclude(index, {{RecordKind::kError, kNoId, true, std::move(payload)}}, effects);
  if (!of_receive.empty()) ids_.run_once({{RecordKind::kError, kNoId, true, std::move(of_receive)}}, effects);
}

void Coordinator::finish(Entry* entry) {
  if (!entry->slow.empty()) {
    auto& by_subject = sets_[entry->set].slow_by_subject;
    auto& indices = by_subject[subject_of(entry->name)];
    std::erase(indices, static_cast<size_t>(entry - entries_.data()));
    if (indices.empty()) by_subject.erase(subject_of(entry->name));
  }
  entry->slow.clear();
  entry->answers.clear();
  entry->counted = 0;
  entry->hosts_ready = 0;
  entry->recalled = sets_[entry->set].joined > 0 || is_pair(entry->set);
  entry->receive.reset();
  entry->round_of_rank.clear();
  std::fill(entry->round_of_host.begin(), entry->round_of_host.end(), std::nullopt);
  std::fill(entry->host_ready.begin(), entry->host_ready.end(), false);
}

// Says what has been decided about an entry of the slow way. One without a number gets one if it is defined and there
// is room for it; otherwise this was all, and nothing of it is kept.
void Coordinator::conclude(size_t index, std::vector<Decision> decisions, Effects* effects) {
  Entry& entry = entries_[index];
  finish(&entry);
  const uint64_t wanted = Arena::piece_bytes(decisions.front().payload.size());
  if (!entry.defined() && decisions.front().kind == RecordKind::kDefine) ids_.take_for(index, wanted, &entry.id);
  if (entry.defined()) {
    touch(entry.id);
    for (Decision& decision : decisions) {
      decision.stays_recalled = decision.reset && entry.recalled && !is_pair(entry.set);
      ids_.say(entry.id, std::move(decision), effects);
    }
    if (ids_.are_crowded()) make_room(0, effects);  // a definition has become longer
    return;
  }
  forget(index);
  ids_.run_once(std::move(decisions), effects);
  make_room(wanted, effects);
}

void Coordinator::make_room(uint64_t wanted_bytes, Effects* effects) {
  const auto asked = [this](size_t index) {
    return entries_[index].may_go() ? &sets_[entries_[index].set].members_of_host : nullptr;
  };
  ids_.make_room(wanted_bytes, asked, effects);
}

bool Coordinator::may_retire(int host, uint32_t id, bool idle, Effects* effects) {
  std::optional<bool> all_idle;
  if (!ids_.take_answer(host, id, idle, &all_idle)) return false;
  if (!all_idle.has_value()) return true;
  const Entry* entry = entry_of(id);
  if (entry != nullptr && (!*all_idle || !entry->may_go())) {  // in use after all
    ids_.keep(id);
    return true;
  }
  if (entry != nullptr) forget(ids_.entry_of(id));  // else its set has been removed meanwhile
  ids_.evict(id, effects);
  return true;
}

bool Coordinator::retired(int host, uint32_t id, Effects* effects) {
  bool is_free = false;
  if (!ids_.take_retirement(host, id, effects, &is_free)) return false;
  if (is_free) end_if_all_joined(effects);
  return true;
}

}  // namespace hvd
