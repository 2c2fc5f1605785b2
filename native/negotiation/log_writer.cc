// SPDX-License-Identifier: Apache-2.0
#include "negotiation/log_writer.h"

#include <algorithm>

#include "negotiation/frames.h"
#include "negotiation/point_to_point.h"

namespace hvd {

LogWriter::LogWriter(const HostMap& map, Board& board, Clock& clock, Waker& waker, Readers& readers)
    : map_(map),
      board_(board),
      clock_(clock),
      waker_(waker),
      readers_(readers),
      left_(static_cast<size_t>(map.world_size()), false) {}

std::vector<int> LogWriter::add_set(int32_t set, const std::vector<int>& ranks) {
  std::vector<int> members;
  for (const int rank : map_.ranks_here) {
    if (std::ranges::binary_search(ranks, rank)) members.push_back(rank);
  }
  sets_[set] = {static_cast<uint32_t>(members.size()), std::ranges::binary_search(ranks, map_.rank)};
  return members;
}

// Shuts the fast way, and then looks whether any of the host's ranks is still on its way. A rank writes its in-flight
// row before it arrives, and clears it when it has read the outcome: so one that arrived before, and whose READY may
// not stand in the log yet, shows.
bool LogWriter::is_idle(uint32_t id) {
  if (!board_.retire(id)) return false;
  for (uint32_t rank = 0; rank < map_.ranks_here.size(); ++rank) {
    if (board_.in_flight_since_ms(rank, id) != 0) return false;
  }
  return true;
}

std::vector<uint32_t> LogWriter::take_read_retirements() {
  std::vector<uint32_t> ids;
  for (; !retired_.empty() && board_.all_have_read(retired_.front().end); retired_.pop_front()) {
    ids.push_back(retired_.front().id);
    board_.release_texts(ids.back());
  }
  return ids;
}

Status LogWriter::apply(const std::vector<Decision>& decisions, RequestMerger* merger) {
  for (const Decision& decision : decisions) {
    Status failure;
    if (!write(decision, merger, &failure)) return failure;
  }
  // The caller drives: this rank reads on by itself, and ends the batch where it takes part in it.
  const auto concerns_others = [this](const Decision& decision) {
    if (decision.kind == RecordKind::kJoin) return true;
    if (!is_about_entry(decision.kind)) return false;
    const auto set = sets_.find(board_.set_of(decision.id));
    return set == sets_.end() || !set->second.has_leader;
  };
  if (map_.spans_hosts() || board_.anybody_waits() || std::ranges::any_of(decisions, concerns_others)) {
    waker_.ring_others();
  }
  return {};
}

// False: the record does not stand in the log, for want of memory (`*failure`) or because the generation has ended.
bool LogWriter::write(const Decision& decision, RequestMerger* merger, Status* failure) {
  const uint32_t id = decision.id;
  const bool has_text = decision.kind == RecordKind::kDefine || decision.kind == RecordKind::kError;
  if (has_text) {
    assign(decision);
    // Ranks that have joined may not have read the last text. The other ranks have read it: they have submitted since,
    // or this would not have been decided.
    const auto have_read = [&] { return board_.joined_have_read(text_read_at_[id]); };
    if (!readers_.wait_until(have_read, true)) return false;
    const bool stored = decision.kind == RecordKind::kDefine ? board_.write_definition(id, decision.payload)
                                                             : board_.write_error(id, decision.payload);
    if (!stored) {
      *failure = {HVD_OUT_OF_MEMORY, "the memory for tensor names and shapes is full", map_.rank};
      return false;
    }
  }
  if (merger != nullptr) merger->note(decision, map_.world_size());
  if (decision.kind == RecordKind::kLeave) left_[id] = true;
  if (decision.kind == RecordKind::kReady) board_.set_last_arrival(id, {decision.last_rank, clock_.now_ns()});
  // The tally first: a rank that reads the record may submit the next round at once.
  if (decision.reset) {
    board_.reset(id, decision.stays_recalled);
  } else if (has_text) {
    board_.retire(id);
  }
  if (decision.kind == RecordKind::kJoin) back_to_the_fast_way();
  if (!readers_.wait_until([this] { return board_.log_has_room(); }, true)) return false;
  const uint64_t position = board_.append({decision.kind, id});
  if (has_text) text_read_at_[id] = position + 1;
  if (decision.kind == RecordKind::kRetire) retired_.push_back({position + 1, id});
  return true;
}

// Before the first record of an entry, and whenever its set may have come back with other members.
void LogWriter::assign(const Decision& decision) {
  Definition definition;
  Failure failure;
  int32_t number = 0;
  if (decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    number = definition.set;
  } else if (parse_failure(decision.payload, map_.world_size(), &failure)) {
    number = failure.set;
  }
  if (is_pair(number) && !sets_.contains(number)) add_set(number, ranks_of_pair(number));
  const auto set = sets_.find(number);
  board_.assign(decision.id, number, set == sets_.end() ? 0 : set->second.members);
  if (text_read_at_.size() <= decision.id) text_read_at_.resize(decision.id + 1, 0);
}

// Before all can submit again: arrivals are counted again.
void LogWriter::back_to_the_fast_way() {
  for (uint32_t id = 0; id < text_read_at_.size(); ++id) {
    if (board_.is_recalled(id)) board_.reset(id, false);
  }
}

void LogWriter::add_to_snapshot(Writer* text) const {
  for (const Retired& retired : retired_) text->put(retired.end).put(retired.id);
  for (const uint64_t position : text_read_at_) text->put(position);
  for (const bool left : left_) text->put(left);
}

}  // namespace hvd
