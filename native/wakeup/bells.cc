// SPDX-License-Identifier: Apache-2.0
#include "wakeup/bells.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "platform/futex.h"

namespace hvd {

Bells::Bells(Segment& segment, uint32_t local_rank, std::shared_ptr<const PollBell> of_leader)
    : segment_(segment), local_rank_(local_rank), of_leader_(std::move(of_leader)) {}

void Bells::watch(const std::vector<int>& sockets) {
  for (const int fd : sockets) sockets_.emplace_back(fd);
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
  Doorbell<SharedWord32> door = doorbell(local_rank);
  Ring ring;
  while (ring.state() != Ring::State::kDone) ring.step(door);
  if (ring.who() != Sleeper::kNobody) rang(local_rank, ring.who());
}

void Bells::ring_others() {
  for (uint32_t r = 0; r < segment_.local_size(); ++r) {
    if (r != local_rank_) ring(r);
  }
}

void Bells::ring_own_engine() {
  doorbell(local_rank_).bell(Sleeper::kEngine).fetch_add(1);
  rang(local_rank_, Sleeper::kEngine);
}

// The bell's number has changed: now the system call wakes the thread that sleeps on it.
void Bells::rang(uint32_t local_rank, Sleeper who) {
  futex_wake(segment_.rank(local_rank).bell[index(who)]);
  if (local_rank == 0 && of_leader_ != nullptr) of_leader_->ring(index(who));
}

WakeReason Bells::block(Sleeper who, uint32_t seen, const Sleep& sleep) {
  std::atomic<uint32_t>& bell = segment_.rank(local_rank_).bell[index(who)];
  if (local_rank_ != 0 || of_leader_ == nullptr) {
    switch (futex_wait(bell, seen, sleep.timeout_ns)) {
      case FutexResult::kTimedOut:
        return WakeReason::kTimedOut;
      case FutexResult::kInterrupted:
        return WakeReason::kSignal;
      default:
        return WakeReason::kRung;
    }
  }
  if (bell.load() != seen) return WakeReason::kRung;
  const int event_fd = of_leader_->fd(index(who));
  std::vector<pollfd> watched{{event_fd, POLLIN, 0}};
  for (const Watched& socket : sockets_) {
    if (!sleep.with_sockets) break;
    const int events = POLLIN | (socket.for_room.load() ? POLLOUT : 0);
    watched.push_back({socket.fd.load(), static_cast<short>(events), 0});  // poll ignores -1
  }
  const timespec limit{sleep.timeout_ns / 1000000000, sleep.timeout_ns % 1000000000};
  const int ready = ppoll(watched.data(), watched.size(), &limit, nullptr);
  if (ready < 0 && errno == EINTR) return WakeReason::kSignal;
  eventfd_t count = 0;
  [[maybe_unused]] const int ignored = eventfd_read(event_fd, &count);
  return ready == 0 ? WakeReason::kTimedOut : WakeReason::kRung;
}

}  // namespace hvd
