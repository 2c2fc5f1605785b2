// SPDX-License-Identifier: Apache-2.0
// StoreChoice: whether slots of shared memory are written through the caches or past them (step 7). The distance of the
// cores alone does not tell which is faster, so both are timed, for a small and for a large allreduce. All members
// decide from all members' times, so they decide the same. Bits do not depend on it.
//
// Collective: every member calls measure() at the same place in its sequence of operations. It blocks like an
// operation. The readers may be on any thread.
#pragma once

#include <atomic>
#include <string>

#include "reduction/kernels.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

constexpr size_t kLargeBytes = size_t{1} << 20;

class StoreChoice {
 public:
  enum Size { kSmall, kLarge, kSizes };  // what goes in one shot, and what takes more

  // For some rounds, or less if they take long. False: interrupted.
  bool measure(SlotRing& ring, const Kernels& kernels, size_t small_bytes, int rounds);
  bool streams(Size size) const { return choices_[size].streams.load(std::memory_order_relaxed); }
  // JSON members: what was chosen, and the nanoseconds that both ways took.
  std::string describe() const;

 private:
  struct Choice {
    std::atomic<bool> streams{true};  // by mistake it costs half as much again; not to stream, eight times as much
    std::atomic<uint32_t> cached_ns{0}, streamed_ns{0};  // 0: not measured
  };
  bool measure_size(SlotRing& ring, const Kernels& kernels, Size size, size_t bytes, int rounds);

  Choice choices_[kSizes];
};

}  // namespace hvd
