// SPDX-License-Identifier: Apache-2.0
#include "engine/monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/clock.h"

namespace hvd {

constexpr int kTickMs = 500;

Monitor::Monitor(Segment& segment, uint32_t local_rank, int stop_fd, std::function<void(int, int)> on_death,
                 std::function<void()> on_tick)
    : segment_(segment),
      local_rank_(local_rank),
      on_death_(std::move(on_death)),
      on_tick_(std::move(on_tick)),
      stop_fd_(stop_fd) {}

Status Monitor::start(Segment& segment, uint32_t local_rank, const std::vector<Peer>& peers,
                      std::function<void(int, int)> on_death, std::function<void()> on_tick,
                      std::unique_ptr<Monitor>* out) {
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
  std::unique_ptr<Monitor> monitor(new Monitor(segment, local_rank, stop_fd, std::move(on_death), std::move(on_tick)));
  for (const Peer& peer : peers) {
    const int pidfd = peer.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)) : -1;
    if (pidfd >= 0) {
      monitor->watches_.push_back({peer, pidfd, true});
    } else if (peer.socket >= 0) {
      monitor->watches_.push_back({peer, peer.socket, false});
    }
  }
  monitor->thread_ = std::thread([watching = monitor.get()] { watching->run(); });
  *out = std::move(monitor);
  return {};
}

Monitor::~Monitor() {
  [[maybe_unused]] const int ignored = eventfd_write(stop_fd_, 1);
  if (thread_.joinable()) thread_.join();  // not where the thread could not be started
  for (const Watch& watch : watches_) {
    if (watch.owned) close(watch.fd);
  }
  close(stop_fd_);
}

void Monitor::run() {
  uint64_t next_tick_ns = now_ns();
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= next_tick_ns) {
      segment_.rank(local_rank_).beat.fetch_add(1, std::memory_order_relaxed);
      on_tick_();
      next_tick_ns = now + kTickMs * 1000000ull;
    }
    std::vector<pollfd> watched{{stop_fd_, POLLIN, 0}};
    // A pidfd is readable when its process has ended; a local socket carries nothing after the start but its end.
    for (const Watch& watch : watches_) watched.push_back({watch.fd, POLLIN, 0});
    const int timeout_ms = static_cast<int>((next_tick_ns - std::min(next_tick_ns, now_ns())) / 1000000 + 1);
    if (::poll(watched.data(), watched.size(), timeout_ms) <= 0) continue;
    if (watched[0].revents != 0) return;
    for (size_t i = watches_.size(); i-- > 0;) {
      if (watched[i + 1].revents == 0) continue;
      const Watch watch = watches_[i];
      watches_.erase(watches_.begin() + static_cast<ptrdiff_t>(i));
      if (watch.owned) close(watch.fd);
      if (segment_.rank(watch.peer.local_rank).left.load() == 0) on_death_(watch.peer.rank, watch.peer.pid);
    }
  }
}

}  // namespace hvd
