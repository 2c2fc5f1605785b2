// SPDX-License-Identifier: Apache-2.0
#include "communicators/hierarchical/carriers.h"

#include <algorithm>
#include <bit>

namespace hvd {

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

void CarrierChoice::decide(size_t bytes, Times slowest) {
  of(bytes).shared = slowest.shared < slowest.alone;
  const std::lock_guard guard(lock_);
  decided_[index(bytes)] = std::string("{\"shared\": ") + (of(bytes).shared ? "true" : "false") +
                           ", \"alone_ns\": " + std::to_string(slowest.alone) +
                           ", \"shared_ns\": " + std::to_string(slowest.shared) + "}";
}

std::string CarrierChoice::describe() const {
  const std::lock_guard guard(lock_);
  std::string text;
  for (const auto& [magnitude, of_it] : decided_) {
    text += (text.empty() ? "{\"" : ", \"") + std::to_string((size_t{1} << magnitude) - 1) + "\": " + of_it;
  }
  return text.empty() ? "{}" : text + "}";
}

}  // namespace hvd
