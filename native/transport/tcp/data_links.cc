// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/data_links.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "platform/private_descriptors.h"

namespace hvd {
namespace {

constexpr size_t kMaxSockets = 16;  // of one message
constexpr size_t kMaxText = 2048;

Status opener_ended(const std::string& why) { return {HVD_UNAVAILABLE, "no more data links can be opened: " + why}; }

std::vector<int> sockets_in(msghdr* message) {
  std::vector<int> sockets;
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int), before = sockets.size();
    sockets.resize(before + count);
    std::memcpy(sockets.data() + before, CMSG_DATA(header), count * sizeof(int));
  }
  return sockets;
}

}  // namespace

DataLinks::~DataLinks() {
  for (const std::vector<int>& sockets : of_rank_) {
    for (int fd : sockets) close_private(fd);
  }
  if (opener_ >= 0) close_private(opener_);
}

const std::vector<int>& DataLinks::to(int rank) const {
  static const std::vector<int> none;
  const auto index = static_cast<size_t>(rank);
  return index < of_rank_.size() ? of_rank_[index] : none;
}

short DataLinks::events() const { return static_cast<short>(unasked_.empty() ? POLLIN : POLLIN | POLLOUT); }

Status DataLinks::want(int rank) {
  const auto index = static_cast<size_t>(rank);
  if (wanted_.size() <= index) wanted_.resize(index + 1, false);
  if (wanted_[index]) return {};
  wanted_[index] = true;
  unasked_.push_back(rank);
  return ask();
}

Status DataLinks::ask() {
  while (!unasked_.empty()) {
    const ssize_t sent = send(opener_, &unasked_.front(), sizeof(int32_t), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      unasked_.pop_front();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return {};
    } else if (errno != EINTR) {
      return opener_ended(std::strerror(errno));
    }
  }
  return {};
}

Status DataLinks::take() {
  HVD_RETURN_IF_ERROR(ask());
  for (;;) {
    int32_t rank = -1;
    char text[kMaxText];
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxSockets * sizeof(int))];
    iovec parts[] = {{&rank, sizeof rank}, {text, sizeof text}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t received = recvmsg(opener_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return {};
      return opener_ended(std::strerror(errno));
    }
    std::vector<int> sockets = sockets_in(&message);
    for (const int fd : sockets) keep_private(fd);
    if (received == 0) return opener_ended("the thread that opens them has ended");
    const auto length = received - static_cast<ssize_t>(sizeof rank);
    if (length > 0 && sockets.empty()) return {HVD_RANK_LOST, {text, static_cast<size_t>(length)}, rank};
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      for (const int fd : sockets) close_private(fd);
      return {HVD_UNAVAILABLE, "the data links with rank " + std::to_string(rank) +
                                   " cannot be taken: too many open files\nhint: raise the limit (ulimit -n)"};
    }
    HVD_RETURN_IF_ERROR(add(rank, std::move(sockets)));
  }
}

Status DataLinks::add(int rank, std::vector<int> sockets) {
  const auto index = static_cast<size_t>(rank);
  const bool asked = rank >= 0 && index < wanted_.size() && wanted_[index] && to(rank).empty();
  if (!asked || static_cast<int>(sockets.size()) != links_per_peer_) {
    for (const int fd : sockets) close_private(fd);
    return {HVD_INTERNAL, std::to_string(sockets.size()) + " data links were opened with rank " + std::to_string(rank) +
                              ", expected " + std::to_string(asked ? links_per_peer_ : 0)};
  }
  if (of_rank_.size() <= index) of_rank_.resize(index + 1);
  of_rank_[index] = std::move(sockets);
  return {};
}

}  // namespace hvd
