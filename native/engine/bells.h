// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking, the one primitive. The words and the order of the steps stand in doorbell.h; here is where a
// sleeper blocks: a leader that has control sockets in poll(), another process on a futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "engine/doorbell.h"
#include "engine/poll_bell.h"
#include "negotiation/ports.h"
#include "negotiation/segment.h"

namespace hvd {

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
  // Whether sleepers wake for room in its send buffer as well. May be said from any thread, for the next sleep.
  void watch_for_room(int socket, bool wanted);

  // After what there is to do has been written, and from any thread: wakes who sleeps there.
  void ring(uint32_t local_rank) override;
  void ring_others() override;
  void ring_own_engine();  // whoever is announced

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
  // A caller drives from now on: nobody needs to be rung.
  void hide_engine() { doorbell(local_rank_).sleeping.store(static_cast<uint32_t>(Sleeper::kNobody)); }
  // Whoever had the token and did not sleep gives the bell back to the engine's thread, and with it what came since.
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
  struct Watched {
    explicit Watched(int socket) : fd(socket) {}
    std::atomic<int> fd;  // -1: unwatched
    std::atomic<bool> for_room{false};
  };
  std::deque<Watched> sockets_;
  const std::shared_ptr<const PollBell> of_leader_;
};

}  // namespace hvd
