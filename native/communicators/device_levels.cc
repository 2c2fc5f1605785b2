// SPDX-License-Identifier: Apache-2.0
#include "communicators/device_levels.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/clock.h"

namespace hvd {

namespace {

// Element `part` of `parts` equal ones begins here, where they do not come out even.
int64_t begin_of(int64_t count, int part, int parts) { return count * part / parts; }

Slice cut(const Slice& slice, int64_t begin, int64_t end, size_t element_bytes) {
  const size_t at = static_cast<size_t>(begin) * element_bytes;
  return {slice.input + at, slice.output + at, end - begin};
}

class InLevels final : public DeviceCommunicator {
 public:
  InLevels(Communicator& host, const DeviceParts& parts, std::shared_ptr<DeviceCommunicator> inside,
           std::shared_ptr<DeviceCommunicator> torus, std::unique_ptr<Communicator> across)
      : host_(host), parts_(parts), inside_(std::move(inside)), torus_(std::move(torus)), across_(std::move(across)) {}

  const char* name() const override { return "levels"; }
  int member() const override { return host_.member(); }
  int size() const override { return host_.size(); }
  Status exchange(const void* mine, size_t bytes, void* all) override { return host_.exchange(mine, bytes, all); }
  Status barrier() override { return host_.barrier(); }
  std::string describe() const override { return inside_->describe(); }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override;
  Status broadcast(std::span<const Slice>, size_t, int) override { return not_here(); }
  Status allgather(const void*, std::span<const int64_t>, void*) override { return not_here(); }
  Status reducescatter(std::span<const std::vector<Slice>>, const Reduction&) override { return not_here(); }
  Status alltoall(const void*, std::span<const int64_t>, void*) override { return not_here(); }

  Status health() const override {
    const Status status = inside_->health();
    return status.ok() && torus_ != nullptr ? torus_->health() : status;
  }
  void abort() override { both(&DeviceCommunicator::abort); }
  void close() override { both(&DeviceCommunicator::close); }

 private:
  void both(void (DeviceCommunicator::*end)()) {
    std::thread other([this, end] {
      if (torus_ != nullptr) (torus_.get()->*end)();
    });
    (inside_.get()->*end)();
    other.join();
  }
  static Status not_here() { return {HVD_INTERNAL, "two levels of GPUs reduce, and do nothing else"}; }
  Status reduce_staged(std::span<const Slice> shares, const Reduction& reduction);
  Status await(const cuda::Event& event) const;

  Communicator& host_;
  const DeviceParts parts_;
  const std::shared_ptr<DeviceCommunicator> inside_, torus_;  // the latter null if hosts are joined by `across_`
  const std::unique_ptr<Communicator> across_;
};

Status InLevels::allreduce(std::span<const Slice> slices, const Reduction& reduction) {
  const size_t element_bytes = element_size(reduction.dtype);
  const int members = inside_->size();
  std::vector<std::vector<Slice>> given(static_cast<size_t>(members)), shared(static_cast<size_t>(members));
  for (const Slice& slice : slices) {
    for (int m = 0; m < members; ++m) {
      const int64_t begin = begin_of(slice.count, m, members), end = begin_of(slice.count, m + 1, members);
      if (begin == end) continue;
      const Slice piece = cut(slice, begin, end, element_bytes);
      given[static_cast<size_t>(m)].push_back(
          {piece.input, m == inside_->member() ? piece.output : nullptr, piece.count});
      shared[static_cast<size_t>(m)].push_back({piece.output, piece.output, piece.count});
    }
  }
  HVD_RETURN_IF_ERROR(inside_->reducescatter(given, {reduction.dtype, reduction.op, reduction.prescale, 1, 1}));
  const std::vector<Slice>& mine = shared[static_cast<size_t>(inside_->member())];
  const Reduction rest{reduction.dtype, reduction.op, 1, reduction.postscale, reduction.divisor};
  if (!mine.empty()) {
    HVD_RETURN_IF_ERROR(torus_ != nullptr ? torus_->allreduce(mine, rest) : reduce_staged(mine, rest));
  }
  return inside_->share(shared, element_bytes);
}

// Through pinned memory of the host.
Status InLevels::reduce_staged(std::span<const Slice> shares, const Reduction& reduction) {
  cuda::Device& device = *parts_.device;
  const size_t element_bytes = element_size(reduction.dtype);
  size_t bytes = 0;
  for (const Slice& share : shares) bytes += static_cast<size_t>(share.count) * element_bytes;
  cuda::Staging staging;
  HVD_RETURN_IF_ERROR(device.lend(bytes, parts_.stream, &staging));
  std::vector<Slice> staged;
  std::byte* at = staging.data();
  for (const Slice& share : shares) {
    const size_t length = static_cast<size_t>(share.count) * element_bytes;
    HVD_RETURN_IF_ERROR(device.copy(at, share.output, length, parts_.stream));
    staged.push_back({at, at, share.count});
    at += length;
  }
  cuda::Event copied;
  HVD_RETURN_IF_ERROR(device.record(parts_.stream, &copied));
  HVD_RETURN_IF_ERROR(await(copied));
  HVD_RETURN_IF_ERROR(across_->allreduce(staged, reduction));
  for (size_t i = 0; i < staged.size(); ++i) {
    const size_t length = static_cast<size_t>(staged[i].count) * element_bytes;
    HVD_RETURN_IF_ERROR(device.copy(shares[i].output, staged[i].output, length, parts_.stream));
  }
  return {};
}

// The host's other members may not be that far; the library's own failures end the wait.
Status InLevels::await(const cuda::Event& event) const {
  const Inside::Scope inside(*parts_.inside);
  for (bool done = false;;) {
    HVD_RETURN_IF_ERROR(parts_.device->is_done(event, &done));
    HVD_RETURN_IF_ERROR(health());
    if (done) return {};
    if (parts_.interrupt.raised()) return {HVD_ABORTED, "interrupted while a host's GPUs reduced"};
    sleep_ms(0);
  }
}

std::vector<int> hosts_of(const Topology& members) {
  std::vector<int> hosts;
  for (int m = 0; m < members.size(); ++m) hosts.push_back(members.host_of(m));
  return hosts;
}

std::vector<int> places_of(const Topology& members) {
  std::vector<int> places;
  for (int m = 0; m < members.size(); ++m) places.push_back(members.local_rank_of(m));
  return places;
}

}  // namespace

bool has_levels(const Topology& members) {
  if (members.is_flat()) return false;
  for (int host = 0; host < members.hosts(); ++host) {
    if (members.ranks_of(host).size() != members.ranks_of(0).size()) return false;
  }
  return true;
}

std::vector<int> across_hosts(const Topology& members, int member) {
  std::vector<int> some;
  for (int m = 0; m < members.size(); ++m) {
    if (members.local_rank_of(m) == members.local_rank_of(member)) some.push_back(m);
  }
  return some;
}

bool can_reduce_in_levels(const DeviceRow& row, const Reduction& reduction) {
  return row.can_reduce(reduction, HVD_ALLREDUCE) &&
         row.can_reduce({reduction.dtype, reduction.op, reduction.prescale, 1, 1}, HVD_REDUCESCATTER);
}

Status join_levels(const DeviceRow& row, Communicator& host, const Topology& members, const DeviceParts& parts,
                   const MakeAcross& make_across, std::shared_ptr<DeviceCommunicator>* out) {
  DeviceParts grouped = parts;
  grouped.groups = hosts_of(members);
  std::shared_ptr<DeviceCommunicator> inside, torus;
  std::unique_ptr<Communicator> across;
  HVD_RETURN_IF_ERROR(row.join(host, grouped, &inside));
  if (make_across == nullptr) {
    grouped.groups = places_of(members);
    const Status joined = row.join(host, grouped, &torus);
    if (!joined.ok()) {
      inside->abort();
      return joined;
    }
  } else {
    HVD_RETURN_IF_ERROR(make_across(&across));
  }
  *out = std::make_shared<InLevels>(host, parts, std::move(inside), std::move(torus), std::move(across));
  return {};
}

}  // namespace hvd
