// SPDX-License-Identifier: Apache-2.0
// Allreduce over a Mesh (step 7): two algorithms, both the same fold (levels.h), each over a grid of the members
// (grid.h) whose rows are the groups of the fold. If there is one row, the steps in columns are none.
//
// gathered  small: each member sends its whole input to all others of its row and folds; then the same in columns. One
//           message's latency, or two.
// direct    large: the batch is cut into *chunks*, a chunk into one *share* for each column. Each member sends share j
//           straight to its row's member in column j, which folds the shares as soon as the last has come. The members
//           of a column do the same with what they have now, and get its result straight back; then each of them sends
//           the result straight back to its row. These are the bytes of a ring, without its order of summation. Chunk k
//           travels on link k mod links, both ways.
//
// A member does its steps in one order, that of all members. It sends the shares of the first `ahead` chunks. Then it
// alternates: it finishes chunk i (column, then row), and sends the shares of chunk i + ahead. It posts its receives
// before it waits. A step waits only for steps of others that stand before it in this order, so by induction nothing
// waits in a circle, on any link or in turns (mesh.h). In pieces, a piece is a chunk, and a share waits for its offer,
// too.
#pragma once

#include <memory>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/grid.h"
#include "collectives/levels.h"
#include "collectives/slices.h"
#include "platform/kept_memory.h"
#include "reduction/kernels.h"
#include "transport/mesh.h"

namespace hvd {

// `scratch` is kept between operations to save its page faults. `grid`: one row, or that of the fold.
Status gathered_allreduce(Mesh& mesh, const Kernels& kernels, MemberFold& fold, const SliceList& slices,
                          const Reduction& reduction, Exchanged<std::byte>* scratch, const Grid& grid);
Status direct_allreduce(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                        Exchanged<std::byte>* scratch, const Grid& grid);
std::unique_ptr<PiecewiseAllreduce> direct_allreduce_in_pieces(Mesh& mesh, MemberFold& fold, const SliceList& slices,
                                                               const Reduction& reduction,
                                                               Exchanged<std::byte>* scratch, const Grid& grid,
                                                               Cut cut);

}  // namespace hvd
