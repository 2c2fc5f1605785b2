// SPDX-License-Identifier: Apache-2.0
// The communicator over TCP (step 7): direct exchange between the members, over sockets that others connected and
// authenticated.
#include <string>
#include <utility>

#include "collectives/levels.h"
#include "collectives/mesh_allreduce.h"
#include "collectives/mesh_copy.h"
#include "collectives/mesh_scatter.h"
#include "communicators/registry.h"
#include "platform/float_state.h"
#include "transport/tcp/mesh.h"

namespace hvd {

namespace {

// Below, a second message's latency costs more than sending everything to everybody.
constexpr size_t kGatheredBytes = size_t{16} << 10;

class Tcp final : public Communicator {
 public:
  Tcp(const Members& members, const CommunicatorParts& parts, const Kernels& kernels)
      : kernels_(kernels),
        fold_(kernels, members.topology),
        mesh_(parts.links, members.member, members.ranks, parts.interrupt) {}

  Status start() { return mesh_.open(); }

  const char* name() const override { return "tcp"; }
  int member() const override { return mesh_.member(); }
  int size() const override { return mesh_.size(); }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    const SliceList list(slices, element_size(reduction.dtype));
    if (list.bytes() == 0) return Status();
    const FloatState state;
    const size_t others = static_cast<size_t>(std::max(1, mesh_.size() - 1));
    const bool gathered = list.bytes() * others <= kGatheredBytes || mesh_.size() == 1;
    return gathered ? gathered_allreduce(mesh_, kernels_, fold_, list, reduction, &scratch_)
                    : direct_allreduce(mesh_, fold_, list, reduction, &scratch_);
  }
  std::unique_ptr<PiecewiseAllreduce> allreduce_in_pieces(std::span<const Slice> slices, const Reduction& reduction,
                                                          Cut cut) override {
    const SliceList list(slices, element_size(reduction.dtype));
    return direct_allreduce_in_pieces(mesh_, fold_, list, reduction, &scratch_, cut);
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
    return mesh_reducescatter(mesh_, fold_, parts, reduction, &scratch_);
  }
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    return mesh_alltoall(mesh_, kernels_, mine, bytes, all);
  }
  Status barrier() override { return mesh_barrier(mesh_); }

  std::string describe() const override {
    return "\"transport\": \"tcp\", \"links_per_peer\": " + std::to_string(mesh_.links_per_peer()) + ", \"isa\": \"" +
           instruction_set_name(kernels_.instruction_set()) + "\"";
  }

 private:
  const Kernels kernels_;
  MemberFold fold_;
  Mesh mesh_;
  std::vector<std::byte> scratch_;
};

std::string why_unfit(const Topology& members) { return members.size() > 1 ? "" : "it needs two members"; }

bool needs_link(const Topology&, int a, int b) { return a != b; }

Status make(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  auto tcp = std::make_unique<Tcp>(members, parts, kernels);
  HVD_RETURN_IF_ERROR(tcp->start());
  *out = std::move(tcp);
  return {};
}

}  // namespace

extern const CommunicatorRow kTcpRow;
const CommunicatorRow kTcpRow = {"tcp", "TCP", "TCP_", always_available, why_unfit, no_shared_bytes, needs_link, make};

}  // namespace hvd
