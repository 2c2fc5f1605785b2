// SPDX-License-Identifier: Apache-2.0
// Reducescatter and alltoall over a Mesh (step 7): everything goes straight to the member that it is for.
//
// Reducescatter is the first half of the direct allreduce (mesh_allreduce.h): what a member will fold comes in
// *chunks*, of which at most kLag are under way to it, and is folded as levels.h says. Chunk k travels on link k mod
// links. A chunk waits for no other member's fold, so nothing waits in a circle.
#pragma once

#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/levels.h"
#include "platform/kept_memory.h"
#include "reduction/kernels.h"
#include "transport/mesh.h"

namespace hvd {

// `scratch` is kept between operations to save its page faults.
Status mesh_reducescatter(Mesh& mesh, MemberFold& fold, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction, Exchanged<std::byte>* scratch);
Status mesh_alltoall(Mesh& mesh, const Kernels& kernels, const void* mine, std::span<const int64_t> bytes, void* all);

}  // namespace hvd
