// SPDX-License-Identifier: Apache-2.0
// The running generation as a shim sees it, which submits without Python. What becomes of calls in flight when a
// generation ends is the engine's business: hvd_stop ends them.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>

#include "horovod/horovod.h"

namespace hvd::shims {

struct Generation {
  std::shared_mutex mutex;         // held shared by a call while it uses the rest
  hvd_context* context = nullptr;  // null: Horovod is not initialized
  uint64_t number = 0;             // differs between any two, though their contexts may lie at the same address

  // Python calls it after hvd_start with the context, and before hvd_stop with null. Returns the number.
  uint64_t attach(hvd_context* running) {
    const std::lock_guard alone(mutex);
    context = running;
    return ++number;
  }
};

}  // namespace hvd::shims
