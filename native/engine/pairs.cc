// SPDX-License-Identifier: Apache-2.0
// The communicator of a pair (step 7), which carries messages between its two ranks. Both make it when their first
// message runs, at the same place of the log. It stays until the generation ends.
#include <algorithm>

#include "engine/runner.h"
#include "platform/wait.h"

namespace hvd {

Status Runner::connect_pair(const Batch& batch) {
  if (batch.descriptor->kind != HVD_SEND) return {};
  ProcessSet& pair = *running_.calls[batch.entry]->prepared->set;
  if (pair.communicator != nullptr) return {};
  HVD_RETURN_IF_ERROR(choose_communicator(settings_.communicator, pair.topology, false, &pair.row));
  pair.area_bytes = pair.row->shared_bytes(pair.topology, pair.member);
  if (pair.area_bytes > 0) HVD_RETURN_IF_ERROR(map_pair(&pair));
  const std::lock_guard lock(communicator_mutex_);
  return pair.row->make({pair.ranks, pair.member, pair.topology}, parts_in(pair.area.get()), &pair.communicator);
}

// The lower rank takes the memory, and says where.
Status Runner::map_pair(ProcessSet* pair) {
  const auto local = [this](int rank) {
    return static_cast<uint32_t>(std::ranges::find(map_.ranks_here, rank) - map_.ranks_here.begin());
  };
  std::atomic<uint64_t>& place = segment_.pair_area(local(pair->ranks[0]), local(pair->ranks[1]));
  if (pair->member == 0) {
    const Status taken = segment_.take_area(pair->area_bytes, &pair->area_offset);
    place.store(taken.ok() ? 1 + pair->area_offset : Segment::kNoArea);
    HVD_RETURN_IF_ERROR(taken);
  }
  while (place.load() == 0) {
    if (ending_.poisoned()) return ending_.cause();
    cpu_pause();
  }
  if (place.load() == Segment::kNoArea) {
    return {HVD_UNAVAILABLE,
            "rank " + std::to_string(pair->ranks[0]) + " has no shared memory for messages to rank " +
                std::to_string(pair->ranks[1]),
            pair->ranks[0]};
  }
  pair->area_offset = place.load() - 1;
  return segment_.map_area(pair->area_offset, pair->area_bytes, &pair->area);
}

}  // namespace hvd
