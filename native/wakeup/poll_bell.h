// SPDX-License-Identifier: Apache-2.0
// Wakes a host's leader that sleeps in poll(), where a futex cannot reach it: one eventfd for each sleeper (step 5).
// The leader makes them; its followers hold duplicates, which come with the host's memory. Owns the descriptors.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>

#include "platform/status.h"

namespace hvd {

class PollBell {
 public:
  static constexpr size_t kSleepers = 2;

  static Status make(std::shared_ptr<const PollBell>* out) {
    auto bell = std::make_shared<PollBell>();
    for (int& fd : bell->fds_) {
      fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
      if (fd < 0) return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
    }
    *out = std::move(bell);
    return {};
  }
  PollBell() = default;
  explicit PollBell(const int (&received)[kSleepers]) : fds_{received[0], received[1]} {}
  ~PollBell() {
    for (const int fd : fds_) {
      if (fd >= 0) close(fd);
    }
  }
  PollBell(const PollBell&) = delete;
  PollBell& operator=(const PollBell&) = delete;

  int fd(size_t sleeper) const { return fds_[sleeper]; }
  void ring(size_t sleeper) const {
    // Full or interrupted means that it is readable already.
    [[maybe_unused]] const int ignored = eventfd_write(fds_[sleeper], 1);
  }

 private:
  int fds_[kSleepers] = {-1, -1};
};

}  // namespace hvd
