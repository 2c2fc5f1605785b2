// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the coordinator under any sequence of frames from any hosts, as rank 0's engine gives them to it. The
// first byte chooses the hosts, then follow pieces: host, kind, two bytes of length, payload. Two kinds that no frame
// has stand for what an honest host would say next: that a name it was asked about may go (or not, where there is a
// payload), and that its ranks have read a RETIRE. The coordinator remembers few names, so that they come and go.
// Whatever it decides, other leaders must be able to read, and the texts must not grow without end. What waits is
// looked through for ranks with different models, too, whose names are a peer's.
#include "negotiation/coordinator/coordinator.h"

#include <deque>
#include <string>
#include <vector>

#include "input.h"
#include "negotiation/frames.h"
#include "negotiation/gradient_lists.h"

using namespace hvd;

namespace {

const std::vector<std::vector<int>> kWorlds = {{0}, {0, 0}, {0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 2, 2, 2}};

constexpr NameLimits kFewNames{2, 8};
constexpr FrameKind kAnswer{200}, kHaveRead{201};

class Leader {
 public:
  explicit Leader(const std::vector<int>& host_of_rank)
      : host_of_rank_(host_of_rank),
        world_size_(static_cast<int>(host_of_rank.size())),
        coordinator_(host_of_rank, kFewNames),
        asked_(static_cast<size_t>(coordinator_.hosts())),
        to_read_(asked_.size()) {
    coordinator_.add_set(1, {world_size_ - 1});
  }

  int hosts() const { return coordinator_.hosts(); }
  // False where the engine would end the generation.
  bool take(int host, FrameKind kind, std::string_view payload, double now) {
    Effects effects;
    if (kind == kAnswer || kind == kHaveRead) {
      if (!answer(host, kind, payload.empty(), &effects)) return true;
    } else if (!judge(host, kind, payload, now, &effects)) {
      return false;
    }
    for (const uint32_t id : effects.recalls) require(id < kFewNames.ids);
    remember(effects);
    require_readable(effects.decisions);
    const std::vector<Undecided> waiting = coordinator_.undecided();
    for (const Undecided& open : waiting) {
      const size_t members = open.arrived.size() + open.missing.size();
      require(members > 0 && members <= host_of_rank_.size());
    }
    int culprit = -1;
    const std::string text = disagreement_about_gradients(waiting, now, &culprit);
    require(text.empty() || (culprit >= 0 && culprit < world_size_));
    require(coordinator_.snapshot().size() < (64u << 20));
    Undecided entry;
    std::vector<int> ranks;
    for (uint32_t id = 0; id < 4 && coordinator_.describe(id, &entry, &ranks); ++id) {
      require(!entry.name.empty() && !ranks.empty() && coordinator_.counts_on(id, host_of_rank_[ranks[0]]));
    }
    return true;
  }

 private:
  bool judge(int host, FrameKind kind, std::string_view payload, double now, Effects* effects) {
    RequestFrame request;
    RefuseFrame refusal;
    RecalledFrame recalled;
    JoinFrame join;
    std::vector<uint32_t> ids;
    std::vector<RetireAnswer> answers;
    std::vector<HostReady> ready;
    switch (kind) {
      case FrameKind::kRequest:
        return parse_request(payload, world_size_, &request) &&
               coordinator_.request(request.ranks, request.set, request.name, request.descriptor, now, effects);
      case FrameKind::kRefuse:
        return parse_refuse(payload, world_size_, &refusal) &&
               coordinator_.refuse(refusal.rank, refusal.set, refusal.name, refusal.why, now, effects);
      case FrameKind::kHostReady:
        if (!parse_host_ready(payload, world_size_, &ready)) return false;
        for (const HostReady& entry : ready) {
          if (!coordinator_.host_ready(host, entry.id, now, effects, entry.last_rank)) return false;
        }
        return true;
      case FrameKind::kRecalled:
        return parse_recalled(payload, world_size_, &recalled) &&
               coordinator_.recalled(host, recalled.id, recalled.found, effects, recalled.others);
      case FrameKind::kJoin:
        return parse_join(payload, world_size_, &join) && host_of_rank_[static_cast<size_t>(join.rank)] == host &&
               coordinator_.join(join.rank, std::move(join.counted), now, effects);
      case FrameKind::kMayRetire:
        if (!parse_may_retire(payload, &answers)) return false;
        for (const RetireAnswer& answer : answers) {
          if (!coordinator_.may_retire(host, answer.id, answer.idle, effects)) return false;
        }
        return true;
      case FrameKind::kRetired:
        if (!parse_ids(payload, &ids)) return false;
        for (const uint32_t id : ids) {
          if (!coordinator_.retired(host, id, effects)) return false;
        }
        return true;
      default:
        return false;
    }
  }

  // False where the host has nothing to say.
  bool answer(int host, FrameKind kind, bool idle, Effects* effects) {
    auto& open = (kind == kAnswer ? asked_ : to_read_)[static_cast<size_t>(host)];
    if (open.empty()) return false;
    const uint32_t id = open.front();
    open.pop_front();
    if (kind == kAnswer) {
      coordinator_.may_retire(host, id, idle, effects);
    } else {
      coordinator_.retired(host, id, effects);
    }
    return true;
  }

  void remember(const Effects& effects) {
    for (const uint32_t id : effects.retires) {
      require(id < kFewNames.ids);
      for (auto& asked : asked_) asked.push_back(id);
    }
    for (const Decision& decision : effects.decisions) {
      if (decision.kind != RecordKind::kRetire) continue;
      for (auto& to_read : to_read_) to_read.push_back(decision.id);
    }
  }

  void require_readable(const std::vector<Decision>& decisions) {
    std::vector<Decision> read;
    require(parse_records(records_payload(decisions), world_size_, &read) && read.size() == decisions.size());
  }

  const std::vector<int> host_of_rank_;
  const int world_size_;
  Coordinator coordinator_;
  std::vector<std::deque<uint32_t>> asked_, to_read_;  // by host
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  Leader leader(kWorlds[input.byte() % kWorlds.size()]);
  for (double now = 0; !input.empty(); now += 1) {
    const int host = input.byte() % leader.hosts();
    const auto kind = static_cast<FrameKind>(input.byte());
    if (!leader.take(host, kind, std::string(input.sized()), now)) break;
  }
  return 0;
}
