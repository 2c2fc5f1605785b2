// SPDX-License-Identifier: Apache-2.0
// The communicator of a single member (step 7): nothing travels, but scales still apply.

#include "communicators/registry.h"
#include "platform/float_state.h"

namespace hvd {

namespace {

class Loopback final : public Communicator {
 public:
  explicit Loopback(const Kernels& kernels) : kernels_(kernels) {}

  const char* name() const override { return "loopback"; }
  int member() const override { return 0; }
  int size() const override { return 1; }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    const FloatState state;
    for (const Slice& slice : slices) {
      kernels_.fold(reduction, {&slice.input, 1}, slice.count, {slice.output});
    }
    return Status();
  }
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int) override {
    for (const Slice& slice : slices) {
      kernels_.copy(slice.output, slice.input, static_cast<size_t>(slice.count) * element_bytes, false);
    }
    return Status();
  }
  Status exchange(const void* mine, size_t bytes, void* all) override {
    kernels_.copy(static_cast<std::byte*>(all), static_cast<const std::byte*>(mine), bytes, false);
    return Status();
  }
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override {
    return exchange(mine, static_cast<size_t>(bytes_of_member[0]), all);
  }
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    return allreduce(parts[0], reduction);
  }
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    return exchange(mine, static_cast<size_t>(bytes[0]), all);
  }
  Status barrier() override { return Status(); }

  std::string describe() const override {
    return std::string("\"transport\": \"loopback\", \"isa\": \"") + instruction_set_name(kernels_.instruction_set()) +
           "\"";
  }

 private:
  const Kernels kernels_;
};

std::string why_unfit_for_loopback(const Topology& members) {
  return members.size() == 1 ? "" : "it joins one rank with itself, and there are " + std::to_string(members.size());
}

Status make_loopback(const Members&, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  // Without peers the instruction set cannot matter: one that the machine lacks is not worth a failure.
  Kernels kernels;
  if (machine_has(parts.settings.isa)) HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  *out = std::make_unique<Loopback>(kernels);
  return {};
}

}  // namespace

extern const CommunicatorRow kLoopbackRow;
const CommunicatorRow kLoopbackRow = {
    "loopback",      "one rank", "LOOPBACK_",  always_available, why_unfit_for_loopback,
    no_shared_bytes, no_links,   make_loopback};

}  // namespace hvd
