// SPDX-License-Identifier: Apache-2.0
// Finds the last gradient of a step: the engine does not linger for more tensors after it, as all ranks wait for it.
// Results never depend on the count: if a step breaks off, the next steps only linger after the wrong gradient.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace hvd::tensorflow {

struct Step {
  explicit Step(uint64_t gradients) : gradients(gradients) {}
  bool ends_now() { return gradients > 0 && (submitted.fetch_add(1) + 1) % gradients == 0; }

  const uint64_t gradients;
  std::atomic<uint64_t> submitted{0};
};

// The step of that name; all its kernels share one.
std::shared_ptr<Step> find_step(const std::string& name, uint64_t gradients);

}  // namespace hvd::tensorflow
