// SPDX-License-Identifier: Apache-2.0
#include "communicators/mpi/patience.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "platform/clock.h"

namespace hvd::mpi {

namespace {

constexpr timespec kNap{0, 50'000};  // with the timer's slack about 0.1 ms: a twentieth of the time
// A nap that lasts so long ended on a core that others had.
constexpr uint64_t kDisturbedNapNs = 300'000;
constexpr uint64_t kRecovery = 16;  // the time awake grows by this part with each undisturbed nap

}  // namespace

void Patience::begin() { awake_since_ns_ = now_ns(); }

void Patience::turn() {
  const uint64_t slept_ns = now_ns();
  const uint64_t awake_ns = slept_ns - awake_since_ns_;
  if (awake_ns < awake_ns_) {
    sched_yield();
    return;
  }
  nanosleep(&kNap, nullptr);
  awake_since_ns_ = now_ns();
  const bool disturbed = awake_ns > 2 * awake_ns_ || awake_since_ns_ - slept_ns > kDisturbedNapNs;
  awake_ns_ = disturbed ? kLeastAwakeNs : std::min(kMostAwakeNs, awake_ns_ + awake_ns_ / kRecovery);
}

}  // namespace hvd::mpi
