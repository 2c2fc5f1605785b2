// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking, the one primitive. A process has a doorbell: the words by which its sleepers are woken. Bells
// takes the steps and knows where a sleeper blocks: a leader that has control sockets in poll(), another process on a
// futex.
//
// A process has two sleepers: the engine's thread, and a caller that waits and drives. `sleeping` names the one to be
// rung; a caller has precedence while it sleeps. Each has a bell, a counter that it sleeps on.
//
//   FallAsleep  read the bell, announce, look for work, sleep while the bell has not changed, withdraw
//   Ring        (after the work has been written) look which sleeper is announced, ring its bell
//   HandOver    a caller leaves: announce the engine's thread again, look for work, ring that thread's bell
//
// All operations are sequentially consistent. A sleeper announces before it looks and a ringer writes before it looks,
// so at least one of them sees the other. Every step is one shared-memory operation; Bells takes them one after the
// other, and tests/native/engine/doorbell_model_test.cc interleaves those of all threads of two processes in every way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "host/segment.h"
#include "negotiation/ports.h"
#include "platform/clock.h"
#include "wakeup/poll_bell.h"

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

enum class WakeReason : uint8_t { kRung, kTimedOut, kSignal };

class Bells final : public Waker {
 public:
  // `of_leader`: null if the host's leader has no sockets to watch.
  Bells(Segment& segment, uint32_t local_rank, std::shared_ptr<const PollBell> of_leader);
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  // From now on this process sleeps in poll() and these descriptors wake it as well. Before any thread sleeps.
  void watch(const std::vector<int>& sockets);
  bool watches_sockets() const { return !sockets_.empty(); }
  void unwatch(int socket);  // a closed one would wake for ever
  // Sets if sleepers wake for room in its send buffer as well, from the next sleep on. Any thread.
  void watch_for_room(int socket, bool wanted);

  // Wakes the sleeper of that rank. Call it after the work has been written; any thread.
  void ring(uint32_t local_rank) override;
  void ring_others() override;
  bool wakes_soon() override { return now_ns() < nap_ends_ns_.load(); }
  void nap_until(uint64_t now_ns) { nap_ends_ns_.store(now_ns); }  // the engine's thread; 0: it sleeps longer
  void ring_own() { ring(local_rank_); }
  void ring_own_engine();  // even if another sleeper is announced

  struct Sleep {
    int64_t timeout_ns = 0;     // 0: there is work, do not sleep
    bool with_sockets = false;  // wake for the watched sockets as well
  };
  // Blocks unless look() sees work, until the bell rings. A caller must hold the driver's token.
  template <class Look>
  WakeReason sleep(Sleeper who, Look&& look) {
    FallAsleep fall(who);
    WakeReason reason = WakeReason::kRung;
    Doorbell<SharedWord32> door = doorbell(local_rank_);
    Sleep sleep;
    while (fall.state() != FallAsleep::State::kAwake) {
      if (fall.state() == FallAsleep::State::kSleep) reason = block(who, fall.seen(), sleep);
      fall.step(door, [&] {
        sleep = look();
        return sleep.timeout_ns == 0;
      });
    }
    return reason;
  }
  // A caller drives from now on: no thread needs to be rung.
  void hide_engine() { doorbell(local_rank_).sleeping.store(static_cast<uint32_t>(Sleeper::kNobody)); }
  // A thread that had the token and did not sleep gives the bell back to the engine's thread, and with it the work that
  // has come since.
  template <class Look>
  void hand_over(Look&& there_is_work) {
    HandOver hand_over;
    Doorbell<SharedWord32> door = doorbell(local_rank_);
    while (hand_over.state() != HandOver::State::kRing && hand_over.state() != HandOver::State::kDone) {
      hand_over.step(door, there_is_work);
    }
    if (hand_over.state() == HandOver::State::kRing) ring_own_engine();
  }

 private:
  static size_t index(Sleeper who) { return static_cast<size_t>(who) - 1; }
  Doorbell<SharedWord32> doorbell(uint32_t local_rank) {
    RankBlock& block = segment_.rank(local_rank);
    return {SharedWord32(block.sleeping), {SharedWord32(block.bell[0]), SharedWord32(block.bell[1])}};
  }
  void rang(uint32_t local_rank, Sleeper who);
  WakeReason block(Sleeper who, uint32_t seen, const Sleep& sleep);

  Segment& segment_;
  const uint32_t local_rank_;
  std::atomic<uint64_t> nap_ends_ns_{0};
  struct Watched {
    explicit Watched(int socket) : fd(socket) {}
    std::atomic<int> fd;  // -1: unwatched
    std::atomic<bool> for_room{false};
  };
  std::deque<Watched> sockets_;
  const std::shared_ptr<const PollBell> of_leader_;
};

}  // namespace hvd
