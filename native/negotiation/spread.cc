// SPDX-License-Identifier: Apache-2.0
// Rank 0's decisions, on their way into every host's log; recalls, and names that go.
#include <algorithm>
#include <utility>

#include "negotiation/leader.h"

namespace hvd {

// Rank 0: carries out what the coordinator wants, on all hosts.
Status Leader::spread(Effects effects) {
  while (!effects.recalls.empty()) HVD_RETURN_IF_ERROR(spread_recalls(&effects));
  if (!effects.retires.empty()) spread_questions(&effects);
  if (effects.decisions.empty()) return {};
  if (map_.spans_hosts()) {
    effects.decisions.push_back({RecordKind::kClose, 0, false, {}});
    const std::string frame = records_payload(effects.decisions);
    for (int host = 0; host < map_.hosts(); ++host) {
      if (host != map_.host) uplink_.send(host, FrameKind::kRecords, frame);
    }
    uplink_.end_batch();
  }
  return apply(effects.decisions);
}

Status Leader::spread_recalls(Effects* effects) {
  for (const uint32_t id : std::exchange(effects->recalls, {})) {
    if (id >= kMaxEntries) continue;
    HVD_RETURN_IF_ERROR(say_pending());
    for (int host = 0; host < map_.hosts(); ++host) {
      if (host != map_.host && coordinator_->counts_on(id, host)) {
        uplink_.send(host, FrameKind::kRecall, recall_payload(id));
      }
    }
    if (coordinator_->counts_on(id, map_.host)) HVD_RETURN_IF_ERROR(answer_recall(id, effects));
  }
  return {};
}

void Leader::spread_questions(Effects* effects) {
  const std::vector<uint32_t> questions = std::exchange(effects->retires, {});
  std::vector<std::vector<uint32_t>> asked(static_cast<size_t>(map_.hosts()));
  for (int host = 0; host < map_.hosts(); ++host) {
    for (const uint32_t id : questions) {
      if (coordinator_->counts_on(id, host)) asked[static_cast<size_t>(host)].push_back(id);
    }
  }
  for (int host = 0; host < map_.hosts(); ++host) {
    const std::vector<uint32_t>& ids = asked[static_cast<size_t>(host)];
    if (host != map_.host && !ids.empty()) uplink_.send(host, FrameKind::kMayRetire, ids_payload(ids));
  }
  for (const uint32_t id : asked[static_cast<size_t>(map_.host)]) {
    coordinator_->may_retire(map_.host, id, is_idle_here(id), effects);
  }
}

// `effects`: where the coordinator is of this process.
Status Leader::answer_recall(uint32_t id, Effects* effects) {
  const Recalled found = board_.recall(id);
  if (coordinates()) {
    coordinator_->recalled(map_.host, id, found, effects);
    return {};
  }
  // Rank 0 waits for what is complete on this host, and would otherwise wait until this leader speaks next.
  HVD_RETURN_IF_ERROR(say_pending());
  send_up(FrameKind::kRecalled, recalled_payload({id, found}));
  send_requests(gathering_->recall(id, found));
  return {};
}

// Shuts the fast way, and then looks whether any of the host's ranks is still on its way. A rank writes its in-flight
// row before it arrives, and clears it when it has read the outcome: so one that arrived before, and whose READY may
// not stand in the log yet, shows.
bool Leader::is_idle_here(uint32_t id) {
  if (!board_.retire(id)) return false;
  for (uint32_t rank = 0; rank < map_.ranks_here.size(); ++rank) {
    if (board_.in_flight_since_ms(rank, id) != 0) return false;
  }
  return true;
}

// The retired names that all ranks of this host have read by now: no rank here needs the number any more.
Status Leader::tell_retired(bool* any) {
  *any = false;
  std::vector<uint32_t> ids;
  for (; !retired_here_.empty() && board_.all_have_read(retired_here_.front().end); retired_here_.pop_front()) {
    ids.push_back(retired_here_.front().id);
    board_.release_texts(ids.back());
  }
  if (ids.empty()) return {};
  if (!coordinates()) {
    send_up(FrameKind::kRetired, ids_payload(ids));
    return {};
  }
  Effects effects;
  for (const uint32_t id : ids) coordinator_->retired(map_.host, id, &effects);
  *any = !effects.decisions.empty();
  return spread(std::move(effects));
}

// Writes decisions into this host's log.
Status Leader::apply(const std::vector<Decision>& decisions) {
  for (const Decision& decision : decisions) {
    Status failure;
    if (!write(decision, &failure)) return failure;
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
bool Leader::write(const Decision& decision, Status* failure) {
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
  if (gathering_.has_value()) note_for_gathering(decision);
  if (decision.kind == RecordKind::kLeave) left_[id] = true;
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
  if (decision.kind == RecordKind::kRetire) retired_here_.push_back({position + 1, id});
  return true;
}

// Before the first record of an entry, and whenever its set may have come back with other members.
void Leader::assign(const Decision& decision) {
  Definition definition;
  Failure failure;
  int32_t number = 0;
  if (decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    number = definition.set;
  } else if (parse_failure(decision.payload, map_.world_size(), &failure)) {
    number = failure.set;
  }
  const auto set = sets_.find(number);
  board_.assign(decision.id, number, set == sets_.end() ? 0 : static_cast<uint32_t>(set->second.members.size()));
  if (text_read_at_.size() <= decision.id) text_read_at_.resize(decision.id + 1, 0);
}

void Leader::note_for_gathering(const Decision& decision) {
  Definition definition;
  Failure failure;
  if (decision.kind == RecordKind::kDefine && parse_definition(decision.payload, &definition)) {
    gathering_->define(decision.id, definition.set, definition.name);
  } else if (decision.kind == RecordKind::kError && parse_failure(decision.payload, map_.world_size(), &failure)) {
    gathering_->end_round(failure.set, failure.name);
  } else if (decision.kind == RecordKind::kReady) {
    gathering_->end_round(decision.id);
  } else if (decision.kind == RecordKind::kRetire) {
    gathering_->retire(decision.id);
  } else if (decision.kind == RecordKind::kJoin) {
    gathering_->all_have_joined();
  }
}

// Before all can submit again: arrivals are counted again.
void Leader::back_to_the_fast_way() {
  for (uint32_t id = 0; id < text_read_at_.size(); ++id) {
    if (board_.is_recalled(id)) board_.reset(id, false);
  }
}

}  // namespace hvd
