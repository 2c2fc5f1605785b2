// SPDX-License-Identifier: Apache-2.0
// The parts of a generation that Calls, Submitter and Runner share. The engine makes and owns them.
#pragma once

#include <memory>

#include "engine/bells.h"
#include "engine/board.h"
#include "engine/ending.h"
#include "engine/process_set.h"
#include "engine/serve.h"
#include "engine/settings.h"
#include "engine/trace.h"
#include "engine/wakeup.h"
#include "negotiation/host_map.h"
#include "negotiation/publisher.h"

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
};

}  // namespace hvd
