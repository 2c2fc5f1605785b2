// SPDX-License-Identifier: Apache-2.0
// GpuWatch: what is done about a GPU, or an NCCL, that does not get on (step 7). Nothing tells that a GPU hangs, and
// NCCL's kernels wait for ever for a rank that has not come. So this rank says on stderr, at the limit of stall
// reports, what its GPU waits for; at the limit of NCCL it ends the generation, and the cause names the rank whose
// inputs were not computed.
//
// Once the generation has ended, NCCL is told so by the driver's thread. If that one sits inside a call of NCCL which
// does not return, another thread tells NCCL; if that does not help either, the process ends: the launcher, and the
// other ranks, must not wait for it.
//
// look() and look_at_inputs() under the driver's token, tick() on the monitor's thread. Nothing blocks.
#pragma once

#include <cstdint>
#include <string>

#include "gpu/device_runner.h"
#include "gpu/launched_calls.h"
#include "platform/status.h"
#include "settings/settings.h"
#include "wakeup/ending.h"

namespace hvd {

class GpuWatch {
 public:
  GpuWatch(const EngineSettings& settings, int rank) : settings_(settings), rank_(rank) {}

  // A failure ends the generation.
  Status look(const LaunchedCalls& launched);
  // Of the staged call `name`, which waits for them since that time.
  Status look_at_inputs(uint64_t since_ns, const std::string& name);
  void tick(DeviceRunner& runner, Ending& ending);

 private:
  uint64_t soonest_limit_ns() const;
  Status judge(uint64_t since_ns, const std::string& name, bool has_inputs);
  void judge_nccl(uint64_t inside_ns, Ending& ending);

  const EngineSettings& settings_;
  const int rank_;
  uint64_t told_since_ns_ = 0;  // of what has been said last
  bool told_of_nccl_ = false;   // of the call that has not returned
  uint64_t ended_ns_ = 0;       // when the monitor saw the end
  bool aborting_ = false;
};

}  // namespace hvd
