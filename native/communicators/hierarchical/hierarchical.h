// SPDX-License-Identifier: Apache-2.0
// How members on several hosts are joined if something else than the registry's choice joins the hosts (step 7).
#pragma once

#include <cstddef>
#include <memory>

#include "communicators/registry.h"

namespace hvd {

using MakeCommunicator = Status (*)(const Members& members, const CommunicatorParts& parts,
                                    std::unique_ptr<Communicator>* out);

// The members may be spread in any way: `between` joins those that are on different hosts, and what `auto` takes for a
// host joins the others. Collective over the members.
Status make_over_hosts(const Members& members, const CommunicatorParts& parts, MakeCommunicator between,
                       std::unique_ptr<Communicator>* out);
// The shared memory on this member's host that make_over_hosts() needs.
size_t shared_bytes_over_hosts(const Topology& members, int member);

}  // namespace hvd
