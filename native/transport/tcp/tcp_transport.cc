// SPDX-License-Identifier: Apache-2.0
// The TCP transport (step 7): direct exchange between the members, over sockets that others connected and
// authenticated.
#include <string>
#include <utility>

#include "collectives/mesh_allreduce.h"
#include "collectives/mesh_copy.h"
#include "collectives/mesh_scatter.h"
#include "platform/float_state.h"
#include "transport/factories.h"
#include "transport/tcp/mesh.h"

namespace hvd {

namespace {

// Below, a second message's latency costs more than sending everything to everybody.
constexpr size_t kGatheredBytes = size_t{16} << 10;

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::vector<std::vector<int>> sockets, int member, const std::vector<int>& world_ranks,
               const Interrupt& interrupt)
      : mesh_(std::move(sockets), member, world_ranks, interrupt) {}

  TcpTransport(const TcpTransport& whole, std::span<const int> places, int member)
      : kernels_(whole.kernels_), mesh_(whole.mesh_, places, member) {}

  Status start(InstructionSet isa) {
    HVD_RETURN_IF_ERROR(Kernels::create(isa, &kernels_));
    return mesh_.open();
  }

  const char* name() const override { return "tcp"; }
  int member() const override { return mesh_.member(); }
  int size() const override { return mesh_.size(); }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    const SliceList list(slices, element_size(reduction.dtype));
    if (list.bytes() == 0) return Status();
    const FloatState state;
    const size_t others = static_cast<size_t>(std::max(1, mesh_.size() - 1));
    const bool gathered = list.bytes() * others <= kGatheredBytes || mesh_.size() == 1;
    return gathered ? gathered_allreduce(mesh_, kernels_, list, reduction, &scratch_)
                    : direct_allreduce(mesh_, kernels_, list, reduction, &scratch_);
  }
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override {
    return tree_broadcast(mesh_, kernels_, SliceList(slices, element_bytes), root_member);
  }
  Status exchange(const void* mine, size_t bytes, void* all) override {
    const std::vector<int64_t> equal(static_cast<size_t>(mesh_.size()), static_cast<int64_t>(bytes));
    return mesh_allgather(mesh_, kernels_, "exchange", mine, equal, all);
  }
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override {
    return mesh_allgather(mesh_, kernels_, "allgather", mine, bytes_of_member, all);
  }
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    const FloatState state;
    return mesh_reducescatter(mesh_, kernels_, parts, reduction, &scratch_);
  }
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    return mesh_alltoall(mesh_, kernels_, mine, bytes, all);
  }
  Status barrier() override { return mesh_barrier(mesh_); }

  std::unique_ptr<Transport> among(std::span<const int> places, int member) const override {
    auto part = std::make_unique<TcpTransport>(*this, places, member);
    return part->mesh_.open().ok() ? std::move(part) : nullptr;
  }

  std::string describe() const override {
    return "\"transport\": \"tcp\", \"links_per_peer\": " + std::to_string(mesh_.links_per_peer()) + ", \"isa\": \"" +
           instruction_set_name(kernels_.instruction_set()) + "\"";
  }

 private:
  Kernels kernels_;
  Mesh mesh_;
  std::vector<std::byte> scratch_;
};

}  // namespace

Status make_tcp_transport(std::vector<std::vector<int>> sockets, int member, const std::vector<int>& world_ranks,
                          const TransportOptions& options, const Interrupt& interrupt,
                          std::unique_ptr<Transport>* out) {
  auto transport = std::make_unique<TcpTransport>(std::move(sockets), member, world_ranks, interrupt);
  HVD_RETURN_IF_ERROR(transport->start(options.isa));
  *out = std::move(transport);
  return Status();
}

}  // namespace hvd
