// SPDX-License-Identifier: Apache-2.0
// Handing a descriptor to another process over a unix socket, and the bytes that confirm it; instead of either, why it
// cannot be. Bounded waits; `peer` is the world rank that errors name.
#pragma once

#include <cstdint>

#include "platform/status.h"

namespace hvd {

Status send_descriptor(int socket, int descriptor, int peer);
Status receive_descriptor(int socket, int peer, uint64_t deadline_ns, int* descriptor);
Status send_byte(int socket, int peer);
Status receive_byte(int socket, int peer, uint64_t deadline_ns);
// The peer's receive_descriptor or receive_byte fails with this cause. Never blocks; a peer that is gone needs none.
void send_refusal(int socket, const Status& cause);

}  // namespace hvd
