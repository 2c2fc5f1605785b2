// SPDX-License-Identifier: Apache-2.0
// Allreduce over a Mesh (step 7): two algorithms, both the same fold (levels.h).
//
// gathered  small: each member sends its whole input to all others and folds; one message's latency.
// direct    large: the batch is cut into *chunks*, a chunk into one *share* per member. Each member sends share j
//           straight to member j, which folds the shares as soon as the last has come, and sends the result straight
//           back: the bytes of a ring, without its order of summation. Chunk k travels on link k mod links, both ways.
//
// The order on a link is the same for every pair: the shares of the first `ahead` chunks, then by turns the result of
// chunk i and the share of chunk i + ahead. A result waits for its fold, which waits for the peers' shares of the same
// chunk only; those stand before it on every link, so by induction over the chunks nothing waits in a circle. A
// member's turns (mesh.h) have the same order. In pieces, a piece is a chunk, and a share waits for its offer, too.
#pragma once

#include <memory>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/levels.h"
#include "collectives/slices.h"
#include "platform/kept_memory.h"
#include "reduction/kernels.h"
#include "transport/mesh.h"

namespace hvd {

// `scratch` is kept between operations to save its page faults.
Status gathered_allreduce(Mesh& mesh, const Kernels& kernels, MemberFold& fold, const SliceList& slices,
                          const Reduction& reduction, Exchanged<std::byte>* scratch);
Status direct_allreduce(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                        Exchanged<std::byte>* scratch);
std::unique_ptr<PiecewiseAllreduce> direct_allreduce_in_pieces(Mesh& mesh, MemberFold& fold, const SliceList& slices,
                                                               const Reduction& reduction,
                                                               Exchanged<std::byte>* scratch, Cut cut);

}  // namespace hvd
