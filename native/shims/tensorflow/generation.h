// SPDX-License-Identifier: Apache-2.0
// The running generation as the kernels see it: Python attaches it after hvd_start and detaches it before hvd_stop.
#pragma once

#include <cstdint>
#include <shared_mutex>

#include "horovod/horovod.h"

namespace hvd::tensorflow {

struct Generation {
  hvd_context* context = nullptr;  // null: Horovod is not initialized
  uint64_t number = 0;             // differs between any two, though their context may lie at the same address
  int32_t local_rank = 0, local_size = 1;
};

// Kernels hold it shared while they use `generation`; attaching and detaching take it alone.
extern std::shared_mutex generation_mutex;
extern Generation generation;

}  // namespace hvd::tensorflow
