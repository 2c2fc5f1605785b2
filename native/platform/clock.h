// SPDX-License-Identifier: Apache-2.0
// The monotonic clock and sleeping.
#pragma once

#include <time.h>

#include <cstdint>

namespace hvd {

inline uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}
inline double now_seconds() { return static_cast<double>(now_ns()) * 1e-9; }

inline void sleep_ms(int milliseconds) {
  timespec t{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  nanosleep(&t, nullptr);
}

}  // namespace hvd
