// SPDX-License-Identifier: Apache-2.0
// Fault points: named moments at which a test ends or stops this process, or another one such as the launcher.
//
// Switched on by a setting and not by a special build, so that the tests run the library that ships. While it is off
// (HOROVOD_FAULT_POINT is not set), a point costs one load of a word that never changes and a branch that is never
// taken. A user who can set a rank's environment owns its process and could end it anyway.
//
// A specification is POINT[@N]:ACTION[=PID]: at the Nth pass (1 by default) through POINT, do ACTION, which is
// kill (SIGKILL), stop (SIGSTOP), or exitN (the process ends at once with code N), to this process, or the signal to
// process PID. Or it is pauseN: this thread sleeps for N milliseconds, and the others go on. A line on stderr says so
// just before, with the time of the monotonic clock.
#pragma once

#include <atomic>
#include <string>

namespace hvd {

extern std::atomic<bool> fault_points_armed;

// False if the text is not a specification. Empty: off. Before any engine's thread runs.
bool arm_fault_point(const std::string& specification);

void reach_fault_point(const char* name);
inline void fault_point(const char* name) {
  if (fault_points_armed.load(std::memory_order_relaxed)) [[unlikely]]
    reach_fault_point(name);
}

}  // namespace hvd
