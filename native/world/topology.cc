// SPDX-License-Identifier: Apache-2.0
#include "world/topology.h"

#include <map>

namespace hvd {

Topology::Topology(const std::vector<int>& host_of_rank) {
  std::map<int, int> number_of;
  for (const int given : host_of_rank) {
    const int host = number_of.try_emplace(given, hosts()).first->second;
    if (host == hosts()) ranks_of_host_.emplace_back();
    std::vector<int>& ranks = ranks_of_host_[static_cast<size_t>(host)];
    local_rank_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(size());
    host_of_rank_.push_back(host);
  }
}

Topology Topology::among(std::span<const int> ranks) const {
  std::vector<int> hosts_of_members;
  for (const int rank : ranks) hosts_of_members.push_back(host_of(rank));
  return Topology(hosts_of_members);
}

}  // namespace hvd
