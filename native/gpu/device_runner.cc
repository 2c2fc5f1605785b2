// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_runner.h"

#include <iterator>
#include <utility>

#include "communicators/device_levels.h"
#include "platform/warning.h"

namespace hvd {

Status DeviceRunner::begin(const Batch& batch, const std::vector<SubmissionPtr>& calls,
                           std::unique_ptr<DeviceBatch>* out) {
  ClosedBatch closed(batch, calls);
  DeviceCarrier carrier;
  HVD_RETURN_IF_ERROR(choose(closed, &carrier));
  if (carrier.communicator != nullptr) {
    ++counts_.by_nccl;
    *out = make_enqueued(execution_, std::move(closed), std::move(carrier));
    return {};
  }
  ++counts_.staged;
  // Not behind what waits in NCCL for its input: the batches that follow wait for these copies.
  const size_t stream = settings_.nccl_streams == 1 ? 0 : settings_.nccl_streams;
  return make_staged(execution_, std::move(closed), stream, out);
}

Status DeviceRunner::choose(const ClosedBatch& closed, DeviceCarrier* out) {
  const hvd_kind kind = closed.batch.descriptor->kind;
  const GpuWay wanted = settings_.gpu_way[kind == HVD_SEND ? HVD_BROADCAST : kind];  // as which a message travels
  const DeviceRow* const row = device_row(closed.batch.descriptor->place);
  const ProcessSet& members = closed.set();
  const Reduction reduction = reduces(kind) ? reduction_of(closed.batch, members.size()) : Reduction{};
  if (row == nullptr || wanted == GpuWay::kHost || (reduces(kind) && !row->can_reduce(reduction, kind))) return {};
  const bool in_levels = settings_.gpu_levels != GpuLevels::kNone && kind == HVD_ALLREDUCE &&
                         has_levels(members.topology) && can_reduce_in_levels(*row, reduction);
  Set& set = set_of(members.number);
  Way& way = in_levels ? set.in_levels : set.whole;
  if (!way.tried) {
    if (!closed.tensors.empty() && !set.whole.tried && !set.in_levels.tried) set.device = closed.tensors.begin()->first;
    HVD_RETURN_IF_ERROR(meet(*row, members, &set, &way, wanted));
  }
  if (way.carriers.empty()) {
    return way.tried && wanted == GpuWay::kNccl ? Status(HVD_UNAVAILABLE, way.why_not) : Status();
  }
  const size_t turn = way.batches++ % way.carriers.size();
  out->communicator = way.carriers[turn];
  out->device = set.device;
  out->blocks = in_levels && settings_.gpu_levels == GpuLevels::kHierarchical;
  if (in_levels) ++counts_.in_levels;
  return set.device->stream(turn, &out->stream);
}

// Collective over the members of the set, at the same place in the log. All streams at once: NCCL allocates memory when
// its ranks meet, which can wait for a kernel that runs.
Status DeviceRunner::meet(const DeviceRow& row, const ProcessSet& members, Set* set, Way* way, GpuWay wanted) {
  DeviceParts parts;
  parts.ranks = members.ranks;
  parts.library = {settings_.nccl_library, settings_.nccl_found};
  parts.device = set->device;
  parts.interrupt = interrupt_;
  parts.timeout_ms = settings_.start_timeout_ms;
  parts.inside = inside_;
  parts.in_aborts = in_aborts_;
  Status joined;
  while (joined.ok() && way->carriers.size() < settings_.nccl_streams) {
    if (parts.device != nullptr) HVD_RETURN_IF_ERROR(parts.device->stream(way->carriers.size(), &parts.stream));
    std::shared_ptr<DeviceCommunicator> carrier;
    joined = join(row, members, parts, way == &set->in_levels, &carrier);
    const std::lock_guard lock(mutex_);
    if (joined.ok()) way->carriers.push_back(std::move(carrier));
  }
  way->tried = joined.code() != HVD_JOINED;
  if (!way->tried) return {};  // until it uses one, the others' tensors go through host memory
  if (joined.ok() || joined.code() != HVD_UNAVAILABLE) return joined;
  const size_t streams = way->carriers.size();
  way->why_not = "NCCL cannot carry the tensors" + members.in_words() + ": " + joined.text();
  const bool is_error = streams == 0 && wanted == GpuWay::kNccl;
  if (members.member == 0 && settings_.warnings && !is_error) {
    warn(streams > 0 ? "NCCL has " + std::to_string(streams) + " of " + std::to_string(settings_.nccl_streams) +
                           " streams: " + joined.text()
                     : way->why_not +
                           "\nhint: they go through host memory, which is slower; "
                           "HOROVOD_GPU_OPERATIONS=host asks for that",
         settings_.log_time);
  }
  return {};
}

Status DeviceRunner::join(const DeviceRow& row, const ProcessSet& members, const DeviceParts& parts, bool in_levels,
                          std::shared_ptr<DeviceCommunicator>* out) {
  if (!in_levels) return row.join(*members.communicator, parts, out);
  MakeAcross make_across;
  if (settings_.gpu_levels == GpuLevels::kHierarchical) {
    make_across = [&](std::unique_ptr<Communicator>* across) -> Status {
      const Members some =
          some_of({members.ranks, members.member, members.topology}, across_hosts(members.topology, members.member));
      const CommunicatorRow* chosen = nullptr;
      HVD_RETURN_IF_ERROR(choose_communicator(settings_.communicator, some.topology, false, &chosen));
      return chosen->make(some, communicator_parts_(), across);
    };
  }
  return join_levels(row, *members.communicator, members.topology, parts, make_across, out);
}

DeviceRunner::Set& DeviceRunner::set_of(int32_t number) {
  const std::lock_guard lock(mutex_);
  return sets_[number];
}

DeviceRunner::Carriers DeviceRunner::take(Set* set) {
  const std::lock_guard lock(mutex_);
  Carriers all = std::exchange(set->whole.carriers, {});
  std::ranges::move(std::exchange(set->in_levels.carriers, {}), std::back_inserter(all));
  return all;
}

void DeviceRunner::forget(int32_t set) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return;
  close_all(take(&found->second), kPatienceToCloseMs);
  const std::lock_guard lock(mutex_);
  sets_.erase(found);
}

void DeviceRunner::drop(bool in_order) {
  Carriers carriers;
  for (auto& [number, set] : sets_) std::ranges::move(take(&set), std::back_inserter(carriers));
  if (in_order) {
    close_all(carriers, kPatienceToCloseMs);
  } else {
    abort_all(carriers, kPatienceToAbortMs);
  }
}

void DeviceRunner::abort_elsewhere() {
  const std::lock_guard lock(mutex_);
  Carriers carriers;
  for (const auto& [number, set] : sets_) {
    for (const Way* const way : {&set.whole, &set.in_levels}) {
      carriers.insert(carriers.end(), way->carriers.begin(), way->carriers.end());
    }
  }
  abort_all(carriers, 0);
}

}  // namespace hvd
