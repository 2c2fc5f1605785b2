// SPDX-License-Identifier: Apache-2.0
// Fusion plans (step 6): which of the tensors that became ready together travel as one. A pure function of the log, so
// all ranks cut alike; it cannot change a result's bits, since a reduction is element by element.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "negotiation/wire.h"

namespace hvd {

struct BatchTensor {
  uint32_t entry;   // index into the list of entries that closed together
  uint32_t tensor;  // index within the entry
};

struct Batch {
  const Descriptor* descriptor;  // kind, op, scales of all tensors of the batch
  DataType dtype;
  std::vector<BatchTensor> tensors;
  uint32_t entry = 0;  // the first one
};

// Allreduces, and likewise reducescatters, of one dtype, op, scale and set fuse, in the order of their first, up to
// threshold_bytes (0: never; a tensor is not divided, so one beyond the threshold goes alone). Everything else goes
// entry by entry. `groups_apart`: a group (an entry of several tensors) fuses within itself only.
std::vector<Batch> plan_batches(std::span<const Descriptor* const> entries, uint64_t threshold_bytes,
                                bool groups_apart = false);

}  // namespace hvd
