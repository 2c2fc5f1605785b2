// SPDX-License-Identifier: Apache-2.0
// Rank 0's decisions, on their way to every host; recalls, and names that go.
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
    for (int group = 1; group < map_.tree.groups(); ++group) {
      uplink_.send(map_.tree.relay_of(group), FrameKind::kRecords, frame);
    }
    uplink_.end_batch();
  }
  return log_.apply(effects.decisions, nullptr);
}

Status Leader::spread_recalls(Effects* effects) {
  for (const uint32_t id : std::exchange(effects->recalls, {})) {
    if (id >= kMaxEntries) continue;
    HVD_RETURN_IF_ERROR(say_pending());
    for (int group = 1; group < map_.tree.groups(); ++group) {
      if (coordinator_->counts_on(id, group)) {
        uplink_.send(map_.tree.relay_of(group), FrameKind::kRecall, recall_payload(id));
      }
    }
    if (coordinator_->counts_on(id, 0)) HVD_RETURN_IF_ERROR(answer_recall(id, effects));
  }
  return {};
}

void Leader::spread_questions(Effects* effects) {
  const std::vector<uint32_t> questions = std::exchange(effects->retires, {});
  const int groups = map_.tree.groups();
  std::vector<std::vector<uint32_t>> asked(static_cast<size_t>(groups));
  for (int group = 0; group < groups; ++group) {
    for (const uint32_t id : questions) {
      if (coordinator_->counts_on(id, group)) asked[static_cast<size_t>(group)].push_back(id);
    }
  }
  for (int group = 1; group < groups; ++group) {
    const std::vector<uint32_t>& ids = asked[static_cast<size_t>(group)];
    if (!ids.empty()) uplink_.send(map_.tree.relay_of(group), FrameKind::kMayRetire, ids_payload(ids));
  }
  for (const uint32_t id : asked.front()) {
    coordinator_->may_retire(0, id, log_.is_idle(id), effects);
  }
}

// `effects`: where the coordinator is of this process.
Status Leader::answer_recall(uint32_t id, Effects* effects) {
  const Recalled found = board_.recall(id);
  if (coordinates()) {
    coordinator_->recalled(0, id, found, effects);
    return {};
  }
  // Rank 0 waits for what is complete on this host, and would otherwise wait until this leader speaks next.
  HVD_RETURN_IF_ERROR(say_pending());
  Relay::Answers answers;
  if (relay_.has_value()) {
    relay_->recalled(0, {id, found, {}}, &answers);
  } else {
    answers.recalled.push_back({id, found, {}});
  }
  send_answers(answers);
  return {};
}

Status Leader::tell_retired(bool* any) {
  *any = false;
  const std::vector<uint32_t> ids = log_.take_read_retirements();
  if (ids.empty()) return {};
  HVD_RETURN_IF_ERROR(pass_on());
  if (relay_.has_value()) {
    Relay::Answers answers;
    for (const uint32_t id : ids) relay_->retired(0, id, &answers);
    send_answers(answers);
    return {};
  }
  if (!coordinates()) {
    send_up(FrameKind::kRetired, ids_payload(ids));
    return {};
  }
  Effects effects;
  for (const uint32_t id : ids) coordinator_->retired(0, id, &effects);
  *any = !effects.decisions.empty();
  return spread(std::move(effects));
}

}  // namespace hvd
