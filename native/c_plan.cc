// SPDX-License-Identifier: Apache-2.0
// The functions of horovod.h about a world that is yet to start (step 4): which communicator joins its ranks, and which
// links they need.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "c_guard.h"
#include "communicators/registry.h"
#include "horovod/horovod.h"
#include "world/control_tree.h"
#include "world/topology.h"

const char* hvd_communicators(void) {
  static const std::string rows = [] {
    std::string text = "[";
    for (const hvd::CommunicatorRow* row : hvd::communicator_rows()) {
      const std::string why = row->why_unavailable();
      text += (text.size() > 1 ? ", {" : "{") + std::string("\"name\": \"") + row->name + "\", \"title\": \"" +
              row->title + "\", \"available\": " + (why.empty() ? "true" : "false") + ", \"why\": \"" + why + "\"}";
    }
    return text + "]";
  }();
  return rows.c_str();
}

int hvd_plan(const char* transport, int32_t must, const int32_t* host_of_rank, int32_t world_size,
             const int32_t* members, int32_t nmembers, int32_t rank, char* name, uint8_t* linked, hvd_status* status) {
  return hvd::guarded(status, [&]() -> hvd::Status {
    HVD_RETURN_IF_ERROR(
        hvd::need({HVD_NEED(transport), HVD_NEED(host_of_rank), HVD_NEED(members), HVD_NEED(name), HVD_NEED(linked)}));
    if (world_size < 1 || nmembers < 1) return {HVD_INVALID_ARGUMENT, "expected a world with members, got none"};
    const std::vector<int> ranks(members, members + nmembers);
    const auto outside = std::ranges::find_if(ranks, [&](int rank) { return rank < 0 || rank >= world_size; });
    if (outside != ranks.end()) {
      return {HVD_INVALID_ARGUMENT, "process set member " + std::to_string(*outside) + " is out of range for " +
                                        std::to_string(world_size) + (world_size == 1 ? " rank" : " ranks")};
    }
    if (!std::ranges::all_of(std::span(host_of_rank, static_cast<size_t>(world_size)),
                             [&](int host) { return host >= 0 && host < world_size; })) {
      return {HVD_INVALID_ARGUMENT, "a host index is out of range"};
    }
    const auto topology = hvd::Topology({host_of_rank, host_of_rank + world_size}).among(ranks);
    const hvd::CommunicatorRow* row = nullptr;
    HVD_RETURN_IF_ERROR(hvd::choose_communicator(transport, topology, must != 0, &row));
    name[std::string(row->name).copy(name, 31)] = '\0';
    const auto place = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    for (int other = 0; place < nmembers && other < nmembers; ++other) {
      if (row->needs_link(topology, place, other)) linked[ranks[static_cast<size_t>(other)]] = 1;
    }
    return {};
  });
}

int hvd_control_links(const int32_t* host_of_rank, int32_t world_size, int32_t relays_above_hosts, int32_t rank,
                      uint8_t* linked, hvd_status* status) {
  return hvd::guarded(status, [&]() -> hvd::Status {
    HVD_RETURN_IF_ERROR(hvd::need({HVD_NEED(host_of_rank), HVD_NEED(linked)}));
    if (world_size < 1 || rank < 0 || rank >= world_size) return {HVD_INVALID_ARGUMENT, "expected a rank of the world"};
    const hvd::Topology topology({host_of_rank, host_of_rank + world_size});
    const hvd::ControlTree tree(topology.hosts(), relays_above_hosts);
    const int host = topology.host_of(rank);
    if (topology.leader_of(host) != rank) return {};
    if (host != 0) linked[topology.leader_of(tree.above(host))] = 1;
    for (const int other : tree.below(host)) linked[topology.leader_of(other)] = 1;
    return {};
  });
}
