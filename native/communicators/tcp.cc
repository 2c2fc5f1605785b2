// SPDX-License-Identifier: Apache-2.0
// The communicator over TCP (step 7): direct exchange between the members, over sockets that others connected and
// authenticated.
#include <memory>
#include <string>
#include <utility>

#include "communicators/over_mesh.h"
#include "communicators/registry.h"
#include "transport/tcp/mesh.h"

namespace hvd {

namespace {

std::string why_unfit_for_tcp(const Topology& members) { return members.size() > 1 ? "" : "it needs two members"; }

bool needs_link(const Topology&, int a, int b) { return a != b; }

Status make_tcp(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  auto mesh = std::make_unique<TcpMesh>(parts.links, members.member, members.ranks, parts.interrupt);
  HVD_RETURN_IF_ERROR(mesh->open());
  std::string details = "\"links_per_peer\": " + std::to_string(mesh->links_per_peer()) + ", ";
  *out = std::make_unique<OverMesh>(std::move(mesh), members.topology, kernels, std::move(details),
                                    parts.settings.group_hosts);
  return {};
}

}  // namespace

extern const CommunicatorRow kTcpRow;
const CommunicatorRow kTcpRow = {"tcp",           "TCP",      "TCP_",  always_available, why_unfit_for_tcp,
                                 no_shared_bytes, needs_link, make_tcp};

}  // namespace hvd
