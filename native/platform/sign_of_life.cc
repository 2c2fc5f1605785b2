// SPDX-License-Identifier: Apache-2.0
#include "platform/sign_of_life.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace hvd {

void ask_for_signs_of_life(int fd, uint64_t lost_timeout_ms) {
  const int on = 1, seconds = static_cast<int>(std::clamp<uint64_t>(lost_timeout_ms / 4000, 1, 60));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
}

std::optional<SignOfLife> sign_of_life(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) < 0) return std::nullopt;
  // A full window is probed ever more seldom, so its silence is none until a probe has gone without an answer. Of the
  // last one the answer may be on its way.
  const bool is_due = info.tcpi_unacked > 0 || info.tcpi_probes > 1;
  const uint32_t silent_ms = is_due ? std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv) : 0;
  return SignOfLife{silent_ms, info.tcpi_rtt / 1000};
}

}  // namespace hvd
