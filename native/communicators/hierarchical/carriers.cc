// SPDX-License-Identifier: Apache-2.0
#include "communicators/hierarchical/carriers.h"

#include <algorithm>
#include <bit>

namespace hvd {

namespace {

constexpr uint32_t kTrial = 8;      // operations; half of them each way, the first of which opens links
constexpr uint32_t kPeriod = 1024;  // until the next trial

}  // namespace

bool CarrierChoice::Magnitude::is_trial() const { return operations % kPeriod < kTrial; }

size_t CarrierChoice::index(size_t bytes) { return static_cast<size_t>(std::bit_width(bytes)) % 64; }

bool CarrierChoice::add(size_t bytes, uint64_t ns) {
  Magnitude& magnitude = of(bytes);
  const bool was_trial = magnitude.is_trial();
  if (was_trial) {
    if (magnitude.operations % kPeriod == 0) magnitude.best = {};
    uint64_t& best = magnitude.is_shared() ? magnitude.best.shared : magnitude.best.alone;
    best = std::min(best, (ns << 20) / bytes);
  }
  ++magnitude.operations;
  return was_trial && !magnitude.is_trial();
}

}  // namespace hvd
