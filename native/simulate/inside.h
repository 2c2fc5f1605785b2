// SPDX-License-Identifier: Apache-2.0
// The members of a simulated host as one communicator: operations take time, and nothing else. For algorithms that
// alternate between hosts and inside a host (communicators/hierarchical/allreduce.h), on the fiber of the host.
//
// The time is an estimate, to be seen beside that of the links: so many waits for another member, and so many bytes
// through memory, all at one rate. The number of each follows from the algorithm that plan.h names.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/plan.h"
#include "simulate/network.h"

namespace hvd {

struct InsideModel {
  int members = 8;
  uint64_t hop_ns = 1'000;    // until a member sees what another has written
  double bytes_per_ns = 8.0;  // that a member reads and writes
};

class SimulatedInside final : public Communicator {
 public:
  SimulatedInside(Network& network, int host, InsideModel model) : network_(network), host_(host), model_(model) {}

  const char* name() const override { return "inside"; }
  int member() const override { return 0; }
  int size() const override { return model_.members; }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    const size_t bytes = bytes_of(slices, element_size(reduction.dtype));
    switch (plan::shots_of(bytes, model_.members, SlotRing::chunk_bytes_for(model_.members))) {
      case plan::Shots::kTiny:
        return pass(1, 0);
      case plan::Shots::kOne:
        return pass(1, bytes * static_cast<size_t>(model_.members));
      case plan::Shots::kTwo:
        break;
    }
    return pass(4, 2 * bytes);
  }
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int) override {
    return pass(2, bytes_of(slices, element_bytes));
  }
  Status exchange(const void*, size_t bytes, void*) override {
    return pass(2, bytes * static_cast<size_t>(model_.members));
  }
  Status allgather(const void*, std::span<const int64_t> bytes_of_member, void*) override {
    return pass(2, sum_of(bytes_of_member));
  }
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    return pass(2, bytes_of(parts, element_size(reduction.dtype)));
  }
  Status share(std::span<const std::vector<Slice>> parts, size_t element_bytes) override {
    return pass(2, bytes_of(parts, element_bytes));
  }
  Status alltoall(const void*, std::span<const int64_t> bytes, void*) override {
    return pass(2, sum_of(bytes) / static_cast<size_t>(model_.members));
  }
  Status barrier() override { return pass(2, 0); }
  std::string describe() const override { return "\"transport\": \"inside\""; }

 private:
  static size_t bytes_of(std::span<const Slice> slices, size_t element_bytes) {
    size_t bytes = 0;
    for (const Slice& slice : slices) bytes += static_cast<size_t>(slice.count) * element_bytes;
    return bytes;
  }
  static size_t bytes_of(std::span<const std::vector<Slice>> parts, size_t element_bytes) {
    size_t bytes = 0;
    for (const std::vector<Slice>& part : parts) bytes += bytes_of(part, element_bytes);
    return bytes;
  }
  static size_t sum_of(std::span<const int64_t> parts) {
    size_t sum = 0;
    for (const int64_t part : parts) sum += static_cast<size_t>(part);
    return sum;
  }
  Status pass(uint64_t hops, size_t bytes) {
    const auto moving_ns = std::llround(static_cast<double>(bytes) / model_.bytes_per_ns);
    network_.pass(host_, hops * model_.hop_ns + static_cast<uint64_t>(moving_ns));
    return {};
  }

  Network& network_;
  const int host_;
  const InsideModel model_;
};

}  // namespace hvd
