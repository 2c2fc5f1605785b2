// SPDX-License-Identifier: Apache-2.0
// When another machine last gave a sign of life on a TCP connection. Its kernel does so, however slow, or stopped, the
// process at that end is. From any thread; nothing blocks.
#pragma once

#include <cstdint>
#include <optional>

namespace hvd {

struct SignOfLife {
  // Since anything was acknowledged, or an acknowledgement came by itself; 0 while there is nothing to acknowledge.
  uint64_t silent_ms;
  uint64_t round_trip_ms;  // smoothed; queues on the way included
};

// Makes the kernel ask several times within the timeout, even if this process sends nothing.
void ask_for_signs_of_life(int fd, uint64_t lost_timeout_ms);

// Empty if `fd` is not a TCP connection.
std::optional<SignOfLife> sign_of_life(int fd);

}  // namespace hvd
