// SPDX-License-Identifier: Apache-2.0
// A whole world of Members and Leaders in one thread, over plain hosts: what the simulator and a fuzz target drive.
//
// Nothing moves by itself: the owner says who submits, which frame arrives, which rank reads its log, which leader
// speaks. A frame that is sent, or a bell that is rung, is told to the owner. The first failed Status stops the
// simulation: failure() says why.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/leader.h"
#include "negotiation/member.h"
#include "negotiation/publisher.h"
#include "simulate/hosts.h"

namespace hvd {

// One call of a rank. Calls may share their texts: there may be millions of them.
struct PlainCall : Contribution {
  using Text = std::shared_ptr<const std::string>;
  int32_t set = 0;
  Text key;   // what it is submitted under
  Text text;  // which the descriptor is
};

class PlainWorld {
 public:
  struct Owner {
    virtual ~Owner() = default;
    virtual uint64_t now_ns() = 0;
    virtual void sent(int from_host, int to_host, Frame frame) = 0;
    virtual void rang(int rank) = 0;
    // A record has been applied. True: the call that it is about has come to its end.
    virtual bool applied(int rank, Record record, const Member::Applied& what) = 0;
  };

  PlainWorld(const std::vector<int>& host_of_rank, LeaderSettings settings, Owner& owner, size_t log_slots = SIZE_MAX,
             int star_hosts = ControlTree::kStarHosts)
      : owner_(owner), topology_(host_of_rank), close_bytes_(settings.close_bytes), clock_(owner), readers_(*this) {
    for (int h = 0; h < topology_.hosts(); ++h) {
      hosts_.push_back(std::make_unique<Host>(topology_.ranks_of(h).size(), topology_.hosts() > 1));
    }
    for (int r = 0; r < topology_.size(); ++r) {
      Host& host = *hosts_[static_cast<size_t>(topology_.host_of(r))];
      ranks_.push_back(std::make_unique<Rank>(*this, host, HostMap(topology_, r, star_hosts), log_slots));
      Rank& rank = *ranks_.back();
      if (rank.map.is_leader()) {
        host.leader.emplace(rank.map, settings, LeaderPorts{rank.board, rank.uplink, clock_, rank.waker, readers_});
      }
      rank.make_member(*this, host);
    }
  }

  const Topology& topology() const { return topology_; }
  const ControlTree& tree() const { return ranks_.front()->map.tree; }
  const std::string& failure() const { return failure_; }
  PlainHost& board_of(int host) { return hosts_[static_cast<size_t>(host)]->memory; }
  Leader& leader_of(int host) { return *hosts_[static_cast<size_t>(host)]->leader; }
  Member& member(int rank) { return *ranks_[static_cast<size_t>(rank)]->member; }
  const HostMap& map(int rank) const { return ranks_[static_cast<size_t>(rank)]->map; }
  PlainHost::Rank& at_board(int rank) { return board_of(map(rank).host).ranks[map(rank).local_rank]; }

  void add_set(int32_t set, const std::vector<int>& members) {
    for (const int rank : members) member(rank).add_set(set);
    for (const auto& host : hosts_) host->leader->add_set(set, members);
  }
  // `known`: where its entry was found the last time, and is kept for the next.
  void submit(int rank, const std::shared_ptr<PlainCall>& call, EntryRef* known = nullptr) {
    bool begun = false;
    Member& mine = member(rank);
    const bool is_known = known != nullptr && mine.knows(*known);
    const EntryRef entry = is_known ? *known : mine.find_or_add(call->set, *call->key);
    if (known != nullptr) *known = entry;
    announce(rank, mine.submit(entry, call, &begun));
  }
  void join(int rank) { announce(rank, member(rank).join(std::make_shared<PlainCall>())); }
  void finish(int rank, const ContributionPtr& call) {
    const Member::Finished finished = member(rank).finish(call);
    announce(rank, finished.of_next);
    if (finished.joins) announce(rank, member(rank).say_join());
  }
  // False: there is no record to read.
  bool read(int rank) {
    Rank& mine = *ranks_[static_cast<size_t>(rank)];
    Record record;
    PlainHost& host = board_of(mine.map.host);
    if (!failure_.empty() || !host.peek(mine.read, &record)) return false;
    ++mine.read;
    Member::Applied what;
    keep(mine.member->apply(record, &what));
    if (record.kind == RecordKind::kReady && mine.map.is_leader()) leader_of(mine.map.host).note_ready(record.id);
    if (record.kind == RecordKind::kLeave && static_cast<int>(record.id) == rank) at_board(rank).left = true;
    if (owner_.applied(rank, record, what) && what.call != nullptr) finish(rank, what.call);
    at_board(rank).cursor = mine.read;
    return true;
  }
  bool has_record(int rank) {
    Record record;
    const Rank& mine = *ranks_[static_cast<size_t>(rank)];
    return board_of(mine.map.host).peek(mine.read, &record);
  }
  void leave(int rank) { ranks_[static_cast<size_t>(rank)]->publisher->leave(); }

  // False: the ring is empty.
  bool take_ring(int host, uint32_t local_rank) {
    auto& ring = board_of(host).ranks[local_rank].ring;
    if (ring.empty()) return false;
    const Frame frame = std::move(ring.front());
    ring.pop_front();
    take_from_rank(host, local_rank, frame);
    return true;
  }
  void take_from_rank(int host, uint32_t local_rank, const Frame& frame) {
    if (failure_.empty()) keep(leader_of(host).take_from_rank(local_rank, frame.kind, frame.payload));
  }
  void take_from_host(int host, int from, const Frame& frame) {
    if (failure_.empty()) keep(leader_of(host).take_from_host(from, frame.kind, frame.payload));
  }
  void pass_on(int host) {
    if (failure_.empty()) keep(leader_of(host).pass_on());
  }
  // The end of a turn.
  void speak(int host) {
    pass_on(host);
    if (failure_.empty()) keep(leader_of(host).speak());
  }
  bool tell_retired(int host) {
    bool any = false;
    if (failure_.empty()) keep(leader_of(host).tell_retired(&any));
    return any;
  }

 private:
  struct Host {
    Host(size_t local_size, bool across_hosts) : memory(local_size, across_hosts) {}
    PlainHost memory;
    std::optional<Leader> leader;
  };
  struct WorldClock final : Clock {
    explicit WorldClock(Owner& of) : owner(of) {}
    uint64_t now_ns() override { return owner.now_ns(); }
    Owner& owner;
  };
  struct WorldUplink final : Uplink {
    WorldUplink(Owner& of, int its_host) : owner(of), host(its_host) {}
    void send(int to, FrameKind kind, std::string_view payload) override {
      owner.sent(host, to, {kind, std::string(payload)});
    }
    void end_batch() override {}
    Owner& owner;
    const int host;
  };
  struct WorldWaker final : Waker {
    WorldWaker(Owner& of, const HostMap& its_map) : owner(of), map(its_map) {}
    void ring(uint32_t local_rank) override { owner.rang(map.ranks_here[local_rank]); }
    void ring_others() override {
      for (const int rank : map.ranks_here) {
        if (rank != map.rank) owner.rang(rank);
      }
    }
    Owner& owner;
    const HostMap& map;
  };
  // The slowest readers read on until it is enough.
  struct WorldReaders final : Readers {
    explicit WorldReaders(PlainWorld& of) : world(of) {}
    bool wait_until(const std::function<bool()>& have_read, bool) override {
      for (bool moved = true; moved && !have_read();) {
        moved = false;
        for (int rank = 0; rank < world.topology_.size(); ++rank) moved |= world.read(rank);
      }
      return have_read();
    }
    PlainWorld& world;
  };
  struct Rank {
    Rank(PlainWorld& world, Host& host, const HostMap& its_map, size_t log_slots)
        : map(its_map),
          board(host.memory, map.local_rank, log_slots),
          uplink(world.owner_, map.host),
          waker(world.owner_, map) {}
    void make_member(PlainWorld& world, Host& host) {
      if (map.spans_hosts()) {
        Pending* const pending = map.is_leader() ? &host.leader->pending() : nullptr;
        publisher = std::make_unique<LeaderPublisher>(map, world.close_bytes_, board, world.clock_, waker, pending);
      } else {
        publisher = std::make_unique<LogPublisher>(map, world.close_bytes_, board, waker, world.readers_);
      }
      member.emplace(map, board, world.clock_, *publisher);
    }
    const HostMap map;
    PlainBoard board;
    WorldUplink uplink;
    WorldWaker waker;
    std::unique_ptr<Publisher> publisher;
    std::optional<Member> member;
    size_t read = 0;
  };

  void keep(const Status& outcome) {
    if (!outcome.ok() && failure_.empty()) failure_ = outcome.text();
  }
  void announce(int rank, const Member::Announcement& announcement) {
    Rank& mine = *ranks_[static_cast<size_t>(rank)];
    if (announcement.completed.has_value()) mine.publisher->announce(*announcement.completed, true);
    if (announcement.asked_leader) mine.waker.ring(0);
  }

  Owner& owner_;
  const Topology topology_;
  const uint64_t close_bytes_;
  WorldClock clock_;
  WorldReaders readers_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::string failure_;
};

}  // namespace hvd
