// SPDX-License-Identifier: Apache-2.0
// How a thread waits that must call MPI again and again (step 7): it stays awake for a while, then sleeps for a moment.
//
// MPI moves data only while it is called. But a thread that never sleeps can take a core from the processes of other
// sessions and containers for seconds, their monitors included: Linux 6.18 does not share a core fairly between groups
// if one has a thread that always runs and one that wakes often. And if others want the core, a thread that sleeps
// often gets it back sooner than one that yields. So it stays awake for 2 ms, for up to 10 ms while data moves, and for
// 0.1 ms after others had the core (times: docs/decisions/0022-mpi-without-its-headers.md).
//
// Of one thread at a time.
#pragma once

#include <cstdint>

namespace hvd::mpi {

class Patience {
 public:
  void begin();          // of an operation
  void moved();          // data has: the next is near, so a sleep would cost more than it saves
  bool is_over() const;  // it is time for a sleep
  void turn();           // between two calls of MPI: offers the core to others, or sleeps

 private:
  static constexpr uint64_t kLeastAwakeNs = 100'000, kMostAwakeNs = 2'000'000, kMovingNs = 8'000'000;

  uint64_t slept_ns_ = 0, awake_since_ns_ = 0;  // the second is later while data moves
  uint64_t awake_ns_ = kMostAwakeNs;
};

}  // namespace hvd::mpi
