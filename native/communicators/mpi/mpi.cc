// SPDX-License-Identifier: Apache-2.0
// The communicators over MPI (step 7), for networks that only MPI can use. MPI moves messages, and our algorithms do
// the rest (mesh.h).
//
//   mpi               everything through MPI
//   hierarchical-mpi  MPI between hosts, shared memory inside
#include <memory>
#include <string>
#include <utility>

#include "communicators/hierarchical/hierarchical.h"
#include "communicators/mpi/mesh.h"
#include "communicators/over_mesh.h"
#include "communicators/registry.h"

namespace hvd::mpi {

namespace {

std::string why_unfit(const Topology& members) { return members.size() > 1 ? "" : "it needs two members"; }

Status make(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  const Library* const opened = library();
  if (opened == nullptr) return {HVD_UNAVAILABLE, "MPI has not been opened"};
  return make_over_mpi(*opened, members, parts, out);
}

Status make_between(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  return make_over_hosts(members, parts, make, out);
}

}  // namespace

Status make_over_mpi(const Library& mpi, const Members& members, const CommunicatorParts& parts,
                     std::unique_ptr<Communicator>* out) {
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  auto mesh = std::make_unique<MpiMesh>(mpi, members.member, members.ranks, parts.interrupt);
  HVD_RETURN_IF_ERROR(mesh->open());
  std::string details = "\"mpi\": \"" + mpi.version + "\", ";
  *out = std::make_unique<OverMesh>(std::move(mesh), members.topology, kernels, std::move(details),
                                    parts.settings.group_hosts);
  return {};
}

}  // namespace hvd::mpi

namespace hvd {

extern const CommunicatorRow kMpiRow, kHierarchicalMpiRow;
const CommunicatorRow kMpiRow = {"mpi",          "MPI",           "MPI_",   mpi::why_unavailable,
                                 mpi::why_unfit, no_shared_bytes, no_links, mpi::make};
const CommunicatorRow kHierarchicalMpiRow = {"hierarchical-mpi",
                                             "shared memory in a host, MPI between",
                                             "MPI_",
                                             mpi::why_unavailable,
                                             mpi::why_unfit,
                                             shared_bytes_over_hosts,
                                             no_links,
                                             mpi::make_between};

}  // namespace hvd
