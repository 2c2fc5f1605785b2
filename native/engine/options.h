// SPDX-License-Identifier: Apache-2.0
// The options that an engine is started with.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "horovod/horovod.h"
#include "host/segment.h"
#include "settings/settings.h"
#include "wakeup/poll_bell.h"

namespace hvd {

struct EngineOptions {
  int rank = 0;
  uint64_t generation = 0;
  std::vector<int> host_of_rank;  // equal numbers: these ranks share memory
  EngineSettings settings;
  struct Link {
    int peer;
    hvd_purpose purpose;
    int fd;  // owned by the engine from here on
    int index;
  };
  std::vector<Link> links;
  // Tests run several ranks as threads over one mapping; otherwise made or attached by start().
  std::shared_ptr<Segment> segment;
  std::shared_ptr<const PollBell> poll_bell;  // likewise, of the host's leader
};

}  // namespace hvd
