// SPDX-License-Identifier: Apache-2.0
// The tally: counts the arrivals of one host's ranks at one entry (step 5), and the order in which its steps are taken.
//
// One word in shared memory per entry: {round:32 | recalled:1 | count:31}.
//   arrive()  every rank of the host that submits the entry with the descriptor all know adds 1. The one that completes
//   the
//             count resets the word to {round + 1, 0, 0} FIRST and announces readiness after that, so that a rank that
//             saw the announcement finds a fresh count.
//   recall()  the leader takes the entry back to the slow way: from then on arrivals only learn that they must send
//   their
//             whole request. It returns how many had arrived before.
// The leader resets a recalled word just before it announces the decision.
//
// Every member function is one shared-memory operation. Ranks and leader take them in the order of Arrival::step, which
// the model checker (tests/native/negotiation_model_test.cc) interleaves in every way, over the very same code.
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

// Mistakes that the model checker must find; compiled into tests only.
struct NoSeededBugs {
  static constexpr bool kIgnoreRecalled = false;
  static constexpr bool kAnnounceBeforeReset = false;
};

template <class Word, class Bugs = NoSeededBugs>
class Tally {
 public:
  enum class Outcome : uint8_t { kCounted, kLast, kRecalled };

  Tally(Word word, uint32_t members) : word_(word), members_(members) {}

  Outcome arrive() {
    const uint64_t before = word_.fetch_add(1);
    if ((before & kRecalledBit) != 0 && !Bugs::kIgnoreRecalled) return Outcome::kRecalled;
    return (before & kCountMask) + 1 == members_ ? Outcome::kLast : Outcome::kCounted;
  }

  void reset() { word_.store((round() + 1) << 32); }

  // Idempotent. The number of arrivals before the recall. A host that is complete already is left alone and gives zero:
  // its last rank is about to reset the word and to announce readiness, which counts for all of its members. (On the
  // only host of a set this cannot be: whoever caused the recall is missing from the count.)
  uint32_t recall() {
    uint64_t before = word_.load();
    do {
      if ((before & kCountMask) == members_ && (before & kRecalledBit) == 0) return 0;
    } while ((before & kRecalledBit) == 0 && !word_.compare_exchange(before, before | kRecalledBit));
    return static_cast<uint32_t>(before & kCountMask);
  }

  uint64_t round() const { return word_.load() >> 32; }
  uint32_t count() const { return static_cast<uint32_t>(word_.load() & kCountMask); }
  bool recalled() const { return (word_.load() & kRecalledBit) != 0; }

 private:
  static constexpr uint64_t kRecalledBit = 1ull << 31;
  static constexpr uint64_t kCountMask = kRecalledBit - 1;

  Word word_;
  uint32_t members_;
};

// One rank's submission over the fast way, as a sequence of single steps.
template <class Bugs = NoSeededBugs>
class Arrival {
 public:
  enum class State : uint8_t { kArrive, kReset, kAnnounce, kLateReset, kCounted, kAnnounced, kSlow };

  explicit Arrival(State state = State::kArrive) : state_(state) {}
  State state() const { return state_; }
  bool finished() const { return state_ >= State::kCounted; }

  // Takes one step. `announce()` appends READY to the host's log, or tells the leader where the set spans hosts.
  template <class TallyType, class Announce>
  void step(TallyType& tally, Announce&& announce) {
    switch (state_) {
      case State::kArrive:
        switch (tally.arrive()) {
          case TallyType::Outcome::kCounted:
            state_ = State::kCounted;
            return;
          case TallyType::Outcome::kRecalled:
            state_ = State::kSlow;
            return;
          case TallyType::Outcome::kLast:
            state_ = Bugs::kAnnounceBeforeReset ? State::kAnnounce : State::kReset;
            return;
        }
        return;
      case State::kReset:
        tally.reset();
        state_ = State::kAnnounce;
        return;
      case State::kAnnounce:
        announce();
        state_ = Bugs::kAnnounceBeforeReset ? State::kLateReset : State::kAnnounced;
        return;
      case State::kLateReset:
        tally.reset();
        state_ = State::kAnnounced;
        return;
      default:
        return;
    }
  }

 private:
  State state_;
};

}  // namespace hvd
