// SPDX-License-Identifier: Apache-2.0
// Choices by size (step 7): which algorithm an operation of so many bytes among so many members runs, over how many
// links, and into which pieces it is cut. Communicators and algorithms ask here, and so does a simulator that wants to
// know what they would do without running them. All members have the same sizes, so they get the same answers.
//
// Pure. Two choices are not here, because they are measured while a job runs: which store instructions are used
// (communicators/shm/), and how many members of a host carry data (communicators/hierarchical/).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "transport/mesh.h"
#include "transport/shm/slot_ring.h"

namespace hvd::plan {

constexpr size_t kUnitBytes = 64;  // shares begin on cache lines

inline int64_t unit_elements(size_t element_bytes) {
  return static_cast<int64_t>(std::max<size_t>(1, kUnitBytes / element_bytes));
}
inline size_t round_up_to_units(size_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes; }
inline int64_t pieces_of(int64_t count, int64_t piece) { return (count + piece - 1) / piece; }

// Inside a host (slot_allreduce.h). One-shot reads (members - 1) times the payload, two-shot less than twice, but with
// one more wait.
inline size_t one_shot_bytes(int members, size_t chunk_bytes) {
  constexpr size_t kMostRead = size_t{64} << 10, kAlways = 4096;
  return std::min(std::max(kMostRead / static_cast<size_t>(std::max(1, members - 1)), kAlways), chunk_bytes);
}
enum class Shots : uint8_t { kTiny, kOne, kTwo };
inline Shots shots_of(size_t bytes, int members, size_t chunk_bytes) {
  if (bytes <= kTinyBytes) return Shots::kTiny;
  return bytes <= one_shot_bytes(members, chunk_bytes) ? Shots::kOne : Shots::kTwo;
}
// Enough chunks that the three stages of a two-shot overlap, none so small that the counters cost more than the data.
inline size_t two_shot_chunk_bytes(size_t bytes, size_t chunk_bytes) {
  constexpr size_t kLeast = size_t{128} << 10;
  return std::clamp(round_up_to_units(bytes / 4), std::min(kLeast, chunk_bytes), chunk_bytes);
}

// Over a mesh (mesh_allreduce.h). Below this size, a second message's latency costs more than sending the whole input
// to every member.
inline bool is_gathered(size_t bytes, int members) {
  constexpr size_t kMostSent = size_t{16} << 10;
  return members == 1 || bytes * static_cast<size_t>(members - 1) <= kMostSent;
}
inline int links_for(size_t bytes, int links_per_peer) {
  constexpr size_t kManyLinksBytes = size_t{1} << 20;
  return bytes >= kManyLinksBytes ? links_per_peer : 1;
}
// The elements of a chunk of a direct allreduce, which is cut into so many shares. At least two chunks if the batch is
// large enough to be cut at all, so that one is folded while the other is under way. But each chunk is two messages to
// every peer: among many hosts, and so in groups of them, small chunks take longer than they save. The limits are from
// build/native/bench_simulated, for 10 Gbit/s and 3 or 5 us a message: one chunk was up to twice as fast from 32 hosts
// on, and 2% slower at worst; in groups, too.
inline int64_t direct_chunk_elements(int64_t count, size_t element_bytes, int shares, bool in_groups,
                                     Mesh::MessageBytes limits) {
  constexpr int kManyShares = 32;
  const size_t small_share = size_t{in_groups ? 128u : 32u} << 10;
  const size_t whole = static_cast<size_t>(count) * element_bytes / static_cast<size_t>(shares);
  const bool is_one = (in_groups || shares >= kManyShares) && whole < small_share;
  const size_t wanted = is_one ? whole : whole / 2;
  const size_t share = round_up_to_units(std::clamp(wanted, limits.least_reduced, limits.most_reduced));
  return std::min(count, static_cast<int64_t>(share / element_bytes) * shares);
}

// Groups of hosts (levels.h). A direct exchange among all hosts is two messages to each of them; in groups of about
// sqrt(hosts), a host has about 2 sqrt(hosts) peers. `wanted`: the least hosts of a group, a setting; 0: as is good.
// The sizes of two groups differ by one at most.
inline int host_groups(int hosts, int wanted) {
  constexpr int kManyHosts = 16;
  if (wanted == 0 && hosts <= kManyHosts) return 1;
  const int size = wanted > 0 ? wanted : static_cast<int>(std::lround(std::sqrt(hosts)));
  return size < 2 ? 1 : std::max(1, hosts / size);
}
// How an allreduce between hosts goes. The result is the same, but in groups a chunk is on its way four times, not
// twice: some 0.1 ms more, which only fewer messages are worth. By build/native/bench_simulated, as above: with 10
// Gbit/s, the direct exchange is faster from shares of 8 KiB on, by 12% at most among 64 hosts and 4% among 256; with
// 100 Gbit/s, groups are faster with all these shares, up to four times.
struct BetweenHosts {
  bool in_groups;
  int shares;  // into which a chunk is cut: each is a message to a peer
};
inline BetweenHosts between_hosts(size_t bytes, int hosts, int wanted) {
  constexpr size_t kMostShare = size_t{32} << 10, kShareForHost = 128;
  const size_t limit = std::min(kMostShare, static_cast<size_t>(hosts) * kShareForHost);
  const int groups = host_groups(hosts, wanted);
  const bool in_groups = groups > 1 && (wanted > 0 || bytes / static_cast<size_t>(hosts) < limit);
  return {in_groups, in_groups ? hosts / groups : hosts};
}

// A batch closes at so many bytes. Among many hosts each one takes some messages, at rank 0, too: 102 MB over 10 Gbit/s
// took 15% longer in batches of 1 MiB than of 4 MiB among 1,024 hosts, 6% among 256. The last one begins later, though.
inline uint64_t close_bytes(int hosts) {
  constexpr uint64_t kLeast = uint64_t{1} << 20, kMost = uint64_t{16} << 20, kForHost = 4096;
  return std::clamp(static_cast<uint64_t>(hosts) * kForHost, kLeast, kMost);
}

// Over several hosts with several members on some of them (communicators/hierarchical/). Below this size, waits inside
// a host cost more than what pieces save.
inline bool goes_in_pieces(size_t bytes) {
  constexpr size_t kLeast = size_t{256} << 10;
  return bytes >= kLeast;
}
// The elements of a piece. A piece is cut so that each message between two hosts has 32 to 256 KiB: small enough for
// pieces to overlap, large enough for few system calls.
inline int64_t piece_elements(int64_t count, size_t element_bytes, int shares_between_hosts, int carriers) {
  constexpr int64_t kLeastPieces = 8, kLeastShare = int64_t{32} << 10, kMostShare = int64_t{256} << 10;
  const int64_t bytes = count * static_cast<int64_t>(element_bytes), shares = int64_t{carriers} * shares_between_hosts;
  const int64_t share = std::clamp(bytes / (kLeastPieces * shares), kLeastShare, kMostShare);
  return share / static_cast<int64_t>(kUnitBytes) * unit_elements(element_bytes) * shares;
}

}  // namespace hvd::plan
