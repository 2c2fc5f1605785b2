// SPDX-License-Identifier: Apache-2.0
// The tally: counts the arrivals of one host's ranks at one entry (step 5), and the order in which its steps are taken.
//
// One word in shared memory per entry: {round:32 | recalled:1 | retired:1 | count:30}.
//   arrive()  every rank of the host that submits the entry with the descriptor all know adds 1. If there is one host,
//             the rank that completes the count begins the next round FIRST and announces readiness after that, so that
//             a rank that saw the announcement finds a fresh count. Across hosts the leader begins the next round with
//             the decision.
//   recall()  the leader takes the entry back to the slow way: from then on arrivals only learn that they must send
//             their whole request. It returns how many had arrived before.
//   retire()  as recall, but for good, and only if no rank has arrived.
//   reset()   the leader's, just before it announces a decision. While a rank has joined, the entry stays recalled.
// A round is one decision about the entry, so all hosts count the same.
//
// Every member function is one shared-memory operation. Ranks take them in the order of Member::begin, the leader in
// that of Leader; the model checks (tests/native/negotiation) interleave them in every way, over the very same
// code.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd {

// A 64-bit word of the segment. Sequentially consistent: going to sleep (store, then look) and ringing (write, then
// look) must not both miss each other. On x86 this costs no more than acquire and release.
class SharedWord {
 public:
  explicit SharedWord(std::atomic<uint64_t>& word) : word_(word) {}
  uint64_t load() const { return word_.load(); }
  void store(uint64_t value) { word_.store(value); }
  uint64_t fetch_add(uint64_t delta) { return word_.fetch_add(delta); }
  bool compare_exchange(uint64_t& expected, uint64_t desired) {
    return word_.compare_exchange_strong(expected, desired);
  }

 private:
  std::atomic<uint64_t>& word_;
};

// The result of a recall.
struct Recalled {
  uint32_t round = 0;     // that is still to be decided
  uint32_t count = 0;     // ranks of the host that had arrived in it
  bool complete = false;  // all of them, across hosts: not in `count`, for that they say themselves
};

// The result of an arrival.
struct Arrived {
  enum class Outcome : uint8_t { kCounted, kLast, kRecalled } outcome = Outcome::kCounted;
  uint32_t round = 0;
};

// Word: load, store, fetch_add, compare_exchange on 64 bits.
template <class Word>
class Tally {
 public:
  Tally(Word word, uint32_t members, bool across_hosts) : word_(word), members_(members), across_hosts_(across_hosts) {}

  Arrived arrive() {
    const uint64_t before = word_.fetch_add(1);
    const auto round = static_cast<uint32_t>(before >> 32);
    if ((before & (kRecalledBit | kRetiredBit)) != 0) return {Arrived::Outcome::kRecalled, round};
    const bool last = (before & kCountMask) + 1 == members_;
    return {last ? Arrived::Outcome::kLast : Arrived::Outcome::kCounted, round};
  }

  // By the last to arrive. A recall in between stands: it holds for the next round.
  void begin_next_round() {
    uint64_t before = word_.load();
    while (!word_.compare_exchange(before, next_round(before) | (before & kRecalledBit))) {
    }
  }

  void reset(bool stays_recalled) { word_.store(next_round(word_.load()) | (stays_recalled ? kRecalledBit : 0)); }

  // Once a round. If there is one host, a complete round is over: its last rank is about to say so. A retired word
  // stays as it is: ranks that came since were told to take the slow way.
  Recalled recall() {
    uint64_t before = word_.load();
    while ((before & (kRecalledBit | kRetiredBit)) == 0 && !word_.compare_exchange(before, before | kRecalledBit)) {
    }
    const auto round = static_cast<uint32_t>(before >> 32);
    if ((before & kRetiredBit) != 0) return {round, 0, false};
    const auto count = static_cast<uint32_t>(before & kCountMask);
    if (count < members_ || members_ == 0) return {round, count, false};
    return across_hosts_ ? Recalled{round, 0, true} : Recalled{round + 1, 0, false};
  }

  // Stops counting until the next reset. Returns false, and does nothing, if a rank has been counted or the entry is
  // recalled.
  bool retire() {
    uint64_t before = word_.load();
    do {
      if ((before & kRetiredBit) != 0) return true;
      if ((before & (kRecalledBit | kCountMask)) != 0) return false;
    } while (!word_.compare_exchange(before, before | kRetiredBit));
    return true;
  }

  bool recalled() const { return (word_.load() & kRecalledBit) != 0; }

 private:
  static constexpr uint64_t kRecalledBit = 1ull << 31;
  static constexpr uint64_t kRetiredBit = 1ull << 30;
  static constexpr uint64_t kCountMask = kRetiredBit - 1;
  static uint64_t next_round(uint64_t word) { return ((word >> 32) + 1) << 32; }

  Word word_;
  uint32_t members_;
  bool across_hosts_;
};

}  // namespace hvd
