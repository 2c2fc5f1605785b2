// SPDX-License-Identifier: Apache-2.0
// The coordinator's numbers (step 5): which entry has which, which names are asked to give theirs back, and when a
// number is free again. Knows an entry only as the coordinator's index of it. Pure, and a plain value: owned by the
// coordinator, which the model checks copy.
//
// Names come and go. An entry has a number (id) once it has been defined, and keeps it while it is among the names that
// were used last. If there is no room, in numbers or in the arena, a new name runs once and keeps nothing (DEFINE +
// READY + RETIRE under a temporary number). Meanwhile the hosts are asked to give up the names that were unused for
// longest. A host that has no arrival under a name agrees, and shuts its fast way. If all hosts agree, the name is
// RETIREd. Its number is reused when all ranks of all hosts have read the RETIRE: until then one of them might still
// count under it. A recalled name counts as in use: while a rank has joined, no name of its sets goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "negotiation/decision.h"
#include "negotiation/wire.h"

namespace hvd {

class Ids {
 public:
  static constexpr size_t kNoEntry = SIZE_MAX;

  Ids(size_t hosts, NameLimits limits) : hosts_(hosts), limits_(limits) {}

  size_t entry_of(uint32_t id) const { return id < ids_.size() ? ids_[id].entry : kNoEntry; }
  // Gives the entry a number, if there is room for its definition, of so many bytes in the arena.
  bool take_for(size_t entry, uint64_t bytes, uint32_t* id);
  void touch(uint32_t id);  // it now counts as used last
  // The entry is gone; its number is still to be retired or abandoned.
  void forget_entry(uint32_t id);
  // Its set has been removed. The number is free, unless hosts will still answer a recall: those that have not
  // `answered`, which are `missing`.
  void abandon(uint32_t id, std::vector<bool> answered, int missing);
  // Such an answer. False: nothing can have been asked about this number.
  bool take_late_answer(int host, uint32_t id, Effects* effects);

  // Says what has been decided about the entry of a number.
  void say(uint32_t id, Decision decision, Effects* effects);
  // Likewise about a name that gets a number for this alone, once there is one.
  void run_once(std::vector<Decision> decisions, Effects* effects);
  bool have_waiting() const { return !waiting_.empty(); }  // decided, not yet said

  // Definitions need more bytes than they may.
  bool are_crowded() const { return cached_bytes_ > limits_.bytes; }
  // Asks for the names that were not used for longest, if there are too many, or too many bytes once some more are
  // wanted. One question at a time: the next name may find room by itself. `asked`: the members by host of an entry's
  // set, null if the entry is in use.
  void make_room(uint64_t wanted_bytes, const std::function<const std::vector<uint32_t>*(size_t entry)>& asked,
                 Effects* effects);
  // A host's answer; `*all_idle` has a value once all hosts have answered. False if it was not asked.
  bool take_answer(int host, uint32_t id, bool idle, std::optional<bool>* all_idle);
  void keep(uint32_t id);
  void evict(uint32_t id, Effects* effects);
  uint64_t evicted() const { return evicted_; }
  // All ranks of the host have read the RETIRE. `*is_free`: those of all hosts. False if it was not asked.
  bool take_retirement(int host, uint32_t id, Effects* effects, bool* is_free);

  void add_to_snapshot(Writer* text) const;

 private:
  struct Id {
    // Abandoned: its set was removed before all hosts had answered a recall.
    enum class State : uint8_t { kFree, kTaken, kAsked, kRetired, kAbandoned } state = State::kFree;
    size_t entry = kNoEntry;
    uint64_t used = 0;           // when, by clock_
    std::vector<bool> expected;  // by host, while asked, retired or abandoned: an answer is to come
    int answers_missing = 0;
    bool idle = true;                                // as far as has been answered
    uint64_t definition_bytes = 0, error_bytes = 0;  // that it has in the arena

    uint64_t bytes() const { return definition_bytes + error_bytes; }
  };

  bool take(uint32_t* id);
  void retire(uint32_t id, Effects* effects);
  void give_back(uint32_t id, Effects* effects);
  void expect_answers(Id* of, Id::State state, const std::vector<uint32_t>* members_of_host);
  bool take_answer(int host, uint32_t id, Id::State state);

  size_t hosts_;
  NameLimits limits_;
  std::vector<Id> ids_;
  std::vector<uint32_t> free_;
  uint32_t cached_ = 0;        // ids that an entry has
  uint64_t cached_bytes_ = 0;  // and what those have in the arena
  uint64_t bytes_ = 0;         // what all ids have there
  uint32_t retiring_ = 0;      // ids
  uint32_t questions_ = 0;     // asked, not all answered
  uint64_t clock_ = 0;
  uint64_t evicted_ = 0;
  std::deque<std::vector<Decision>> waiting_;  // decided, for want of an id not yet said
};

}  // namespace hvd
