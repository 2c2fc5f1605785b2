// SPDX-License-Identifier: Apache-2.0
// The world's hosts from one rank's place in it (step 5). Borrows the topology. Immutable.
#pragma once

#include <cstdint>
#include <vector>

#include "world/control_tree.h"
#include "world/topology.h"

namespace hvd {

struct HostMap {
  HostMap(const Topology& of_world, int my_rank, int star_hosts = ControlTree::kStarHosts)
      : topology(of_world),
        tree(of_world.hosts(), star_hosts),
        rank(my_rank),
        host(of_world.host_of(my_rank)),
        local_rank(static_cast<uint32_t>(of_world.local_rank_of(my_rank))),
        ranks_here(of_world.ranks_of(host)) {}

  int world_size() const { return topology.size(); }
  int hosts() const { return topology.hosts(); }
  int host_of(int of_rank) const { return topology.host_of(of_rank); }
  int leader_of(int of_host) const { return topology.leader_of(of_host); }
  int group_of(int of_rank) const { return tree.group_of(host_of(of_rank)); }
  int above() const { return tree.above(host); }  // the host that this one's leader speaks to
  bool spans_hosts() const { return hosts() > 1; }
  bool is_leader() const { return local_rank == 0; }
  bool coordinates() const { return rank == 0; }
  // It is its group's relay, and there are other hosts in the group.
  bool relays() const { return host != 0 && is_leader() && !tree.below(host).empty(); }

  const Topology& topology;
  const ControlTree tree;
  const int rank;
  const int host;
  const uint32_t local_rank;
  const std::vector<int>& ranks_here;  // world ranks of this host, by local rank
};

}  // namespace hvd
