// SPDX-License-Identifier: Apache-2.0
#include "negotiation/member.h"

#include <algorithm>
#include <utility>

#include "negotiation/frames.h"
#include "negotiation/names.h"
#include "negotiation/point_to_point.h"

namespace hvd {
namespace {

// How many unnamed calls may be undecided at once; a later one waits for an earlier one's place.
constexpr uint64_t kUnnamedEntries = 64;
constexpr uint32_t kNoSlot = UINT32_MAX;

}  // namespace

Member::Member(const HostMap& map, Board& board, Clock& clock, Publisher& publisher)
    : map_(map), board_(board), clock_(clock), publisher_(publisher) {
  add_set(0);
}

void Member::add_set(int32_t set) { sets_.try_emplace(set); }

// Nothing is in flight in it.
void Member::remove_set(int32_t set) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return;
  for (const auto& [name, slot] : found->second.slots) {
    Entry& entry = entries_[slot];
    if (entry.id.has_value()) slot_of_id_[*entry.id] = kNoSlot;
    entry = Entry{entry.serial + 1};
    gaps_.push_back(slot);
  }
  sets_.erase(found);
}

bool Member::takes_part_in(uint32_t id) const {
  const int32_t set = id < kMaxEntries ? board_.set_of(id) : 0;
  return set == 0 || sets_.contains(set);  // 0: what nearly every record is about
}

EntryRef Member::find_or_add(int32_t set, const std::string& name) {
  auto& slots = sets_.at(set).slots;
  if (const auto found = slots.find(name); found != slots.end()) {
    return {found->second, entries_[found->second].serial};
  }
  auto slot = static_cast<uint32_t>(entries_.size());
  if (gaps_.empty()) {
    entries_.emplace_back();
  } else {
    slot = gaps_.back();
    gaps_.pop_back();
  }
  Entry& entry = entries_[slot];
  entry.used = true;
  entry.set = set;
  entry.name = std::make_shared<const std::string>(name);
  slots.emplace(*entry.name, slot);
  return {slot, entry.serial};
}

EntryRef Member::next_unnamed(int32_t set) {
  return find_or_add(set, std::string(kUnnamedPrefix) + std::to_string(sets_.at(set).unnamed++ % kUnnamedEntries));
}

bool Member::knows(EntryRef entry) const {
  return entry.slot < entries_.size() && entries_[entry.slot].used && entries_[entry.slot].serial == entry.serial;
}

std::optional<uint32_t> Member::id_of(EntryRef entry) const {
  return knows(entry) ? entries_[entry.slot].id : std::nullopt;
}

bool Member::is_duplicate(EntryRef entry) const {
  const ContributionPtr& call = entries_[entry.slot].in_flight;
  return call != nullptr && !call->is_refusal;
}

std::string Member::name_in_flight(int32_t set) const {
  for (const auto& [name, slot] : sets_.at(set).slots) {
    if (entries_[slot].in_flight != nullptr) return std::string(name);
  }
  return "";
}

void Member::forget_if_idle(uint32_t slot) {
  Entry& entry = entries_[slot];
  if (!entry.used || entry.id.has_value() || entry.in_flight != nullptr) return;
  if (const auto set = sets_.find(entry.set); set != sets_.end()) set->second.slots.erase(*entry.name);
  entry = Entry{entry.serial + 1};
  gaps_.push_back(slot);
}

Member::Announcement Member::submit(EntryRef ref, const ContributionPtr& call, bool* begun) {
  Entry& entry = at(ref);
  call->entry = ref;
  call->name = entry.name;
  *begun = entry.in_flight == nullptr;
  if (*begun) return begin(&entry, call);
  entry.deferred.push_back(call);
  ++deferred_;
  return {};
}

Member::Announcement Member::begin(Entry* entry, const ContributionPtr& call) {
  entry->in_flight = call;
  call->begun_ns = clock_.now_ns();
  // The row first: a leader that shuts the fast way looks at the rows after that.
  if (entry->id.has_value()) board_.set_in_flight(*entry->id, call->begun_ns / 1000000 + 1);
  const bool may_be_counted = !call->is_refusal && entry->id.has_value() && !is_pair(entry->set);
  const bool is_known = may_be_counted && entry->definition == call->descriptor;
  if (!is_known) return ask(*entry, *call);
  const Arrived arrived = board_.arrive(*entry->id);
  if (arrived.outcome == Arrived::Outcome::kRecalled) return ask(*entry, *call);
  entry->counted_in = arrived.round;
  if (arrived.outcome == Arrived::Outcome::kCounted) return {};
  board_.set_last_arrival(*entry->id, {map_.rank, call->begun_ns});
  // The next round begins before anybody can learn that this one is complete: a rank that learns it may come again at
  // once.
  publisher_.begin_next_round(*entry->id);
  return {Completed{*entry->id, call->total_bytes, call->sync}, false, call->sync};
}

Member::Announcement Member::ask(const Entry& entry, const Contribution& call) {
  ++slow_requests_;
  if (call.is_refusal) {
    board_.send_to_leader(FrameKind::kRefuse, refuse_payload({map_.rank, entry.set, *entry.name, call.refusal}));
  } else {
    RequestFrame request{{{map_.rank, call.is_only}}, entry.set, *entry.name, std::string(call.descriptor)};
    board_.send_to_leader(FrameKind::kRequest, request_payload(request));
  }
  return {{}, true, call.sync};
}

void Member::clear_row(const Entry& entry) {
  if (entry.id.has_value()) board_.set_in_flight(*entry.id, 0);
}

Member::Finished Member::finish(const ContributionPtr& call) {
  Finished finished;
  if (call == join_) {
    join_ = nullptr;
    return finished;
  }
  if (!knows(call->entry) || at(call->entry).in_flight != call) return finished;  // zeros of a rank that has joined
  const uint32_t slot = call->entry.slot;
  Entry& entry = entries_[slot];
  entry.in_flight = nullptr;
  entry.counted_in.reset();
  clear_row(entry);
  if (!entry.deferred.empty()) {
    finished.next = std::move(entry.deferred.front());
    entry.deferred.pop_front();
    finished.of_next = begin(&entry, finished.next);
    finished.joins = --deferred_ == 0 && join_ != nullptr;
  }
  forget_if_idle(slot);
  return finished;
}

std::vector<ContributionPtr> Member::give_up_all() {
  std::vector<ContributionPtr> calls;
  if (join_ != nullptr) calls.push_back(join_);
  for (Entry& entry : entries_) {
    if (entry.in_flight == nullptr) continue;
    calls.push_back(entry.in_flight);
    calls.insert(calls.end(), entry.deferred.begin(), entry.deferred.end());
    entry.deferred.clear();
  }
  deferred_ = 0;
  return calls;
}

Member::Announcement Member::join(const ContributionPtr& call) {
  join_ = call;
  // As the user sees it, calls that wait for their turn have been submitted: they come first.
  return deferred_ == 0 ? say_join() : Announcement{};
}

Member::Announcement Member::say_join() {
  JoinFrame join{map_.rank, {}};
  for (const Entry& entry : entries_) {
    if (entry.counted_in.has_value()) join.counted[*entry.id] = *entry.counted_in;
  }
  ++slow_requests_;
  board_.set_joined(true);
  board_.send_to_leader(FrameKind::kJoin, join_payload(join));
  return {{}, true, true};
}

Member::Entry* Member::entry_of(uint32_t id) {
  if (id >= slot_of_id_.size() || slot_of_id_[id] == kNoSlot) return nullptr;
  return &entries_[slot_of_id_[id]];
}

Status Member::apply(Record record, Applied* out) {
  if (is_about_entry(record.kind) && !takes_part_in(record.id)) return {};
  switch (record.kind) {
    case RecordKind::kDefine:
      return apply_definition(record.id);
    case RecordKind::kError:
      return apply_error(record.id, out);
    case RecordKind::kReady:
      return apply_ready(record.id, out);
    case RecordKind::kRetire:
      apply_retirement(record.id);
      return {};
    case RecordKind::kJoin:
      return apply_join(record.id, out);
    case RecordKind::kClose:
    case RecordKind::kLeave:
      return {};  // not about names
    case RecordKind::kNone:
      break;
  }
  return {HVD_INTERNAL, "a record in shared memory cannot be read"};
}

Status Member::apply_definition(uint32_t id) {
  Definition definition;
  if (id >= kMaxEntries || !parse_definition(board_.definition(id), &definition)) {
    return {HVD_INTERNAL, "a definition in shared memory cannot be read"};
  }
  if (!sets_.contains(definition.set)) return {};
  const EntryRef ref = find_or_add(definition.set, definition.name);
  if (slot_of_id_.size() <= id) slot_of_id_.resize(id + 1, kNoSlot);
  slot_of_id_[id] = ref.slot;
  at(ref).id = id;
  at(ref).definition = std::move(definition.descriptor);
  return {};
}

Status Member::apply_error(uint32_t id, Applied* out) {
  Failure failure;
  if (id >= kMaxEntries || !parse_failure(board_.error(id), map_.world_size(), &failure)) {
    return {HVD_INTERNAL, "an error in shared memory cannot be read"};
  }
  const auto& ranks = failure.ranks;
  if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), map_.rank) == ranks.end()) return {};
  const auto set = sets_.find(failure.set);
  if (set == sets_.end()) return {};
  const auto found = set->second.slots.find(failure.name);
  if (found == set->second.slots.end() || entries_[found->second].in_flight == nullptr) return {};
  out->what = Applied::What::kFailed;
  out->call = entries_[found->second].in_flight;
  out->status = std::move(failure.why);
  return {};
}

Status Member::never_called() const {
  return {HVD_INTERNAL, "rank " + std::to_string(map_.rank) + " was told to run an operation that it never called"};
}

Status Member::apply_ready(uint32_t id, Applied* out) {
  Entry* const entry = entry_of(id);
  if (entry != nullptr && is_receive(entry->definition)) {
    Message message;
    if (parse_message(*entry->name, &message) && message.to == map_.rank) return apply_received(message, *entry, out);
  }
  if (entry != nullptr && entry->in_flight == nullptr && join_ != nullptr) {
    out->what = Applied::What::kZeros;
    out->entry = {slot_of_id_[id], entry->serial};
    out->set = entry->set;
    out->name = entry->name;
    out->descriptor = entry->definition;
    return {};
  }
  if (entry == nullptr || entry->in_flight == nullptr || entry->in_flight->is_refusal) {
    return never_called();
  }
  out->what = Applied::What::kReady;
  out->call = entry->in_flight;
  out->waited_ns = clock_.now_ns() - out->call->begun_ns;
  if (out->waited_ns < kShortWaitNs) return {};
  // This rank may have read the log late.
  const LastArrival last = board_.last_arrival(id);
  if (last.rank < 0) return {};
  const bool was_last = last.rank == map_.rank || last.ns < out->call->begun_ns;
  out->waited_ns = was_last ? 0 : std::min(out->waited_ns, last.ns - out->call->begun_ns);
  out->last_rank = last.rank;
  return {};
}

// The call is in flight under another name, in the set that its sender was chosen from.
Status Member::apply_received(const Message& message, const Entry& entry, Applied* out) {
  const auto set = sets_.find(message.set);
  if (set != sets_.end()) {
    const auto found = set->second.slots.find(name_of_receive(message.to, message.tag));
    if (found != set->second.slots.end()) out->call = entries_[found->second].in_flight;
  }
  if (out->call == nullptr) return never_called();
  out->what = Applied::What::kReceives;
  out->set = entry.set;
  out->descriptor = entry.definition;
  return {};
}

// Whatever is in flight under the name is ready and runs, or came too late to be counted and took the slow way.
void Member::apply_retirement(uint32_t id) {
  Entry* const entry = entry_of(id);
  if (entry == nullptr) return;
  clear_row(*entry);
  entry->id.reset();
  entry->definition.clear();
  entry->counted_in.reset();
  forget_if_idle(std::exchange(slot_of_id_[id], kNoSlot));
}

// Nothing is under way by now, in any set. The ranks have submitted different numbers of unnamed calls; from here on
// they count alike again.
Status Member::apply_join(uint32_t last_rank, Applied* out) {
  board_.set_joined(false);
  for (auto& [number, set] : sets_) set.unnamed = 0;
  if (join_ == nullptr || last_rank >= static_cast<uint32_t>(map_.world_size())) {
    return {HVD_INTERNAL, "rank " + std::to_string(map_.rank) + " was told that all ranks have joined, but it has not"};
  }
  out->what = Applied::What::kJoined;
  out->call = join_;
  return {};
}

std::string Member::snapshot() const {
  Writer text;
  std::map<std::pair<int32_t, std::string>, const Entry*> by_name;
  for (const Entry& entry : entries_) {
    if (entry.used) by_name.emplace(std::pair(entry.set, *entry.name), &entry);
  }
  const auto put_call = [&text](const ContributionPtr& call) {
    if (call != nullptr) text.put_string(call->descriptor).put_string(call->refusal);
    text.put(call != nullptr);
  };
  for (const auto& [key, entry] : by_name) {
    text.put(key.first).put_string(key.second).put(entry->id.value_or(UINT32_MAX)).put_string(entry->definition);
    text.put(entry->counted_in.value_or(UINT32_MAX)).put(entry->deferred.size());
    put_call(entry->in_flight);
    for (const ContributionPtr& call : entry->deferred) put_call(call);
  }
  for (const auto& [number, set] : sets_) text.put(number).put(set.unnamed);
  put_call(join_);
  return text.take();
}

}  // namespace hvd
