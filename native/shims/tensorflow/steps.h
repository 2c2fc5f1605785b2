// SPDX-License-Identifier: Apache-2.0
// Which gradient is the last of its step: the engine need not linger for more after it, as everybody waits for it.
// Nobody relies on the count: where a step broke off, the next ones only linger for the wrong one.
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
