// SPDX-License-Identifier: Apache-2.0
// The stall report, by rank 0: what some ranks have waited for so long that people should look, and which ranks are
// missing. One report for all that stalls, repeated as long as anything does; the missing ranks are asked first where
// they stand.
//
// report() runs under the driver's token, at each tick of the monitor; the monitor's thread calls the other two.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/settings.h"
#include "negotiation/leader.h"
#include "platform/clock.h"
#include "platform/status.h"

namespace hvd {

class StallReport {
 public:
  // Both are borrowed.
  StallReport(const EngineSettings& settings, Leader& leader);

  // A failure ends the generation: the stall limit is reached, or the ranks' models differ.
  Status report();
  void note_tick() { ticked_ns_.store(now_ns()); }
  // This process runs again after it had been held up.
  void note_pause() { resumed_ns_.store(now_ns()); }

 private:
  void tell(const std::string& report, std::vector<int> asked, bool crossed);

  const EngineSettings& settings_;
  Leader& leader_;
  uint64_t told_ns_ = 0;
  uint64_t asked_ns_ = 0;  // for stacks, of the report to come; 0: not asked
  std::atomic<uint64_t> ticked_ns_{0};
  std::atomic<uint64_t> resumed_ns_{0};
};

}  // namespace hvd
