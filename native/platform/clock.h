// SPDX-License-Identifier: Apache-2.0
// The monotonic clock, sleeping, and times in words.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace hvd {

constexpr uint64_t kMs = 1000000;  // nanoseconds

inline uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}
inline double now_seconds() { return static_cast<double>(now_ns()) * 1e-9; }

inline std::string in_seconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) * 1e-9);
  return text;
}

inline void sleep_ms(int milliseconds) {
  timespec t{milliseconds / 1000, (milliseconds % 1000) * 1000000L};
  nanosleep(&t, nullptr);
}

}  // namespace hvd
