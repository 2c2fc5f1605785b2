// SPDX-License-Identifier: Apache-2.0
// Reducescatter and alltoall over a SlotRing (step 7): every member has something else for each of the others.
//
// An input slot is divided into one *section* per member. In chunk k every member copies range k of what it has for
// member m into section m; member m reads its section of every slot. Reducescatter folds the sections in member order,
// element by element as allreduce does, so the bits are the same; a *tiny* one sends everything in the flag's own line.
//
// All block until the members they need take part; a raised interrupt ends them with HVD_ABORTED. `stream`: fill the
// slots past the caches.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "reduction/helpers.h"
#include "reduction/kernels.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

// At most kTinyBytes in all parts together.
Status tiny_reducescatter(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction);
Status slot_reducescatter(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction, bool stream, Helpers* helpers = nullptr);
Status slot_alltoall(SlotRing& ring, const Kernels& kernels, const void* mine, std::span<const int64_t> bytes,
                     void* all, bool stream, Helpers* helpers = nullptr);

}  // namespace hvd
