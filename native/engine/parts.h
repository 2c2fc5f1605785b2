// SPDX-License-Identifier: Apache-2.0
// The parts of a generation that Calls, Submitter and Runner share. The engine makes and owns them.
#pragma once

#include <memory>

#include "engine/arrivals.h"
#include "engine/serve.h"
#include "engine/trace.h"
#include "execution/process_set.h"
#include "host/board.h"
#include "negotiation/host_map.h"
#include "negotiation/publisher.h"
#include "settings/settings.h"
#include "wakeup/bells.h"
#include "wakeup/ending.h"
#include "wakeup/wakeup.h"

namespace hvd {

struct EngineParts {
  const EngineSettings& settings;
  const HostMap& map;
  std::shared_ptr<ProcessSet> world;  // set 0, all ranks
  Clock& clock;
  Segment& segment;
  SegmentBoard& board;
  Bells& bells;
  Ending& ending;
  Wakeup& wakeup;
  Publisher& publisher;
  HostService* service;  // null: this rank is not its host's leader
  Trace& trace;
  Arrivals& arrivals;
};

}  // namespace hvd
