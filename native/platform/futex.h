// SPDX-License-Identifier: Apache-2.0
// Futexes on words that may lie in memory shared between processes.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace hvd {

enum class FutexResult : uint8_t { kWoken, kTimedOut, kInterrupted };  // kWoken includes spurious and value changed

// Sleeps while `word` holds `seen`, for at most timeout_ns (negative: no limit).
inline FutexResult futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int64_t timeout_ns) {
  timespec limit{static_cast<time_t>(timeout_ns / 1000000000), static_cast<long>(timeout_ns % 1000000000)};
  const long result = syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen,
                              timeout_ns < 0 ? nullptr : &limit, nullptr, 0);
  if (result == 0) return FutexResult::kWoken;
  if (errno == ETIMEDOUT) return FutexResult::kTimedOut;
  return errno == EINTR ? FutexResult::kInterrupted : FutexResult::kWoken;
}

inline void futex_wake(std::atomic<uint32_t>& word, int waiters = INT_MAX) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, waiters, nullptr, nullptr, 0);
}

}  // namespace hvd
