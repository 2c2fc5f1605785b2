// SPDX-License-Identifier: Apache-2.0
#include "communicators/mpi/patience.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "platform/clock.h"

namespace hvd::mpi {

namespace {

constexpr timespec kNap{0, 50'000};  // with the timer's slack about 0.1 ms: a twentieth of the time
// If a nap, or an offer of the core, lasts so long, others had the core.
constexpr uint64_t kDisturbedNs = 300'000;
constexpr uint64_t kRecovery = 16;  // the time awake grows by this part with each undisturbed nap

}  // namespace

void Patience::begin() { slept_ns_ = awake_since_ns_ = now_ns(); }

void Patience::moved() {
  if (awake_ns_ == kMostAwakeNs) awake_since_ns_ = std::min(now_ns(), slept_ns_ + kMovingNs);
}

bool Patience::is_over() const { return now_ns() - awake_since_ns_ >= awake_ns_; }

void Patience::turn() {
  const uint64_t begin_ns = now_ns();
  const bool sleeps = begin_ns - awake_since_ns_ >= awake_ns_;
  if (sleeps) {
    nanosleep(&kNap, nullptr);
  } else {
    sched_yield();
  }
  const uint64_t end_ns = now_ns();
  if (end_ns - begin_ns > kDisturbedNs) {
    awake_ns_ = kLeastAwakeNs;
  } else if (sleeps) {
    awake_ns_ = std::min(kMostAwakeNs, awake_ns_ + awake_ns_ / kRecovery);
  }
  if (sleeps) slept_ns_ = awake_since_ns_ = end_ns;
}

}  // namespace hvd::mpi
