// SPDX-License-Identifier: Apache-2.0
// Allreduce over a SlotRing (step 7): three algorithms for three sizes, all giving the same fold in member order.
//
// tiny      at most kTinyBytes: the payload travels in the flag's own cache line; one line transfer.
// one-shot  one chunk: each member copies its input into its slot, then folds all slots into its own output.
// two-shot  in each chunk every member owns a *share*: copy the peers' shares in, fold one's own share into the output
//           and the result slot, copy the peers' shares of the result out. The three stages run as a pipeline over the
//           chunks. The slots are the fusion buffer: tensors are gathered into and scattered from them directly.
//
// All block until every member takes part; a raised interrupt ends them with HVD_ABORTED.
#pragma once

#include <span>

#include "collectives/slices.h"
#include "reduction/kernels.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

// How two-shot stores; members need not agree.
struct StorePlan {
  bool stream_slots = false;    // copy-in and result slots past the caches: where lines travel slowly between cores
  bool stream_outputs = false;  // what is copied out to the caller: where it is too large to be found in a cache later
};

Status tiny_allreduce(SlotRing& ring, const Kernels& kernels, std::span<const Slice> slices,
                      const Reduction& reduction);
Status one_shot_allreduce(SlotRing& ring, const Kernels& kernels, const SliceList& slices, const Reduction& reduction,
                          bool stream);
Status two_shot_allreduce(SlotRing& ring, const Kernels& kernels, const SliceList& slices, const Reduction& reduction,
                          StorePlan stores, Helpers* helpers = nullptr);

}  // namespace hvd
