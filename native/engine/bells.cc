// SPDX-License-Identifier: Apache-2.0
#include "engine/bells.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "platform/futex.h"

namespace hvd {

Bells::Bells(Segment& segment, uint32_t local_rank) : segment_(segment), local_rank_(local_rank) {}

Bells::~Bells() {
  for (const int fd : event_fd_) {
    if (fd >= 0) close(fd);
  }
}

Status Bells::watch(const std::vector<int>& sockets) {
  for (const int fd : sockets) sockets_.emplace_back(fd);
  for (int& fd : event_fd_) {
    fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
  }
  return {};
}

void Bells::unwatch(int socket) {
  for (Watched& watched : sockets_) {
    if (watched.fd.load() == socket) watched.fd.store(-1);
  }
}

void Bells::watch_for_room(int socket, bool wanted) {
  for (Watched& watched : sockets_) {
    if (watched.fd.load() == socket) watched.for_room.store(wanted);
  }
}

void Bells::ring(uint32_t local_rank) {
  const uint32_t sleeping = segment_.rank(local_rank).sleeping.load();
  if (sleeping != 0) ring_bell(local_rank, static_cast<Sleeper>(sleeping));
}

void Bells::ring_others() {
  for (uint32_t r = 0; r < segment_.local_size(); ++r) {
    if (r != local_rank_) ring(r);
  }
}

void Bells::ring_own_engine() { ring_bell(local_rank_, Sleeper::kEngine); }

void Bells::ring_bell(uint32_t local_rank, Sleeper who) {
  std::atomic<uint32_t>& bell = segment_.rank(local_rank).bell[index(who)];
  bell.fetch_add(1);
  futex_wake(bell);
  if (local_rank == local_rank_ && event_fd_[index(who)] >= 0) {
    // Full or interrupted means that it is readable already.
    [[maybe_unused]] const int ignored = eventfd_write(event_fd_[index(who)], 1);
  }
}

bool Bells::exchange(Sleeper expected, Sleeper desired) {
  auto before = static_cast<uint32_t>(expected);
  return own().sleeping.compare_exchange_strong(before, static_cast<uint32_t>(desired));
}

WakeReason Bells::sleep(Sleeper who, uint32_t seen, int64_t timeout_ns, bool with_sockets) {
  const int event_fd = event_fd_[index(who)];
  if (event_fd < 0) {
    switch (futex_wait(own().bell[index(who)], seen, timeout_ns)) {
      case FutexResult::kTimedOut:
        return WakeReason::kTimedOut;
      case FutexResult::kInterrupted:
        return WakeReason::kSignal;
      default:
        return WakeReason::kRung;
    }
  }
  if (own().bell[index(who)].load() != seen) return WakeReason::kRung;
  std::vector<pollfd> watched{{event_fd, POLLIN, 0}};
  if (with_sockets) {
    for (const Watched& socket : sockets_) {  // poll ignores -1
      watched.push_back({socket.fd.load(), static_cast<short>(POLLIN | (socket.for_room.load() ? POLLOUT : 0)), 0});
    }
  }
  const timespec limit{timeout_ns / 1000000000, timeout_ns % 1000000000};
  const int ready = ppoll(watched.data(), watched.size(), timeout_ns < 0 ? nullptr : &limit, nullptr);
  if (ready < 0 && errno == EINTR) return WakeReason::kSignal;
  eventfd_t count = 0;
  [[maybe_unused]] const int ignored = eventfd_read(event_fd, &count);
  return ready == 0 ? WakeReason::kTimedOut : WakeReason::kRung;
}

}  // namespace hvd
