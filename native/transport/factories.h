// SPDX-License-Identifier: Apache-2.0
// How the engine makes transports. It never names a concrete class.
#pragma once

#include <memory>
#include <vector>

#include "platform/interrupt.h"
#include "reduction/kernels.h"
#include "transport/transport.h"

namespace hvd {

struct TransportOptions {
  InstructionSet isa = InstructionSet::kBest;  // tests force the narrower ones
  bool force_streamed = false;                 // override the choice by the measured line hop
  bool force_cached = false;
};

// Bytes of zero-initialised shared memory, aligned to 4096, that the members of a host need among them.
size_t shm_transport_bytes(int members);
// Collective over the host: blocks until all members are there, measures the cache-line hop.
// `area` is the same memory in every member. world_ranks: by member.
Status make_shm_transport(std::byte* area, int member, const std::vector<int>& world_ranks,
                          const TransportOptions& options, const Interrupt& interrupt, std::unique_ptr<Transport>* out);
// sockets[m]: connected stream sockets to member m (owned by the transport from here on), empty for `member` itself;
// the same number for every pair, in the same order at both ends.
Status make_tcp_transport(std::vector<std::vector<int>> sockets, int member, const std::vector<int>& world_ranks,
                          const TransportOptions& options, const Interrupt& interrupt, std::unique_ptr<Transport>* out);
std::unique_ptr<Transport> make_loopback_transport(const TransportOptions& options);

}  // namespace hvd
