// SPDX-License-Identifier: Apache-2.0
// The cache-line hop: how long a line takes from one core to another, in nanoseconds (step 7). Where it is slow (ranks
// that do not share a last-level cache), cached slots make allreduce several times slower than streamed ones.
#pragma once

#include "platform/status.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

class LineHop {
 public:
  // Collective. Member 0 plays ping-pong with member 1 and with the last one for `rounds` rounds each and publishes the
  // slower; the others return at once. A figure that shows them sharing a core is dropped. False: interrupted.
  bool measure(SlotRing& ring, int rounds);
  // The last published figure; 0 if none is.
  static uint32_t nanoseconds(const SlotRing& ring) { return ring.header().hop_ns.load(std::memory_order_relaxed); }

 private:
  bool ping(SlotRing& ring, int partner, int rounds, uint32_t* hop_ns);
  bool pong(SlotRing& ring, int rounds);

  uint32_t sequence_ = 0;
};

}  // namespace hvd
