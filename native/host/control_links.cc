// SPDX-License-Identifier: Apache-2.0
#include "host/control_links.h"

#include <poll.h>

#include <utility>

namespace hvd {

void ControlLinks::add(int fd, int peer, int host, bool is_below) {
  links_.push_back({SocketLink(fd, peer), host, is_below});
  const auto index = static_cast<size_t>(host);
  if (by_host_.size() <= index) by_host_.resize(index + 1, nullptr);
  by_host_[index] = &links_.back();
}

void ControlLinks::send(int host, FrameKind kind, std::string_view payload) {
  const auto index = static_cast<size_t>(host);
  if (index < by_host_.size() && by_host_[index] != nullptr) by_host_[index]->socket.send(kind, payload);
  if (kind == FrameKind::kRecords) messages_.fetch_add(1, std::memory_order_relaxed);
}

void ControlLinks::send_to_all(FrameKind kind, std::string_view payload) {
  for (Link& link : links_) link.socket.send(kind, payload);
}

void ControlLinks::end_batch() {
  std::vector<uint64_t> until;
  // Towards rank 0 nothing is waited for: it may be in the batch by now, and read nothing.
  for (const Link& link : links_) until.push_back(link.is_below ? link.socket.bytes_queued() : 0);
  batches_.push_back(std::move(until));
}

void ControlLinks::hand_out_batch(const std::function<bool()>& interrupted) {
  if (batches_.empty()) return;
  const std::vector<uint64_t> until = std::move(batches_.front());
  batches_.pop_front();
  while (!interrupted()) {
    std::vector<pollfd> full;
    for (size_t i = 0; i < until.size(); ++i) {
      SocketLink& socket = links_[i].socket;
      socket.pump();
      if (socket.bytes_sent() < until[i] && !socket.closed()) full.push_back({socket.fd(), POLLOUT, 0});
    }
    if (full.empty()) return;
    ::poll(full.data(), full.size(), 100);
  }
}

bool ControlLinks::wait_to_read(int timeout_ms) {
  std::vector<pollfd> watched;
  for (const Link& link : links_) {
    if (!link.socket.closed()) watched.push_back({link.socket.fd(), POLLIN, 0});
  }
  if (watched.empty()) return false;
  ::poll(watched.data(), watched.size(), timeout_ms);
  return true;
}

void ControlLinks::finish_sending() {
  for (Link& link : links_) link.socket.finish_sending();
}

}  // namespace hvd
