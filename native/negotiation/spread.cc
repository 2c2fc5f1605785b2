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
    for (int host = 0; host < map_.hosts(); ++host) {
      if (host != map_.host) uplink_.send(host, FrameKind::kRecords, frame);
    }
    uplink_.end_batch();
  }
  return log_.apply(effects.decisions, nullptr);
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
    coordinator_->may_retire(map_.host, id, log_.is_idle(id), effects);
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
  send_requests(merger_->recall(id, found));
  return {};
}

Status Leader::tell_retired(bool* any) {
  *any = false;
  const std::vector<uint32_t> ids = log_.take_read_retirements();
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

}  // namespace hvd
