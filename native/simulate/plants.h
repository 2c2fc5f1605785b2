// SPDX-License-Identifier: Apache-2.0
// Defects that are planted in a simulation, so that tests see the checks find them: one wrong thing, somewhere among
// the first chances, as the seed says.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/frames.h"
#include "simulate/hosts.h"
#include "simulate/queue.h"

namespace hvd {

enum class Plant : uint8_t { kNone, kLostWakeUp, kTwoOrders, kDroppedFrame };

class Planted {
 public:
  // `bells`: about as many as are rung.
  Planted(Plant plant, int hosts, uint64_t bells, EventQueue& queue)
      : plant_(plant), left_(plant == Plant::kNone ? 0 : queue.draw(0, chances(plant, hosts, bells))) {}

  // A bell, or a frame, does not come.
  bool loses_bell() { return plant_ == Plant::kLostWakeUp && left_-- == 0; }
  bool drops_frame() { return plant_ == Plant::kDroppedFrame && left_-- == 0; }
  // Two entries of a host's batch change places.
  void spoil(Frame* frame, int world_size) {
    std::vector<Decision> decisions;
    if (plant_ != Plant::kTwoOrders || frame->kind != FrameKind::kRecords) return;
    if (!parse_records(frame->payload, world_size, &decisions)) return;
    std::vector<Decision*> ready;
    for (Decision& decision : decisions) {
      if (decision.kind == RecordKind::kReady) ready.push_back(&decision);
    }
    if (ready.size() < 2 || left_-- != 0) return;
    std::swap(*ready[0], *ready[1]);
    frame->payload = records_payload(decisions);
  }

 private:
  static uint64_t chances(Plant plant, int hosts, uint64_t bells) {
    if (plant == Plant::kLostWakeUp) return bells;
    return static_cast<uint64_t>(plant == Plant::kTwoOrders ? hosts - 1 : 20 * hosts);
  }

  const Plant plant_;
  uint64_t left_;  // chances to pass by
};

}  // namespace hvd
