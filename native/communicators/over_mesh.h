// SPDX-License-Identifier: Apache-2.0
// OverMesh: a communicator that is a direct exchange between the members, over whatever mesh joins them (step 7).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/grid.h"
#include "collectives/levels.h"
#include "platform/kept_memory.h"
#include "reduction/kernels.h"
#include "transport/mesh.h"
#include "world/topology.h"

namespace hvd {

class OverMesh final : public Communicator {
 public:
  // `details`: JSON members for describe(), or empty. `group_hosts`: a setting (registry.h).
  OverMesh(std::unique_ptr<Mesh> mesh, const Topology& members, const Kernels& kernels, std::string details,
           int group_hosts = 0);
  OverMesh(const OverMesh&) = delete;
  OverMesh& operator=(const OverMesh&) = delete;

  const char* name() const override { return mesh_->transport(); }
  int member() const override { return mesh_->member(); }
  int size() const override { return mesh_->size(); }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override;
  std::unique_ptr<PiecewiseAllreduce> allreduce_in_pieces(std::span<const Slice> slices, const Reduction& reduction,
                                                          Cut cut) override;
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override;
  Status exchange(const void* mine, size_t bytes, void* all) override;
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override;
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override;
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override;
  Status barrier() override;
  std::string describe() const override;

 private:
  Grid grid_of(const Reduction& reduction, bool in_groups) const;

  const std::unique_ptr<Mesh> mesh_;
  const Kernels kernels_;
  const std::string details_;
  const int hosts_, group_hosts_;
  const Grid gathering_;  // of the members in an allgather
  MemberFold fold_;
  Exchanged<std::byte> scratch_;
};

}  // namespace hvd
