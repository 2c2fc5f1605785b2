// SPDX-License-Identifier: Apache-2.0
// Broadcast, allgather (which exchange is a case of) and barrier over a Mesh (step 7).
//
// The members are counted from the root. A small broadcast runs down a binomial tree: a member's parent is its number
// with the lowest bit cleared. A large one runs along the line, so that each member sends the data only once. Members
// hand chunks on as they arrive. Allgather sends straight to all members of a row; then each member sends what the row
// has straight to one member of each other row (grid.h). Barrier is a dissemination: in turn t each member sends a byte
// to the member 2^t further on. After log2(n) turns all members have heard of each other.
#pragma once

#include <span>

#include "collectives/grid.h"
#include "collectives/slices.h"
#include "reduction/kernels.h"
#include "transport/mesh.h"

namespace hvd {

Status tree_broadcast(Mesh& mesh, const Kernels& kernels, const SliceList& slices, int root);
Status mesh_allgather(Mesh& mesh, const Kernels& kernels, const char* operation, const void* mine,
                      std::span<const int64_t> bytes_of_member, void* all, const Grid& grid);
Status mesh_barrier(Mesh& mesh);

}  // namespace hvd
