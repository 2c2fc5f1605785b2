// SPDX-License-Identifier: Apache-2.0
#include "host/link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "platform/private_descriptors.h"

namespace hvd {

void RingSender::send(FrameKind kind, std::string_view payload) {
  const std::lock_guard lock(mutex_);
  unsent_ += make_frame(kind, payload);
  pump_locked();
}

bool RingSender::pump() {
  if (!waits_for_room_.load()) return false;
  const std::lock_guard lock(mutex_);
  return pump_locked();
}

bool RingSender::pump_locked() {
  if (unsent_.empty()) return false;
  const uint64_t written = ring_->written.load(std::memory_order_relaxed);
  const uint64_t room = kRingBytes - (written - ring_->read.load(std::memory_order_acquire));
  const size_t length = std::min<uint64_t>(room, unsent_.size());
  const size_t start = written % kRingBytes;
  const size_t first = std::min<size_t>(length, kRingBytes - start);
  std::memcpy(ring_->bytes + start, unsent_.data(), first);
  std::memcpy(ring_->bytes, unsent_.data() + first, length - first);
  ring_->written.store(written + length, std::memory_order_seq_cst);
  unsent_.erase(0, length);
  waits_for_room_.store(!unsent_.empty());
  return length > 0;
}

bool RingSender::can_pump() const {
  return waits_for_room_.load() &&
         ring_->written.load(std::memory_order_relaxed) - ring_->read.load() < uint64_t{kRingBytes};
}

bool RingReceiver::has_data() const {
  return ring_->written.load(std::memory_order_seq_cst) != ring_->read.load(std::memory_order_relaxed);
}

bool RingReceiver::receive() {
  const uint64_t read = ring_->read.load(std::memory_order_relaxed);
  const uint64_t length = ring_->written.load(std::memory_order_acquire) - read;
  if (length == 0) return false;
  if (length > kRingBytes) {
    frames_.reject();
    return true;
  }
  const size_t start = read % kRingBytes;
  const size_t first = std::min<size_t>(length, kRingBytes - start);
  frames_.feed(ring_->bytes + start, first);
  frames_.feed(ring_->bytes, length - first);
  ring_->read.store(read + length);
  return true;
}

SocketLink::SocketLink(int fd, int peer) : fd_(fd), peer_(peer) {
  fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
  int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // has no meaning, and no effect, on a unix socket
}

SocketLink::SocketLink(SocketLink&& other) noexcept
    : fd_(other.fd_),
      peer_(other.peer_),
      closed_(other.closed_),
      unsent_(std::move(other.unsent_)),
      bytes_sent_(other.bytes_sent_),
      frames_(std::move(other.frames_)) {
  other.fd_ = -1;
}

SocketLink::~SocketLink() {
  if (fd_ >= 0) close_private(fd_);
}

void SocketLink::send(FrameKind kind, std::string_view payload) {
  unsent_ += make_frame(kind, payload);
  pump();
}

void SocketLink::pump() {
  while (!unsent_.empty() && !closed_) {
    const ssize_t sent = ::send(fd_, unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      unsent_.erase(0, static_cast<size_t>(sent));
      bytes_sent_ += static_cast<uint64_t>(sent);
    } else if (errno == EINTR) {
      continue;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else {
      // The reason is read from the other direction: what the peer had to say before it went comes first.
      bytes_sent_ += unsent_.size();
      unsent_.clear();
      return;
    }
  }
}

bool SocketLink::receive() {
  char bytes[16384];
  bool any = false;
  // Not more at once than is cut into frames before the next: a peer that never pauses must not fill the memory.
  for (int left = 64; left > 0 && !closed_; --left) {
    const ssize_t received = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (received > 0) {
      frames_.feed(bytes, static_cast<size_t>(received));
      any = true;
    } else if (received == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      closed_ = true;
      any = true;
    } else if (errno != EINTR) {
      break;
    }
  }
  return any;
}

void SocketLink::finish_sending() {
  pump();
  shutdown(fd_, SHUT_WR);
}

}  // namespace hvd
