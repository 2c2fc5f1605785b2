// SPDX-License-Identifier: Apache-2.0
// Choices by size (step 7): which algorithm an operation of so many bytes among so many members runs, over how many
// links, and into which pieces it is cut. Communicators and algorithms ask here, and so does a simulator that wants to
// know what they would do without running them. All members have the same sizes, so they get the same answers.
//
// Pure. Two choices are not here, because they are measured while a job runs: which store instructions are used
// (communicators/shm/), and how many members of a host carry data (communicators/hierarchical/).
#pragma once

#include <algorithm>
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
// The elements of a chunk of a direct allreduce. At least two chunks if the batch is large enough to be cut at all, so
// that one is folded while the other is under way. But each chunk is two messages to every other member: among many
// members, small ones take longer than they save. Both limits are from build/native/bench_simulated, for 10 Gbit/s and
// 3 or 5 us a message: one chunk was up to twice as fast from 32 hosts on, and 2% slower at worst.
inline int64_t direct_chunk_elements(int64_t count, size_t element_bytes, int members, Mesh::MessageBytes limits) {
  constexpr int kManyMembers = 32;
  constexpr size_t kSmallShare = size_t{32} << 10;
  const size_t whole = static_cast<size_t>(count) * element_bytes / static_cast<size_t>(members);
  const size_t wanted = members >= kManyMembers && whole < kSmallShare ? whole : whole / 2;
  const size_t share = round_up_to_units(std::clamp(wanted, limits.least_reduced, limits.most_reduced));
  return std::min(count, static_cast<int64_t>(share / element_bytes) * members);
}

// Over several hosts with several members on some of them (communicators/hierarchical/). Below this size, waits inside
// a host cost more than what pieces save.
inline bool goes_in_pieces(size_t bytes) {
  constexpr size_t kLeast = size_t{256} << 10;
  return bytes >= kLeast;
}
// The elements of a piece. A piece is cut so that each message between two hosts has 32 to 256 KiB: small enough for
// pieces to overlap, large enough for few system calls.
inline int64_t piece_elements(int64_t count, size_t element_bytes, int hosts, int carriers) {
  constexpr int64_t kLeastPieces = 8, kLeastShare = int64_t{32} << 10, kMostShare = int64_t{256} << 10;
  const int64_t bytes = count * static_cast<int64_t>(element_bytes), shares = int64_t{carriers} * hosts;
  const int64_t share = std::clamp(bytes / (kLeastPieces * shares), kLeastShare, kMostShare);
  return share / static_cast<int64_t>(kUnitBytes) * unit_elements(element_bytes) * shares;
}

}  // namespace hvd::plan
