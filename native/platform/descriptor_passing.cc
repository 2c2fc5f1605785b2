// SPDX-License-Identifier: Apache-2.0
#include "platform/descriptor_passing.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "platform/clock.h"

namespace hvd {
namespace {

// Every message is one byte; kRefuses is followed by i32 code | text, and nothing follows that.
constexpr char kHandsOver = 'm', kAttached = 'a', kRefuses = 'e';
constexpr size_t kMaxRefusalBytes = 2048;

Status failed(const std::string& what, int peer) {
  return {HVD_UNAVAILABLE, what + " rank " + std::to_string(peer) + ": " + std::strerror(errno), peer};
}

Status wait_readable(int socket, int peer, uint64_t deadline_ns) {
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) {
      return {HVD_UNAVAILABLE, "rank " + std::to_string(peer) + " did not attach in time", peer};
    }
    pollfd watched{socket, POLLIN, 0};
    const int ready = poll(&watched, 1, static_cast<int>((deadline_ns - now) / 1000000 + 1));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return failed("cannot wait for", peer);
  }
}

// The text after kRefuses: it was sent in one piece of less than a page, so it is there.
Status refused(int socket, int peer) {
  char bytes[sizeof(int32_t) + kMaxRefusalBytes];
  const ssize_t length = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
  int32_t code = HVD_UNAVAILABLE;
  std::string text = "rank " + std::to_string(peer) + " cannot take part";
  if (length > static_cast<ssize_t>(sizeof code)) {
    std::memcpy(&code, bytes, sizeof code);
    text.assign(bytes + sizeof code, static_cast<size_t>(length) - sizeof code);
  }
  const bool known = code >= HVD_INVALID_ARGUMENT && code <= HVD_INTERNAL;
  return {known ? static_cast<hvd_code>(code) : HVD_UNAVAILABLE, std::move(text), peer};
}

// A peer that has hung up may have said why.
Status failed_unless_refused(const std::string& what, int socket, int peer) {
  const Status failure = failed(what, peer);
  char byte = 0;
  return recv(socket, &byte, 1, MSG_DONTWAIT) == 1 && byte == kRefuses ? refused(socket, peer) : failure;
}

void close_all(const cmsghdr* header) {
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return;
  for (size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
    int descriptor = -1;
    std::memcpy(&descriptor, reinterpret_cast<const char*>(header) + at, sizeof descriptor);
    close(descriptor);
  }
}

}  // namespace

Status send_descriptor(int socket, int descriptor, int peer) {
  char byte = kHandsOver;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  while (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) {
    if (errno != EINTR) return failed_unless_refused("cannot hand the shared memory to", socket, peer);
  }
  return {};
}

Status receive_descriptor(int socket, int peer, uint64_t deadline_ns, int* descriptor) {
  HVD_RETURN_IF_ERROR(wait_readable(socket, peer, deadline_ns));
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return failed("cannot receive the shared memory from", peer);
  if (received == 1 && byte == kRefuses) return refused(socket, peer);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  // One descriptor: the room that alignment leaves for a second one would keep it open unseen.
  if (received == 0 || header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    close_all(header);
    return {HVD_UNAVAILABLE, "rank " + std::to_string(peer) + " ended before it handed over the shared memory", peer};
  }
  std::memcpy(descriptor, CMSG_DATA(header), sizeof *descriptor);
  return {};
}

Status send_byte(int socket, int peer) {
  const char byte = kAttached;
  while (send(socket, &byte, 1, MSG_NOSIGNAL) != 1) {
    if (errno != EINTR) return failed_unless_refused("cannot answer", socket, peer);
  }
  return {};
}

Status receive_byte(int socket, int peer, uint64_t deadline_ns) {
  HVD_RETURN_IF_ERROR(wait_readable(socket, peer, deadline_ns));
  char byte = 0;
  const ssize_t received = recv(socket, &byte, 1, 0);
  if (received == 1) return byte == kRefuses ? refused(socket, peer) : Status();
  if (received < 0) return failed("cannot hear from", peer);
  return {HVD_UNAVAILABLE, "rank " + std::to_string(peer) + " ended while it attached", peer};
}

void send_refusal(int socket, const Status& cause) {
  std::string bytes(1, kRefuses);
  const int32_t code = cause.code();
  bytes.append(reinterpret_cast<const char*>(&code), sizeof code).append(cause.text(), 0, kMaxRefusalBytes);
  // A peer that is gone, or whose socket is full, learns it from the end of the stream.
  [[maybe_unused]] const ssize_t ignored = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace hvd
