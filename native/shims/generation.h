// SPDX-License-Identifier: Apache-2.0
// The running generation as a shim sees it, which submits without Python. What becomes of calls in flight when a
// generation ends is the engine's business: hvd_stop ends them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "horovod/horovod.h"

namespace hvd::shims {

struct Generation {
  std::shared_mutex mutex;         // held shared by a call while it uses the rest
  hvd_context* context = nullptr;  // null: absence() says why
  uint64_t number = 0;             // differs between any two, though their contexts may lie at the same address

  // Python calls it after hvd_start with the context, and before hvd_stop with null. Returns the number.
  uint64_t attach(hvd_context* running) {
    const std::lock_guard alone(mutex);
    context = running;
    return ++number;
  }

  // The error of a call if there is no context.
  const char* absence() const {
    return number == 0 ? "Horovod has not been initialized; use hvd.init()."
                       : "Horovod was shut down; hvd.init() starts it again.";
  }

  // A prepared request, given back when its last user lets go of it: each holds `mutex` shared meanwhile. The entries
  // of a generation that has ended go with its context. Null if the request is refused.
  std::shared_ptr<hvd_entry> prepare(const hvd_request& request, int* code, hvd_status* status) {
    hvd_entry* made = nullptr;
    *code = hvd_prepare(context, &request, &made, status);
    if (*code != HVD_OK) return nullptr;
    return {made, [this, of = number](hvd_entry* entry) {
              if (number == of) hvd_release_entry(context, entry);
            }};
  }
};

}  // namespace hvd::shims
