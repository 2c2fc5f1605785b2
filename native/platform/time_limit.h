// SPDX-License-Identifier: Apache-2.0
// A time limit for this process, while it is in a call that may never return and that nothing can interrupt, such as
// MPI_Init. The thread that keeps it needs nothing of the caller, and no interpreter's lock.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

// After that time, `text` goes to stderr and the process ends with exit code 1; 0 milliseconds: there is no limit any
// more. A limit replaces the one before. Any thread; blocks never.
void limit_time(uint32_t timeout_ms, std::string text);

}  // namespace hvd
