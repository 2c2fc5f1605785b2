// SPDX-License-Identifier: Apache-2.0
// A process set as one rank's engine has it: the members, the names in use among them, and the communicator that
// joins them. Set 0, all ranks, is one of them. The rules of coming and going stand in engine/process_sets.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "communicators/registry.h"
#include "execution/submission.h"

namespace hvd {

constexpr int32_t kFirstLasting = 1 << 30;

// Stands for a set in compiled functions and saved models: its number may be another set's in a later generation, or
// in another process. It goes by the ranks alone; no number of a set is as large.
inline int32_t lasting_number(std::span<const int32_t> ranks) {
  uint64_t hash = 0;
  for (const int32_t rank : ranks) {  // splitmix64: lists that are alike have nothing in common
    hash += static_cast<uint32_t>(rank) + 0x9E3779B97F4A7C15U;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9U;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBU;
    hash ^= hash >> 31;
  }
  return kFirstLasting | static_cast<int32_t>(hash >> 34);
}

// Made and changed under the token; the mutex of Calls guards the fields below "mutex". Prepared requests keep it alive
// when it has been removed.
struct ProcessSet {
  // Fixed.
  int32_t number = 0;
  int32_t lasting = 0;     // lasting_number(ranks)
  std::vector<int> ranks;  // world ranks, ascending; a member is an index into it
  int member = -1;         // this rank's; -1 if it is none
  Topology topology;       // of the members
  const CommunicatorRow* row = nullptr;

  // Token. Null if this rank is not a member.
  std::unique_ptr<Communicator> communicator;
  std::shared_ptr<std::byte> area;  // this host's memory for it, if any, and its place
  uint64_t area_offset = 0;
  size_t area_bytes = 0;

  // mutex
  bool closing = false;  // takes nothing new: it is being removed, or has been

  int size() const { return static_cast<int>(ranks.size()); }
  // The member that a world rank is; -1 if it is none.
  int member_of(int rank) const {
    const auto found = std::lower_bound(ranks.begin(), ranks.end(), rank);
    return found != ranks.end() && *found == rank ? static_cast<int>(found - ranks.begin()) : -1;
  }
  std::string in_words() const { return number == 0 ? "" : " of process set " + std::to_string(number); }
};

}  // namespace hvd
