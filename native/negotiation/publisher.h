// SPDX-License-Identifier: Apache-2.0
// Publishes an entry that all members on this host have submitted (step 5). There are two ways; a member gets one of
// them when it is made:
//
//   LogPublisher     one host: READY goes straight into the host's log, without asking another rank.
//   LeaderPublisher  several hosts: the host's leader tells rank 0, which answers with READY when all hosts are there.
//
// Any thread. announce() of a LogPublisher may block until the log has room; the rest never blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "negotiation/host_map.h"
#include "negotiation/pending.h"
#include "negotiation/ports.h"

namespace hvd {

// An entry whose count this rank has completed.
struct Completed {
  uint32_t id = 0;
  uint64_t bytes = 0;
  bool sync = false;  // the caller waits for it and for nothing else
};

class Publisher {
 public:
  virtual ~Publisher() = default;
  // Right after the count is complete, with no other submission of this rank in between.
  virtual void begin_next_round(uint32_t id) = 0;
  // Later, when nothing is locked. `driving`: the caller holds the driver's token.
  virtual void announce(const Completed& entry, bool driving) = 0;
  // This rank leaves the job. Under the driver's token.
  virtual void leave() = 0;
  // True if any rank of this host may end a batch; otherwise rank 0 does.
  virtual bool ends_batches() const = 0;
  // True if this rank cannot announce its leaving any more, because rank 0 has left, or a leader on the way there.
  // `left`: by rank, which have left.
  virtual bool is_cut_off(const std::vector<bool>& left) const = 0;
};

class LogPublisher final : public Publisher {
 public:
  LogPublisher(const HostMap& map, uint64_t close_bytes, Board& board, Waker& waker, Readers& readers)
      : map_(map), close_bytes_(close_bytes), board_(board), waker_(waker), readers_(readers) {}

  void begin_next_round(uint32_t id) override { board_.begin_next_round(id); }
  void announce(const Completed& entry, bool driving) override;
  void leave() override;
  bool ends_batches() const override { return true; }
  bool is_cut_off(const std::vector<bool>&) const override { return false; }

 private:
  bool wait_for_room(bool driving) {
    return readers_.wait_until([this] { return board_.log_has_room(); }, driving);
  }

  const HostMap& map_;
  const uint64_t close_bytes_;
  Board& board_;
  Waker& waker_;
  Readers& readers_;
};

class LeaderPublisher final : public Publisher {
 public:
  // `pending`: the leader's list, in the leader's own process; null in a follower's.
  LeaderPublisher(const HostMap& map, uint64_t close_bytes, Board& board, Clock& clock, Waker& waker, Pending* pending)
      : map_(map), close_bytes_(close_bytes), board_(board), clock_(clock), waker_(waker), pending_(pending) {}

  void begin_next_round(uint32_t) override {}  // the leader does it with the decision
  void announce(const Completed& entry, bool driving) override;
  void leave() override;
  bool ends_batches() const override { return false; }
  bool is_cut_off(const std::vector<bool>& left) const override {
    const auto relay = static_cast<size_t>(map_.leader_of(map_.above()));
    return left.front() || left[relay] || left[static_cast<size_t>(map_.ranks_here.front())];
  }

 private:
  const HostMap& map_;
  const uint64_t close_bytes_;
  Board& board_;
  Clock& clock_;
  Waker& waker_;
  Pending* const pending_;
};

}  // namespace hvd
