// SPDX-License-Identifier: Apache-2.0
// The coordinator's decisions (step 5), which every leader appends as records, and the limits of what it
// remembers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "negotiation/log.h"

namespace hvd {

constexpr uint32_t kMaxEntries = 8192;                   // numbers of entries
constexpr uint32_t kMaxCachedNames = kMaxEntries - 512;  // the rest is for names that run once
constexpr uint32_t kNoId = UINT32_MAX;

// How much a coordinator remembers; tests take little, to reach the ends.
struct NameLimits {
  uint32_t names = kMaxCachedNames;  // with the fast way; 0: none
  uint32_t ids = kMaxEntries;
  uint64_t bytes = 4u << 20;  // of the arena, for what is known of these names: that of a group grows with the group
  constexpr uint32_t evicted_at_once() const { return names / 32 + 1; }
  constexpr uint64_t all_bytes() const { return bytes + bytes / 2; }  // with names that run once
};

// To be applied by every leader in this order. `reset`: the entry's tally is reset before the record is appended, and
// `stays_recalled`. A DEFINE or an ERROR without it is of a name that runs once: its tally is retired instead. JOIN
// resets those of all entries that are recalled.
struct Decision {
  RecordKind kind = RecordKind::kNone;
  uint32_t id = 0;
  bool reset = false;
  // DEFINE: string name | string descriptor, which holds the set
  // ERROR: i32 set | string name | i32 code | i32 culprit | string text | u32 n | n x i32 rank that it is for; none:
  // for all
  std::string payload;
  bool stays_recalled = false;
  int32_t last_rank = -1;  // READY: the rank that came last, as rank 0 sees it; -1: unknown
};

// A rank that asks for an entry the slow way. `waits`: it will submit nothing else before this is done.
struct Requester {
  int rank = 0;
  bool waits = false;
};

// By entry that a rank has in flight: the round of its host's tally in which it was counted.
using CountedIn = std::map<uint32_t, uint32_t>;
// Of an entry: ranks, and the round of their host's tally.
using RoundOfRank = std::map<int, uint32_t>;

struct Effects {
  std::vector<uint32_t> recalls;  // to every host that counts, before the decisions
  std::vector<uint32_t> retires;  // likewise: whether these may go
  std::vector<Decision> decisions;

  bool is_empty() const { return recalls.empty() && retires.empty() && decisions.empty(); }
};

}  // namespace hvd
