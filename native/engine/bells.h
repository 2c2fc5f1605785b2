// SPDX-License-Identifier: Apache-2.0
// Sleeping and waking, the one primitive: announce that you sleep, look once more, sleep; the ringer writes, then looks
// who sleeps. Both sides are sequentially consistent, so one of them sees the other (checked in
// negotiation_model_test.cc).
//
// A process has two sleepers: the engine's thread, and a caller that waits and drives. `sleeping` names the one to be
// rung; a caller has precedence while it sleeps. A process that has control sockets sleeps in poll(), another on a
// futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <vector>

#include "negotiation/segment.h"

namespace hvd {

enum class Sleeper : uint32_t { kNobody = 0, kEngine = 1, kCaller = 2 };
enum class WakeReason : uint8_t { kRung, kTimedOut, kSignal };

class Bells {
 public:
  Bells(Segment& segment, uint32_t local_rank);
  ~Bells();
  Bells(const Bells&) = delete;
  Bells& operator=(const Bells&) = delete;

  // From now on this process sleeps in poll() and these descriptors wake it as well. Before any thread sleeps.
  Status watch(const std::vector<int>& sockets);
  void unwatch(int socket);  // a closed one would wake for ever
  // Whether sleepers wake for room in its send buffer as well. May be said from any thread, for the next sleep.
  void watch_for_room(int socket, bool wanted);

  void ring(uint32_t local_rank);
  void ring_others();
  void ring_own_engine();  // whoever is announced

  void announce(Sleeper who) { own().sleeping.store(static_cast<uint32_t>(who)); }
  // Only from `expected`, so that an engine's thread does not hide a caller.
  bool exchange(Sleeper expected, Sleeper desired);
  uint32_t seen(Sleeper who) { return own().bell[index(who)].load(); }
  // `seen` was read before the last look for work. with_sockets: wake for the watched sockets too.
  WakeReason sleep(Sleeper who, uint32_t seen, int64_t timeout_ns, bool with_sockets);

 private:
  static size_t index(Sleeper who) { return static_cast<size_t>(who) - 1; }
  RankBlock& own() { return segment_.rank(local_rank_); }
  void ring_bell(uint32_t local_rank, Sleeper who);

  Segment& segment_;
  const uint32_t local_rank_;
  struct Watched {
    explicit Watched(int socket) : fd(socket) {}
    std::atomic<int> fd;  // -1: unwatched
    std::atomic<bool> for_room{false};
  };
  std::deque<Watched> sockets_;
  int event_fd_[2] = {-1, -1};
};

}  // namespace hvd
