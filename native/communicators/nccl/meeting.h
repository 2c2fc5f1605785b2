// SPDX-License-Identifier: Apache-2.0
// The meeting of ranks in NCCL: ncclCommInitRankConfig and a first operation, within the time that DeviceParts allows.
#pragma once

#include <memory>

#include "communicators/nccl/library.h"

namespace hvd::nccl {

// Those of the host's members that this communicator joins.
struct Group {
  int member = 0, size = 0;
  size_t first = 0;  // of them, among the host's
};

// Blocks until all members have met. HVD_UNAVAILABLE if it is time to give up, HVD_ABORTED if it was interrupted.
Status meet(const DeviceParts& parts, const std::shared_ptr<const Library>& library, const Group& group,
            const UniqueId& id, Comm* out);

}  // namespace hvd::nccl
