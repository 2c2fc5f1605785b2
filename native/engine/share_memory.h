// SPDX-License-Identifier: Apache-2.0
// The start inside a host: its leader makes the segment and hands it to the followers over their local links
// (SCM_RIGHTS), and with it, if the leader has sockets to watch, what wakes it.
#pragma once

#include <cstddef>
#include <memory>

#include "engine/options.h"
#include "negotiation/host_map.h"
#include "platform/status.h"

namespace hvd {

// Blocks until all ranks of the host have attached, within the start's time limit. Sets options->poll_bell as well.
Status share_memory(const HostMap& map, size_t area_bytes, EngineOptions* options, std::shared_ptr<Segment>* out);

}  // namespace hvd
