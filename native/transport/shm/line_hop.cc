// SPDX-License-Identifier: Apache-2.0
// Ping-pong over one pair of cache lines (step 7).
#include "transport/shm/line_hop.h"

#include <algorithm>
#include <cstdint>

#include "platform/clock.h"

namespace hvd {

namespace {

constexpr int kRoundsPerSample = 8;  // a sample must be long against the clock's own cost
constexpr int kSpins = 2000;
// No hop takes this long: the two members took turns on one core, which says nothing about caches.
constexpr uint32_t kSharedCoreNs = 1500;

// A pause would be longer than the measured time. If the partner is not on a core, the usual wait takes over.
bool spin_then_wait(SlotRing& ring, int member, uint32_t target) {
  Flag& flag = ring.control(member).ping;
  for (int i = 0; i < kSpins; ++i) {
    if (reached(flag, target)) return true;
  }
  return ring.wait(flag, target, member);
}

}  // namespace

bool LineHop::ping(SlotRing& ring, int partner, int rounds, uint32_t* hop_ns) {
  int64_t best = INT64_MAX;
  for (int sample = 0; sample < rounds / kRoundsPerSample; ++sample) {
    const int64_t start = static_cast<int64_t>(now_ns());
    for (int i = 0; i < kRoundsPerSample; ++i) {
      publish(ring.control(0).ping, ++sequence_);
      if (!spin_then_wait(ring, partner, sequence_)) return false;
    }
    best = std::min(best, static_cast<int64_t>(now_ns()) - start);
  }
  *hop_ns = static_cast<uint32_t>(std::clamp<int64_t>(best / (2 * kRoundsPerSample), 1, 1'000'000));
  return true;
}

bool LineHop::pong(SlotRing& ring, int rounds) {
  for (int i = 0; i < rounds / kRoundsPerSample * kRoundsPerSample; ++i) {
    ++sequence_;
    if (!spin_then_wait(ring, 0, sequence_)) return false;
    publish(ring.control(ring.member()).ping, sequence_);
  }
  return true;
}

bool LineHop::measure(SlotRing& ring, int rounds) {
  const int skipped = rounds / kRoundsPerSample * kRoundsPerSample;
  uint32_t slowest = 0;
  const int last = ring.size() - 1;
  for (int partner = 1; partner <= last; partner = partner == last ? last + 1 : last) {
    uint32_t hop = 1;
    if (ring.member() == 0) {
      if (!ping(ring, partner, rounds, &hop)) return false;
    } else if (ring.member() == partner) {
      if (!pong(ring, rounds)) return false;
    } else {
      sequence_ += static_cast<uint32_t>(skipped);
    }
    slowest = std::max(slowest, hop);
  }
  if (ring.member() == 0 && slowest < kSharedCoreNs) ring.header().hop_ns.store(slowest, std::memory_order_relaxed);
  return true;
}

}  // namespace hvd
