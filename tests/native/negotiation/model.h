// SPDX-License-Identifier: Apache-2.0
// Explores every interleaving of the engine's own Member and Leader over model ports.
//
// A state is the members, the leaders, the hosts' boards, the frames on their way, and what each rank's program has
// come to. A step is one operation on shared memory (or one frame taken), and whatever its caller does up to the next
// one. The classes are written as straight code, so a call is cut into steps by replaying it: the ports keep the
// results of the operations that a call has done; the next step runs the call again on a copy of the object as it was
// at the start, answers those operations from what was kept, does one more, and stops the call by an exception at the
// operation after it. An object changes when its call has come to its end.
//
// Calls of one member exclude each other, as the engine's mutex has it; so do those of one leader, as the token has it.
#pragma once

#include <optional>
#include <unordered_set>

#include "model_world.h"

namespace hvd::model {

// `Plan`: one rank's program. put(Writer*) writes its part of the key.
template <class Plan>
class Checker {
 public:
  using W = World<Plan>;

  Checker(const std::vector<int>& host_of_rank, NameLimits limits, int star_hosts = ControlTree::kStarHosts)
      : topology_(host_of_rank), limits_(limits), hosts_(static_cast<size_t>(topology_.hosts())) {
    for (int r = 0; r < topology_.size(); ++r) ranks_.emplace_back(new Ports(*this, topology_, r, star_hosts));
  }
  virtual ~Checker() = default;
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  // Empty if all interleavings end well.
  std::string run() {
    push(first());
    while (!stack_.empty() && problem_.empty()) {
      const W world = std::move(stack_.back());
      stack_.pop_back();
      expand(world);
    }
    return problem_;
  }
  size_t states() const { return seen_.size(); }

 protected:
  const HostMap& map_of(int rank) const { return ranks_[static_cast<size_t>(rank)]->map; }
  size_t ranks() const { return ranks_.size(); }
  size_t hosts() const { return hosts_; }
  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  // What the program does next. A submission goes on with submit(); `argument` comes back in contribution().
  virtual void move_rank(const W& world, int rank) = 0;
  virtual void move_all(const W& /*world*/) {}
  virtual std::shared_ptr<Contributed> contribution(const W& world, int rank, int argument) = 0;
  virtual void submitted(W* world, int rank, int argument) = 0;
  virtual void joined(W* /*world*/, int /*rank*/) {}
  // A record has been applied. True: the call that it is about has come to its end.
  virtual bool applied(W* world, int rank, Record record, const Member::Applied& what) = 0;
  // Whether the program knows of batches.
  virtual bool closes_matter() const { return false; }
  virtual bool may_read(const W& /*world*/, int /*rank*/) { return true; }
  virtual bool may_lead(const W& /*world*/, int /*host*/) { return true; }
  virtual void prepare(Member* /*member*/, int /*rank*/) {}
  virtual void prepare(Leader* /*leader*/) {}
  virtual void judge_end(const W& world) = 0;
  virtual Plan first_plan(int rank) = 0;

  void push(W world) {
    const size_t key = std::hash<std::string>()(world.key());
    if (key == current_) return;
    moved_ = true;
    if (seen_.insert(key).second) stack_.push_back(std::move(world));
  }

  void submit(const W& world, int rank, int argument) {
    if (busy(world, rank)) return;
    W next = world;
    at(next.ranks, rank).call = {MemberCall::Kind::kSubmit, argument};
    step_member(std::move(next), rank);
  }
  void join(const W& world, int rank) {
    if (busy(world, rank)) return;
    W next = world;
    at(next.ranks, rank).call = {MemberCall::Kind::kJoin};
    step_member(std::move(next), rank);
  }
  bool busy(const W& world, int rank) const { return at(world.ranks, rank).call.kind != MemberCall::Kind::kNone; }

  // A whole call of a member as part of a step.
  template <class Do>
  void with_member(W* world, int rank, Do&& act) {
    Replay replay{{}, true};
    Member member = at(world->members, rank)->value;
    enter(world, topology_.host_of(rank), &replay, [&] { act(&member); });
    keep(world, rank, std::move(member));
  }

  // An operation on a host's board that no class of ours makes.
  template <class Change>
  static void change_host(W* world, int host, Change&& change) {
    PlainHost changed = at(world->hosts, host)->value;
    change(&changed);
    const std::string key = key_of(changed);
    at(world->hosts, host) = std::make_shared<Kept<PlainHost>>(std::move(changed), key);
  }

  template <class Items>
  static auto& at(Items& items, int index) {
    return items[static_cast<size_t>(index)];
  }

 private:
  struct Ports;

  W first() {
    W world;
    const bool across = hosts_ > 1;
    for (size_t h = 0; h < hosts_; ++h) {
      const size_t here = topology_.ranks_of(static_cast<int>(h)).size();
      PlainHost host(here, across);
      world.hosts.push_back(std::make_shared<Kept<PlainHost>>(host, key_of(host)));
    }
    world.up.resize(hosts_);
    world.down.resize(hosts_);
    world.leading.resize(hosts_);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Ports& ports = *ranks_[r];
      world.ranks.push_back({first_plan(static_cast<int>(r)), 0, {}, {}});
      Member member(ports.map, ports.board, ports.clock, *ports.publisher);
      prepare(&member, static_cast<int>(r));
      world.members.push_back(nullptr);
      keep(&world, static_cast<int>(r), std::move(member));
      if (!ports.map.is_leader()) continue;
      Leader leader(ports.map, {limits_}, {ports.board, ports.uplink, ports.clock, ports.waker, ports.readers});
      prepare(&leader);
      const std::string key = leader.snapshot();
      world.leaders.push_back(std::make_shared<Kept<Leader>>(std::move(leader), key));
    }
    return world;
  }

  void expand(const W& world) {
    current_ = std::hash<std::string>()(world.key());
    moved_ = false;
    for (int r = 0; r < static_cast<int>(ranks()) && problem_.empty(); ++r) {
      if (busy(world, r)) {
        step_member(world, r);
      } else {
        read_on(world, r);
        move_rank(world, r);
      }
      announce(world, r);
    }
    if (problem_.empty()) move_all(world);
    for (int h = 0; h < static_cast<int>(hosts_) && problem_.empty(); ++h) lead(world, h);
    if (!moved_ && problem_.empty()) judge_end(world);
  }

  // Runs on a copy of the host's board, which becomes the world's.
  template <class Do>
  void enter(W* world, int host, Replay* replay, Do&& act) {
    world_ = world;
    replay_ = replay;
    bool suspended = false;
    change_host(world, host, [&](PlainHost* board) {
      board_ = board;
      try {
        act();
      } catch (const Suspended&) {
        suspended = true;
      }
    });
    board_ = nullptr;
    if (suspended) throw Suspended();
  }

  void keep(W* world, int rank, Member member) {
    const std::string key = member.snapshot();
    at(world->members, rank) = std::make_shared<Kept<Member>>(std::move(member), key);
  }

  void read_on(const W& world, int rank) {
    const auto& mine = at(world.ranks, rank);
    const HostMap& map = map_of(rank);
    const PlainHost& host = at(world.hosts, map.host)->value;
    if (host.ranks[map.local_rank].cursor != mine.read) {  // as the others see it
      W next = world;
      change_host(&next, map.host, [&](PlainHost* changed) { changed->ranks[map.local_rank].cursor = mine.read; });
      push(std::move(next));
      return;
    }
    Record record;
    if (!host.peek(mine.read, &record) || !may_read(world, rank)) return;
    W next = world;
    at(next.ranks, rank).call = {MemberCall::Kind::kApply};
    step_member(std::move(next), rank);
  }

  void step_member(W next, int rank) {
    MemberCall& call = at(next.ranks, rank).call;
    Replay replay{std::move(call.past)};
    Member member = at(next.members, rank)->value;
    try {
      enter(&next, map_of(rank).host, &replay, [&] { perform(&next, rank, &member); });
    } catch (const Suspended&) {
      call.past = std::move(replay.past);
      push(std::move(next));
      return;
    }
    call = {};
    keep(&next, rank, std::move(member));
    push(std::move(next));
  }

  void perform(W* world, int rank, Member* member) {
    auto& mine = at(world->ranks, rank);
    if (mine.call.kind == MemberCall::Kind::kSubmit) {
      const auto given = contribution(*world, rank, mine.call.argument);
      bool begun = false;
      const auto announcement = member->submit(member->find_or_add(given->set, given->key), given, &begun);
      if (announcement.completed.has_value()) mine.announcing.push_back({*announcement.completed});
      submitted(world, rank, mine.call.argument);
      return;
    }
    if (mine.call.kind == MemberCall::Kind::kJoin) {
      member->join(std::make_shared<Contributed>());
      joined(world, rank);
      return;
    }
    Record record;
    board_->peek(mine.read, &record);
    const bool is_retirement = record.kind == RecordKind::kRetire;
    Member::Applied what;
    if (const Status outcome = member->apply(record, &what); !outcome.ok()) fail(outcome.text());
    // A call that has come to its end is finished in the same breath; the plan changes once, at the end.
    Plan before = mine.plan;
    const bool over = applied(world, rank, record, what);
    if (over && what.call != nullptr) {
      Plan after = std::exchange(mine.plan, std::move(before));
      member->finish(what.call);
      mine.plan = std::move(after);
    }
    ++mine.read;
    while (!closes_matter() && board_->peek(mine.read, &record) && record.kind == RecordKind::kClose) ++mine.read;
    // Only for a RETIRE it matters when the others see how far this rank has read.
    if (!is_retirement || !names_go()) {
      board_->ranks[map_of(rank).local_rank].cursor = mine.read;
    }
  }

  // Where names never go nobody looks at the rows: such steps need not be told apart.
  bool names_go() const { return limits_.names < 3; }

  void announce(const W& world, int rank) {
    const auto& mine = at(world.ranks, rank);
    for (size_t i = 0; i < mine.announcing.size(); ++i) {
      const HostMap& map = map_of(rank);
      Ports& ports = *ranks_[static_cast<size_t>(rank)];
      const bool leads = hosts_ > 1 && map.is_leader();
      if (leads && at(world.leading, map.host).kind != LeaderCall::Kind::kNone) return;
      W next = world;
      auto& announcing = at(next.ranks, rank).announcing;
      const Completed entry = announcing[i].entry;
      Replay replay{std::move(announcing[i].past)};
      Leader leader = at(next.leaders, map.host)->value;
      try {
        enter(&next, map.host, &replay, [&] {
          if (hosts_ == 1) {
            ports.publisher->announce(entry, false);
          } else {
            LeaderPublisher(ports.map, 1, ports.board, ports.clock, ports.waker, leads ? &leader.pending() : nullptr)
                .announce(entry, false);
          }
        });
      } catch (const Suspended&) {
        announcing[i].past = std::move(replay.past);
        push(std::move(next));
        continue;
      }
      announcing.erase(announcing.begin() + static_cast<ptrdiff_t>(i));
      if (leads) keep(&next, map.host, leader);
      push(std::move(next));
    }
  }

  void keep(W* world, int host, const Leader& leader) {
    at(world->leaders, host) = std::make_shared<Kept<Leader>>(leader, leader.snapshot());
  }

  void lead(const W& world, int host) {
    if (!may_lead(world, host)) return;
    if (at(world.leading, host).kind != LeaderCall::Kind::kNone) {
      step_leader(world, host);
      return;
    }
    const PlainHost& here = at(world.hosts, host)->value;
    for (uint32_t r = 0; r < here.ranks.size(); ++r) {
      if (here.ranks[r].ring.empty()) continue;
      W next = world;
      at(next.leading, host) = {LeaderCall::Kind::kRing, r, here.ranks[r].ring.front()};
      change_host(&next, host, [r](PlainHost* changed) { changed->ranks[r].ring.pop_front(); });
      step_leader(std::move(next), host);
    }
    for (int other = 0; other < static_cast<int>(hosts_); ++other) {
      const ControlTree& tree = ranks_.front()->map.tree;
      const bool is_below = tree.above(other) == host, is_linked = is_below || tree.above(host) == other;
      if (other == host || !is_linked || (is_below ? at(world.up, other) : at(world.down, host)).empty()) continue;
      W next = world;
      auto& taken = is_below ? at(next.up, other) : at(next.down, host);
      at(next.leading, host) = {LeaderCall::Kind::kLink, static_cast<uint32_t>(other), taken.front()};
      taken.erase(taken.begin());
      step_leader(std::move(next), host);
    }
    const auto idle = [&](LeaderCall::Kind kind) {
      W next = world;
      at(next.leading, host) = {kind};
      step_leader(std::move(next), host);
    };
    const Leader& leader = at(world.leaders, host)->value;
    if (leader.wants_to_speak()) idle(LeaderCall::Kind::kSpeak);
    if (leader.holds_back()) idle(LeaderCall::Kind::kSpeakLate);
    if (leader.has_unread_retirements()) idle(LeaderCall::Kind::kRetired);
    if (leader.has_to_pass_on()) idle(LeaderCall::Kind::kPassOn);
  }

  static Status take(Leader* leader, const LeaderCall& call) {
    using Kind = LeaderCall::Kind;
    const auto& [kind, payload] = call.frame;
    bool any = false;
    if (call.kind == Kind::kRing) return leader->take_from_rank(call.from, kind, payload);
    if (call.kind == Kind::kLink) return leader->take_from_host(static_cast<int>(call.from), kind, payload);
    if (call.kind == Kind::kRetired) return leader->tell_retired(&any);
    return call.kind == Kind::kPassOn ? leader->pass_on() : leader->speak();
  }

  void step_leader(W next, int host) {
    LeaderCall& call = at(next.leading, host);
    Replay replay{std::move(call.past)};
    Leader leader = at(next.leaders, host)->value;
    late_ = call.kind == LeaderCall::Kind::kSpeakLate;
    try {
      enter(&next, host, &replay, [&] {
        if (const Status outcome = take(&leader, call); !outcome.ok()) fail("a leader gave up: " + outcome.text());
      });
    } catch (const Suspended&) {
      late_ = false;
      call.past = std::move(replay.past);
      push(std::move(next));
      return;
    } catch (const Blocked&) {
      late_ = false;
      return;
    }
    late_ = false;
    call = {};
    keep(&next, host, leader);
    push(std::move(next));
  }

  // The ports of one rank. They work on the world that a step is being made in.
  class ModelBoard final : public Board {
   public:
    ModelBoard(Checker& checker, const HostMap& map) : checker_(checker), map_(map) {}

    Arrived arrive(uint32_t id) override {
      const uint64_t result = number(true, [&](PlainBoard& board) {
        const Arrived arrived = board.arrive(id);
        return uint64_t{arrived.round} << 8 | static_cast<uint64_t>(arrived.outcome);
      });
      return {static_cast<Arrived::Outcome>(result & 0xff), static_cast<uint32_t>(result >> 8)};
    }
    void begin_next_round(uint32_t id) override {
      act(true, [&](PlainBoard& board) { board.begin_next_round(id); });
    }
    Recalled recall(uint32_t id) override {
      const uint64_t result = number(true, [&](PlainBoard& board) {
        const Recalled found = board.recall(id);
        return uint64_t{found.round} << 32 | uint64_t{found.count} << 1 | (found.complete ? 1 : 0);
      });
      return {static_cast<uint32_t>(result >> 32), static_cast<uint32_t>(result) >> 1, (result & 1) != 0};
    }
    bool retire(uint32_t id) override {
      return number(true, [&](PlainBoard& board) { return uint64_t{board.retire(id)}; }) != 0;
    }
    void reset(uint32_t id, bool stays_recalled) override {
      act(true, [&](PlainBoard& board) { board.reset(id, stays_recalled); });
    }
    bool is_recalled(uint32_t id) override {
      return number(false, [&](PlainBoard& board) { return uint64_t{board.is_recalled(id)}; }) != 0;
    }
    void assign(uint32_t id, int32_t set, uint32_t members) override {
      act(false, [&](PlainBoard& board) { board.assign(id, set, members); });
    }
    int32_t set_of(uint32_t id) override {
      return static_cast<int32_t>(
          number(false, [&](PlainBoard& board) { return static_cast<uint64_t>(board.set_of(id)); }));
    }
    void set_in_flight(uint32_t id, uint64_t since_ms) override {
      act(checker_.names_go(), [&](PlainBoard& board) { board.set_in_flight(id, since_ms == 0 ? 0 : 1); });
    }
    uint64_t in_flight_since_ms(uint32_t local_rank, uint32_t id) override {
      return number(true, [&](PlainBoard& board) { return board.in_flight_since_ms(local_rank, id); });
    }
    bool log_has_room() override { return true; }
    uint64_t append(Record record) override {
      // A CLOSE stands behind the records of its batch at once: nobody acts on their coming apart.
      return number(record.kind != RecordKind::kClose, [&](PlainBoard& board) { return board.append(record); });
    }
    bool is_ready_record(uint64_t) override { return false; }
    bool all_have_read(uint64_t end) override {
      return number(true, [&](PlainBoard& board) { return uint64_t{board.all_have_read(end)}; }) != 0;
    }
    bool joined_have_read(uint64_t end) override { return PlainBoard(*checker_.board_, 0).joined_have_read(end); }
    uint64_t add_ready_bytes(uint64_t) override { return 0; }
    bool write_definition(uint32_t id, std::string_view text) override {
      act(false, [&](PlainBoard& board) { board.write_definition(id, text); });
      return true;
    }
    bool write_error(uint32_t id, std::string_view text) override {
      act(false, [&](PlainBoard& board) { board.write_error(id, text); });
      return true;
    }
    void release_texts(uint32_t id) override {
      act(false, [&](PlainBoard& board) { board.release_texts(id); });
    }
    std::string definition(uint32_t id) override {
      return operate(false, [&](PlainBoard& board) { return Result{0, board.definition(id)}; }).text;
    }
    std::string error(uint32_t id) override {
      return operate(false, [&](PlainBoard& board) { return Result{0, board.error(id)}; }).text;
    }
    bool anybody_waits() override { return true; }
    bool waits(uint32_t) override { return true; }
    void set_joined(bool joined) override {
      act(false, [&](PlainBoard& board) { board.set_joined(joined); });
    }
    void send_to_leader(FrameKind kind, std::string_view payload) override {
      act(false, [&](PlainBoard& board) { board.send_to_leader(kind, payload); });
    }
    void ask_for_stack(uint32_t) override {}
    bool take_stack(uint32_t, std::string*) override { return false; }

   private:
    template <class Operation>
    Result operate(bool is_step, Operation&& operation) {
      return checker_.replay_->operate(is_step, [&] {
        PlainBoard board(*checker_.board_, map_.local_rank);
        return operation(board);
      });
    }
    template <class Operation>
    uint64_t number(bool is_step, Operation&& operation) {
      return operate(is_step, [&](PlainBoard& board) { return Result{operation(board)}; }).number;
    }
    template <class Operation>
    void act(bool is_step, Operation&& operation) {
      operate(is_step, [&](PlainBoard& board) {
        operation(board);
        return Result{};
      });
    }

    Checker& checker_;
    const HostMap& map_;
  };

  struct ModelUplink final : Uplink {
    ModelUplink(Checker& of, const HostMap& its_map) : checker(of), map(its_map) {}
    void send(int host, FrameKind kind, std::string_view payload) override {
      checker.replay_->operate(false, [&] {
        auto& queue = host == map.above() ? at(checker.world_->up, map.host) : at(checker.world_->down, host);
        queue.push_back({kind, std::string(payload)});
        return Result{};
      });
    }
    void end_batch() override {}
    Checker& checker;
    const HostMap& map;
  };

  struct ModelClock final : Clock {
    explicit ModelClock(Checker& of) : checker(of) {}
    uint64_t now_ns() override { return checker.late_ ? UINT64_MAX / 2 : 1; }
    Checker& checker;
  };

  // In a model the others read on as steps of their own.
  struct ModelReaders final : Readers {
    explicit ModelReaders(Checker& of) : checker(of) {}
    bool wait_until(const std::function<bool()>& have_read, bool) override {
      Replay& replay = *checker.replay_;
      if (replay.next == replay.past.size() && !have_read()) {
        if (replay.moved) throw Suspended();
        throw Blocked();
      }
      replay.operate(false, [] { return Result{}; });
      return true;
    }
    Checker& checker;
  };

  struct Ports {
    Ports(Checker& checker, const Topology& topology, int rank, int star_hosts)
        : map(topology, rank, star_hosts), board(checker, map), uplink(checker, map), clock(checker), readers(checker) {
      if (map.spans_hosts()) {
        publisher = std::make_unique<LeaderPublisher>(map, 1, board, clock, waker, nullptr);
      } else {
        publisher = std::make_unique<LogPublisher>(map, 1, board, waker, readers);
      }
    }
    const HostMap map;
    ModelBoard board;
    ModelUplink uplink;
    ModelClock clock;
    SilentWaker waker;
    ModelReaders readers;
    std::unique_ptr<Publisher> publisher;
  };

  const Topology topology_;
  const NameLimits limits_;
  const size_t hosts_;
  std::vector<std::unique_ptr<Ports>> ranks_;
  std::vector<W> stack_;
  std::unordered_set<size_t> seen_;  // keys' hashes: some hundred thousand of 2^64
  size_t current_ = 0;
  bool moved_ = false;
  std::string problem_;

  // The step that is being made.
  W* world_ = nullptr;
  PlainHost* board_ = nullptr;
  Replay* replay_ = nullptr;
  bool late_ = false;
};

}  // namespace hvd::model
