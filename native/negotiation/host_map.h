// SPDX-License-Identifier: Apache-2.0
// Which rank lives on which host, as one rank needs it (step 5).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace hvd {

struct HostMap {
  HostMap(int my_rank, std::vector<int> hosts_by_rank) : rank(my_rank), host_of_rank(std::move(hosts_by_rank)) {
    host = host_of_rank[static_cast<size_t>(rank)];
    for (int r = 0; r < world_size(); ++r) {
      hosts = std::max(hosts, host_of(r) + 1);
      if (host_of(r) != host) continue;
      if (r == rank) local_rank = static_cast<uint32_t>(ranks_here.size());
      ranks_here.push_back(r);
    }
  }

  int world_size() const { return static_cast<int>(host_of_rank.size()); }
  int host_of(int of_rank) const { return host_of_rank[static_cast<size_t>(of_rank)]; }
  int coordinating_host() const { return host_of_rank.front(); }
  int leader_of(int of_host) const {
    return static_cast<int>(std::find(host_of_rank.begin(), host_of_rank.end(), of_host) - host_of_rank.begin());
  }
  bool spans_hosts() const { return hosts > 1; }
  bool is_leader() const { return local_rank == 0; }
  bool coordinates() const { return rank == 0; }

  int rank;
  std::vector<int> host_of_rank;
  int hosts = 1;
  int host = 0;
  uint32_t local_rank = 0;
  std::vector<int> ranks_here;  // world ranks of this host, by local rank
};

}  // namespace hvd
