// SPDX-License-Identifier: Apache-2.0
// The doorbell of one process: the words by which its sleepers are woken, and the order in which they are used.
//
// A process has two sleepers: the engine's thread, and a caller that waits and drives. `sleeping` names the one to be
// rung; a caller has precedence while it sleeps. Each has a bell, a counter that it sleeps on.
//
//   FallAsleep  read the bell, announce, look for work, sleep while the bell has not changed, withdraw
//   Ring        (after the work has been written) look who sleeps, ring that one's bell
//   HandOver    a caller leaves: announce the engine's thread again, look for work, ring that thread's bell
//
// All operations are sequentially consistent, so of a sleeper that announces before it looks and a ringer that writes
// before it looks, one sees the other. Every step is one shared-memory operation; Bells takes them one after the other,
// and tests/native/doorbell_model_test.cc interleaves those of all threads of two processes in every way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvd {

enum class Sleeper : uint32_t { kNobody = 0, kEngine = 1, kCaller = 2 };

// Word: load, store, fetch_add, compare_exchange on 32 bits.
template <class Word>
struct Doorbell {
  Word sleeping;
  Word bells[2];
  Word& bell(Sleeper who) { return bells[static_cast<size_t>(who) - 1]; }
};

class SharedWord32 {
 public:
  explicit SharedWord32(std::atomic<uint32_t>& word) : word_(word) {}
  uint32_t load() const { return word_.load(); }
  void store(uint32_t value) { word_.store(value); }
  void fetch_add(uint32_t delta) { word_.fetch_add(delta); }
  bool compare_exchange(uint32_t expected, uint32_t desired) {
    return word_.compare_exchange_strong(expected, desired);
  }

 private:
  std::atomic<uint32_t>& word_;
};

class FallAsleep {
 public:
  enum class State : uint8_t { kReadBell, kAnnounce, kLook, kSleep, kWithdraw, kAwake };

  explicit FallAsleep(Sleeper who) : who_(who) {}
  State state() const { return state_; }
  uint32_t seen() const { return seen_; }  // what the bell showed: sleep while it still does

  // `there_is_work()` is one look. In state kSleep a step says that the sleeper has woken up.
  template <class Word, class Look>
  void step(Doorbell<Word>& door, Look&& there_is_work) {
    switch (state_) {
      case State::kReadBell:
        seen_ = door.bell(who_).load();
        state_ = State::kAnnounce;
        return;
      case State::kAnnounce:
        // The engine's thread must not hide a caller.
        if (who_ == Sleeper::kCaller) {
          door.sleeping.store(number(who_));
        } else {
          door.sleeping.compare_exchange(number(Sleeper::kNobody), number(who_));
        }
        state_ = State::kLook;
        return;
      case State::kLook:
        state_ = there_is_work() ? State::kWithdraw : State::kSleep;
        return;
      case State::kSleep:
        state_ = State::kWithdraw;
        return;
      case State::kWithdraw:
        if (who_ == Sleeper::kCaller) {
          door.sleeping.store(number(Sleeper::kNobody));
        } else {
          door.sleeping.compare_exchange(number(who_), number(Sleeper::kNobody));
        }
        state_ = State::kAwake;
        return;
      case State::kAwake:
        return;
    }
  }

 private:
  static uint32_t number(Sleeper who) { return static_cast<uint32_t>(who); }

  Sleeper who_;
  State state_ = State::kReadBell;
  uint32_t seen_ = 0;
};

class Ring {
 public:
  enum class State : uint8_t { kLook, kRing, kDone };

  State state() const { return state_; }
  Sleeper who() const { return who_; }  // whose bell it was

  template <class Word>
  void step(Doorbell<Word>& door) {
    if (state_ == State::kLook) {
      who_ = static_cast<Sleeper>(door.sleeping.load());
      state_ = who_ == Sleeper::kNobody ? State::kDone : State::kRing;
    } else if (state_ == State::kRing) {
      door.bell(who_).fetch_add(1);
      state_ = State::kDone;
    }
  }

 private:
  State state_ = State::kLook;
  Sleeper who_ = Sleeper::kNobody;
};

class HandOver {
 public:
  enum class State : uint8_t { kAnnounce, kLook, kRing, kDone };

  State state() const { return state_; }

  template <class Word, class Look>
  void step(Doorbell<Word>& door, Look&& there_is_work) {
    switch (state_) {
      case State::kAnnounce:
        door.sleeping.compare_exchange(static_cast<uint32_t>(Sleeper::kNobody),
                                       static_cast<uint32_t>(Sleeper::kEngine));
        state_ = State::kLook;
        return;
      case State::kLook:
        state_ = there_is_work() ? State::kRing : State::kDone;
        return;
      case State::kRing:
        door.bell(Sleeper::kEngine).fetch_add(1);
        state_ = State::kDone;
        return;
      case State::kDone:
        return;
    }
  }

 private:
  State state_ = State::kAnnounce;
};

}  // namespace hvd
