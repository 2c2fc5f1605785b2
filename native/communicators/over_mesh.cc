// SPDX-License-Identifier: Apache-2.0
#include "communicators/over_mesh.h"

#include <utility>

#include "collectives/mesh_allreduce.h"
#include "collectives/mesh_copy.h"
#include "collectives/mesh_scatter.h"
#include "collectives/plan.h"
#include "platform/float_state.h"

namespace hvd {

OverMesh::OverMesh(std::unique_ptr<Mesh> mesh, const Topology& members, const Kernels& kernels, std::string details,
                   int group_hosts)
    : mesh_(std::move(mesh)),
      kernels_(kernels),
      details_(std::move(details)),
      hosts_(members.hosts()),
      group_hosts_(group_hosts),
      gathering_(members.size(), plan::host_groups(members.size(), group_hosts)),
      fold_(kernels, members, plan::host_groups(hosts_, group_hosts)) {}

Grid OverMesh::grid_of(const Reduction& reduction, bool in_groups) const {
  return in_groups ? fold_.grid(reduction) : Grid(mesh_->size(), 1);
}

Status OverMesh::allreduce(std::span<const Slice> slices, const Reduction& reduction) {
  const SliceList list(slices, element_size(reduction.dtype));
  if (list.bytes() == 0) return Status();
  const FloatState state;
  const Grid grid = grid_of(reduction, plan::between_hosts(list.bytes(), hosts_, group_hosts_).in_groups);
  return plan::is_gathered(list.bytes(), grid.longest_row())
             ? gathered_allreduce(*mesh_, kernels_, fold_, list, reduction, &scratch_, grid)
             : direct_allreduce(*mesh_, fold_, list, reduction, &scratch_, grid);
}

std::unique_ptr<PiecewiseAllreduce> OverMesh::allreduce_in_pieces(std::span<const Slice> slices,
                                                                  const Reduction& reduction, Cut cut) {
  const SliceList list(slices, element_size(reduction.dtype));
  return direct_allreduce_in_pieces(*mesh_, fold_, list, reduction, &scratch_, grid_of(reduction, cut.in_groups), cut);
}

Status OverMesh::broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) {
  return tree_broadcast(*mesh_, kernels_, SliceList(slices, element_bytes), root_member);
}

Status OverMesh::exchange(const void* mine, size_t bytes, void* all) {
  const std::vector<int64_t> equal(static_cast<size_t>(mesh_->size()), static_cast<int64_t>(bytes));
  return mesh_allgather(*mesh_, kernels_, "exchange", mine, equal, all, gathering_);
}

Status OverMesh::allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) {
  return mesh_allgather(*mesh_, kernels_, "allgather", mine, bytes_of_member, all, gathering_);
}

Status OverMesh::reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) {
  const FloatState state;
  return mesh_reducescatter(*mesh_, fold_, parts, reduction, &scratch_);
}

Status OverMesh::alltoall(const void* mine, std::span<const int64_t> bytes, void* all) {
  return mesh_alltoall(*mesh_, kernels_, mine, bytes, all);
}

Status OverMesh::barrier() { return mesh_barrier(*mesh_); }

std::string OverMesh::describe() const {
  const int groups = plan::host_groups(hosts_, group_hosts_);
  return std::string("\"transport\": \"") + mesh_->transport() + "\", " + details_ +
         (groups > 1 ? "\"host_groups\": " + std::to_string(groups) + ", " : "") + "\"isa\": \"" +
         instruction_set_name(kernels_.instruction_set()) + "\"";
}

}  // namespace hvd
