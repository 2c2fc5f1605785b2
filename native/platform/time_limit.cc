// SPDX-License-Identifier: Apache-2.0
#include "platform/time_limit.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd {

void limit_time(uint32_t timeout_ms, std::string text) {
  struct Limit {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t number = 0;
  };
  static auto* const limit = new Limit;  // never destroyed: its thread may outlive the library's statics
  const std::lock_guard lock(limit->mutex);
  const uint64_t number = ++limit->number;
  limit->changed.notify_all();
  if (timeout_ms == 0) return;
  std::thread([number, timeout_ms, text = std::move(text)] {
    std::unique_lock mine(limit->mutex);
    const auto is_over = [number] { return limit->number != number; };
    if (limit->changed.wait_for(mine, std::chrono::milliseconds(timeout_ms), is_over)) return;
    [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
    _exit(1);
  }).detach();
}

}  // namespace hvd
