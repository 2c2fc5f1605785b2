// SPDX-License-Identifier: Apache-2.0
// Broadcast, exchange, allgather and barrier over a SlotRing (step 7): data is copied, not reduced, chunk by chunk.
//
// All block until the members they need take part; a raised interrupt ends them with HVD_ABORTED. `stream`: fill the
// slots past the caches.
#pragma once

#include <span>
#include <vector>

#include "collectives/slices.h"
#include "reduction/kernels.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

Status slot_broadcast(SlotRing& ring, const Kernels& kernels, const SliceList& slices, int root, bool stream,
                      Helpers* helpers = nullptr);
// At most kTinyBytes go in the flag's line, else one chunk: `bytes` must not exceed chunk_bytes().
Status slot_exchange(SlotRing& ring, const Kernels& kernels, const void* mine, size_t bytes, void* all);
// parts[m] is member m's input and every member's output.
Status slot_allgather(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                      size_t element_bytes, bool stream, Helpers* helpers = nullptr);
Status slot_barrier(SlotRing& ring);

}  // namespace hvd
