// SPDX-License-Identifier: Apache-2.0
// The communicator of one host, over shared memory (step 7): chooses an algorithm by size; cached or streamed
// stores are chosen by timing both (store_choice.h).
#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "collectives/plan.h"
#include "collectives/slot_allreduce.h"
#include "collectives/slot_copy.h"
#include "collectives/slot_scatter.h"
#include "communicators/registry.h"
#include "communicators/shm/store_choice.h"
#include "platform/float_state.h"
#include "transport/shm/line_hop.h"
#include "transport/shm/slot_ring.h"

namespace hvd {

namespace {

constexpr size_t kStreamOneShotBytes = 512;       // a few lines come faster from the writer's cache, even a far one
constexpr size_t kSmallBytes = size_t{32} << 10;  // that a choice for small operations is timed on
// From where the caller's tensors are written past the caches, by near and by far members.
constexpr size_t kNearStreamOutputBytes = size_t{128} << 20;
constexpr size_t kFarStreamOutputBytes = size_t{32} << 20;
constexpr int kStartHops = 400, kAgainHops = 32;
constexpr int kStartRounds = 8, kAgainRounds = 2;  // of timing stores
// A measurement costs about as much as four operations of a mebibyte.
constexpr uint32_t kOftenAtFirst = 64;
constexpr size_t kMeasureBytes = size_t{512} << 20;

class Shm final : public Communicator {
 public:
  Shm(std::byte* area, int member, const std::vector<int>& world_ranks, const CommunicatorSettings& settings,
      const Interrupt& interrupt, const Kernels& kernels)
      : settings_(settings), kernels_(kernels), ring_(area, member, world_ranks, interrupt) {}

  Status start() {
    HVD_RETURN_IF_ERROR(ring_.attach());
    if (!measure(kStartHops, kStartRounds)) return ring_.interrupted("measuring the shared memory");
    return slot_barrier(ring_);
  }

  const char* name() const override { return "shm"; }
  int member() const override { return ring_.member(); }
  int size() const override { return ring_.size(); }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    size_t bytes = 0;
    for (const Slice& slice : slices) bytes += static_cast<size_t>(slice.count) * element_size(reduction.dtype);
    if (bytes == 0) return Status();
    const FloatState state;
    const plan::Shots shots = plan::shots_of(bytes, ring_.size(), ring_.chunk_bytes());
    if (shots == plan::Shots::kTiny) return tiny_allreduce(ring_, kernels_, slices, reduction);
    const SliceList list(slices, element_size(reduction.dtype));
    if (shots == plan::Shots::kOne) {
      return one_shot_allreduce(ring_, kernels_, list, reduction, streams(bytes) && bytes >= kStreamOneShotBytes);
    }
    if (!measure_now_and_then(bytes)) return ring_.interrupted("allreduce");
    const Helpers::Operation helped(helpers(), bytes);
    return two_shot_allreduce(ring_, kernels_, list, reduction, stores_for(bytes), helpers());
  }

  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override {
    const SliceList list(slices, element_bytes);
    const Helpers::Operation helped(helpers(), list.bytes());
    return slot_broadcast(ring_, kernels_, list, root_member, list.bytes() >= kLargeBytes && streams(list.bytes()),
                          helpers());
  }
  Status exchange(const void* mine, size_t bytes, void* all) override {
    return slot_exchange(ring_, kernels_, mine, bytes, all);
  }
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override {
    std::vector<std::vector<Slice>> parts;
    std::byte* target = static_cast<std::byte*>(all);
    for (const int64_t bytes : bytes_of_member) {
      const bool own = static_cast<int>(parts.size()) == member();
      parts.push_back({{own ? static_cast<const std::byte*>(mine) : target, target, bytes}});
      target += bytes;
    }
    return share(parts, 1);
  }
  Status share(std::span<const std::vector<Slice>> parts, size_t element_bytes) override {
    const size_t bytes = bytes_of(parts, element_bytes);
    const Helpers::Operation helped(helpers(), bytes);
    return slot_allgather(ring_, kernels_, parts, element_bytes, bytes >= kLargeBytes && streams(bytes), helpers());
  }
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    const size_t bytes = bytes_of(parts, element_size(reduction.dtype));
    if (bytes == 0) return Status();
    const FloatState state;
    if (bytes <= kTinyBytes) return tiny_reducescatter(ring_, kernels_, parts, reduction);
    if (!measure_now_and_then(bytes)) return ring_.interrupted("reducescatter");
    const Helpers::Operation helped(helpers(), bytes);
    return slot_reducescatter(ring_, kernels_, parts, reduction, streams(bytes) && bytes >= kStreamOneShotBytes,
                              helpers());
  }
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    const auto total = static_cast<size_t>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
    const Helpers::Operation helped(helpers(), total);
    return slot_alltoall(ring_, kernels_, mine, bytes, all, total >= kLargeBytes && streams(total), helpers());
  }
  Status barrier() override { return slot_barrier(ring_); }

  std::string describe() const override {
    return "\"transport\": \"shm\", \"hop_ns\": " + std::to_string(LineHop::nanoseconds(ring_)) + ", " +
           stores_.describe() + ", \"isa\": \"" + instruction_set_name(kernels_.instruction_set()) + "\"" +
           (settings_.helpers == nullptr ? "" : ", " + settings_.helpers->describe());
  }

 private:
  Helpers* helpers() const { return settings_.helpers.get(); }
  static size_t bytes_of(std::span<const std::vector<Slice>> parts, size_t element_bytes) {
    size_t bytes = 0;
    for (const std::vector<Slice>& part : parts) {
      for (const Slice& slice : part) bytes += static_cast<size_t>(slice.count) * element_bytes;
    }
    return bytes;
  }
  size_t one_shot_bytes() const { return plan::one_shot_bytes(ring_.size(), ring_.chunk_bytes()); }
  bool streams(size_t bytes) const {
    if (settings_.stores != Stores::kMeasured) return settings_.stores == Stores::kStreamed;
    return stores_.streams(bytes <= one_shot_bytes() ? StoreChoice::kSmall : StoreChoice::kLarge);
  }
  StorePlan stores_for(size_t bytes) const {
    const bool far = streams(bytes);
    return {far, bytes >= (far ? kFarStreamOutputBytes : kNearStreamOutputBytes)};
  }
  bool measure(int hops, int rounds) {
    return hop_.measure(ring_, hops) &&
           (settings_.stores != Stores::kMeasured ||
            stores_.measure(ring_, kernels_, std::min(kSmallBytes, one_shot_bytes()), rounds));
  }
  // A virtual machine moves between near and far placements by itself; and at the start members may still share a core.
  // Often at first, then for every kMeasureBytes of large operations. All members count the same, so all take part.
  bool measure_now_and_then(size_t bytes) {
    if (bytes < kLargeBytes) return true;
    ++large_operations_;
    large_bytes_ += bytes;
    const bool due =
        (large_operations_ <= kOftenAtFirst && std::has_single_bit(large_operations_)) || large_bytes_ >= kMeasureBytes;
    if (!due) return true;
    large_bytes_ = 0;
    return measure(kAgainHops, kAgainRounds);
  }

  const CommunicatorSettings settings_;
  const Kernels kernels_;
  SlotRing ring_;
  LineHop hop_;
  StoreChoice stores_;
  uint32_t large_operations_ = 0;
  size_t large_bytes_ = 0;
};

std::string why_unfit_for_shm(const Topology& members) {
  if (members.hosts() > 1) {
    return "its members must be on one host, and are on " + std::to_string(members.hosts()) + " hosts";
  }
  return members.size() > 1 ? "" : "it needs two members";
}

size_t shared_bytes(const Topology& members, int) { return SlotRing::bytes(members.size()); }

Status make_shm(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  auto shm = std::make_unique<Shm>(parts.area, members.member, members.ranks, parts.settings, parts.interrupt, kernels);
  HVD_RETURN_IF_ERROR(shm->start());
  *out = std::move(shm);
  return {};
}

}  // namespace

extern const CommunicatorRow kShmRow;
const CommunicatorRow kShmRow = {"shm",        "shared memory", "SHM_",  always_available, why_unfit_for_shm,
                                 shared_bytes, no_links,        make_shm};

}  // namespace hvd
