// SPDX-License-Identifier: Apache-2.0
// The stall report, by rank 0: operations for which some ranks have waited so long that people should look, and which
// ranks are missing. There is one report for all stalled operations, repeated while any is stalled. The missing ranks
// are first asked where they stand.
//
// report() runs under the driver's token, at each tick of the monitor; the monitor's thread calls the other two.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "negotiation/leader.h"
#include "platform/clock.h"
#include "platform/status.h"
#include "settings/settings.h"

namespace hvd {

class StallReport {
 public:
  // Both are borrowed.
  StallReport(const EngineSettings& settings, Leader& leader);

  // After this time an operation counts as late, and every host's leader says so; 0: no operation ever does.
  static uint64_t late_ms(const EngineSettings& settings);

  // A failure ends the generation: the stall limit is reached, the ranks' models differ, or ranks that wait for each
  // other can do nothing else.
  Status report();
  // All hosts have answered which ranks wait: report() can go on.
  bool is_answered() const { return asked_hosts_ns_ != 0 && leader_.facts().all_have_told(); }
  void note_tick() { ticked_ns_.store(now_ns()); }
  // This process runs again after it had been held up.
  void note_pause() { resumed_ns_.store(now_ns()); }

 private:
  bool anything_is_late(double resumed_s);
  bool knows_who_waits();
  void tell(const std::string& report, const std::string& hint, std::vector<int> asked);
  bool is_certain() const;

  const EngineSettings& settings_;
  Leader& leader_;
  uint64_t told_ns_ = 0;
  uint64_t proven_ns_ = 0;       // since when ranks are known to wait for each other for ever; 0: they are not
  uint64_t asked_hosts_ns_ = 0;  // who waits; 0: not asked
  uint64_t asked_ns_ = 0;        // for stacks, of the report to come; 0: not asked
  std::atomic<uint64_t> ticked_ns_{0};
  std::atomic<uint64_t> resumed_ns_{0};
};

}  // namespace hvd
