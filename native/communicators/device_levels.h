// SPDX-License-Identifier: Apache-2.0
// Allreduce of GPUs on two levels (step 7): the GPUs' library adds inside each host, a share for each of its members;
// members with the same place on their hosts reduce their shares across; the library gives the results to the host's
// other members. Across goes the library, too ("torus"), or a communicator of the hosts between copies to pinned memory
// ("hierarchical"), which needs no library between hosts. Then the call blocks until the shares have been reduced.
//
// Only for sets whose hosts have equally many members, two at least. Its other operations fail.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "communicators/device_communicator.h"
#include "world/topology.h"

namespace hvd {

bool has_levels(const Topology& members);
// The members of the process set that reduce with this one across hosts, ascending.
std::vector<int> across_hosts(const Topology& members, int member);
// True if the reduction can be split into these levels. The answer depends on the arguments alone.
bool can_reduce_in_levels(const DeviceRow& row, const Reduction& reduction);

// Makes the communicator of across_hosts().
using MakeAcross = std::function<Status(std::unique_ptr<Communicator>*)>;

// Collective over the members of `host`, whose topology is `members`. `make_across`: null if the library reduces across
// hosts, too. Outcomes as of DeviceRow::join.
Status join_levels(const DeviceRow& row, Communicator& host, const Topology& members, const DeviceParts& parts,
                   const MakeAcross& make_across, std::shared_ptr<DeviceCommunicator>* out);

}  // namespace hvd
