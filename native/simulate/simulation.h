// SPDX-License-Identifier: Apache-2.0
// A seeded run of many ranks on many hosts in one thread and in virtual time, over the engine's own Member, Leader and
// Coordinator (simulate/world.h). Collectives take no time; frames and bells do, as drawn from the seed.
//
// A program is a list of steps. In a step a rank submits every name once, waits until all of them are done, and goes
// on. Checked at every record: nothing is ready before all ranks that take part have submitted it, and all ranks see
// one order. Checked at the end: no rank sleeps on something it could do, and nothing has grown without bounds.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "simulate/world.h"

namespace hvd {

struct SimulatedStep {
  int shape = 0;                // of the first name; the others always have the same
  bool shuffled = false;        // each rank submits in an order, and at a pace, of its own
  int late_rank = -1;           // submits its first name late
  std::vector<bool> absent;     // by rank: has joined before; empty: none
  bool joins = false;           // at its end all ranks that have not joined yet do so
  std::vector<bool> dead = {};  // by host: gone before this step; empty: none
};

class Simulation final : public PlainWorld::Owner {
 public:
  struct Counts {
    std::map<FrameKind, uint64_t> up, down;  // messages by kind, to rank 0's host and from it
    uint64_t relayed = 0;                    // messages between a relay and its group
    uint64_t bytes_up = 0, bytes_down = 0;
    uint64_t batches = 0;
    uint64_t most_up_from_a_host = 0;  // HostReady
  };

  Simulation(int hosts, int ranks_per_host, int names, std::vector<SimulatedStep> steps, uint64_t seed,
             int star_hosts = ControlTree::kStarHosts)
      : names_(static_cast<size_t>(names)),
        steps_(std::move(steps)),
        random_(seed),
        world_(host_of_rank(hosts, ranks_per_host), {}, *this, kLogSlots, star_hosts),
        ranks_(static_cast<size_t>(hosts * ranks_per_host)),
        inbox_(static_cast<size_t>(hosts)),
        speaking_at_(static_cast<size_t>(hosts), 0),
        counts_(steps_.size()),
        up_from_(steps_.size(), std::vector<uint64_t>(static_cast<size_t>(hosts))),
        arrived_(steps_.size(), std::vector<int>(names_)) {
    for (size_t name = 0; name < names_; ++name) {
      keys_.push_back(std::make_shared<const std::string>("gradient." + std::to_string(name)));
    }
    for (int rank = 0; rank < world_.topology().size(); ++rank) at(rank).next_ready.assign(names_, 0);
  }

  // Until nothing happens any more. Empty if all went well.
  std::string run() {
    for (int rank = 0; rank < world_.topology().size(); ++rank) begin_step(rank);
    while (!events_.empty() && problem_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ns_ = event.time_ns;
      ++events_run_;
      happen(event);
      if (!world_.failure().empty()) fail(world_.failure());
    }
    if (problem_.empty()) judge_end();
    return problem_;
  }

  const Counts& counts(size_t step) const { return counts_[step]; }
  uint64_t events() const { return events_run_; }
  uint64_t virtual_ns() const { return now_ns_; }
  PlainWorld& world() { return world_; }
  // Which ranks some others wait for, as rank 0 knows it.
  std::vector<Undecided> undecided() {
    world_.leader_of(0).facts().ask_who_waits();
    deliver_all();
    now_ns_ += 2000000000;  // relays of hosts that do not answer
    for (int host = 1; host < world_.topology().hosts(); ++host) {
      if (!is_dead(host)) world_.leader_of(host).tell_waiting();
    }
    deliver_all();
    return world_.leader_of(0).undecided();
  }

 private:
  static constexpr size_t kLogSlots = 512;
  static constexpr uint64_t kLateNs = 5000000;

  enum class What : uint8_t { kSubmit, kDrive, kFrame, kSpeak };
  struct Event {
    uint64_t time_ns;
    uint64_t sequence;
    What what;
    int target;                                 // rank; of a frame, its host
    bool operator<(const Event& other) const {  // the queue gives the greatest first
      return std::pair(time_ns, sequence) > std::pair(other.time_ns, other.sequence);
    }
  };
  struct RankState {
    size_t step = 0;
    std::vector<size_t> order;  // names yet to be submitted, the last one next
    uint64_t pace_ns = 0;
    size_t in_flight = 0;
    bool waits = false, joined = false, driving = false, done = false;
    std::vector<ContributionPtr> open;
    std::vector<size_t> next_ready;  // by name, the step that its next READY is of
    size_t position = 0;             // in the one order
  };

  static std::vector<int> host_of_rank(int hosts, int ranks_per_host) {
    std::vector<int> all;
    for (int rank = 0; rank < hosts * ranks_per_host; ++rank) all.push_back(rank / ranks_per_host);
    return all;
  }

  void deliver_all() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int host = world_.topology().hosts(); host-- > 0;) {
        for (; !inbox_[static_cast<size_t>(host)].empty(); moved = true) take_frame(host);
      }
    }
  }

  RankState& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  uint64_t draw(uint64_t from, uint64_t to) { return std::uniform_int_distribution<uint64_t>(from, to)(random_); }
  void schedule(uint64_t in_ns, What what, int target) { events_.push({now_ns_ + in_ns, sequence_++, what, target}); }
  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }
  bool is_dead(int host) const {
    return dead_from_step_ < steps_.size() && steps_[dead_from_step_].dead[static_cast<size_t>(host)];
  }

  // Owner
  uint64_t now_ns() override { return now_ns_ + 1; }
  void rang(int rank) override {
    if (std::exchange(at(rank).driving, true)) return;
    schedule(draw(3000, 50000), What::kDrive, rank);
  }
  void sent(int from, int to, Frame frame) override {
    if (is_dead(from) || is_dead(to)) return;
    Counts& counts = counts_[current_step_];
    const bool up = to == 0;
    if (up || from == 0) {
      ++(up ? counts.up : counts.down)[frame.kind];
      (up ? counts.bytes_up : counts.bytes_down) += frame.payload.size() + 5;
    } else {
      ++counts.relayed;
    }
    if (frame.kind == FrameKind::kRecords && to == 1) ++counts.batches;
    if (frame.kind == FrameKind::kHostReady) {
      uint64_t& of_host = up_from_[current_step_][static_cast<size_t>(from)];
      counts.most_up_from_a_host = std::max(counts.most_up_from_a_host, ++of_host);
    }
    // A link keeps its order: a later frame never arrives before an earlier one.
    uint64_t& last = link_free_at_[{from, to}];
    last = std::max(last + 100, now_ns_ + draw(15000, 40000));
    inbox_[static_cast<size_t>(to)].push_back({last, from, std::move(frame)});
    schedule(last - now_ns_, What::kFrame, to);
  }

  void begin_step(int rank) {
    RankState& mine = at(rank);
    while (mine.step < steps_.size() && is_absent(mine.step, rank) && mine.joined) ++mine.step;
    if (mine.step == steps_.size()) {
      mine.done = true;
      return;
    }
    current_step_ = std::max(current_step_, mine.step);
    const SimulatedStep& step = steps_[mine.step];
    if (!step.dead.empty()) {
      dead_from_step_ = mine.step;
      if (is_dead(world_.map(rank).host)) return;
    }
    if (is_absent(mine.step, rank)) {
      join(rank);
      return;
    }
    mine.order.clear();
    for (size_t name = names_; name-- > 0;) mine.order.push_back(name);
    if (step.shuffled) std::shuffle(mine.order.begin(), mine.order.end(), random_);
    mine.pace_ns = step.shuffled ? draw(500, 20000) : 2000;
    const uint64_t start_ns = step.late_rank == rank ? kLateNs : draw(1000, 60000);
    schedule(start_ns, What::kSubmit, rank);
  }
  bool is_absent(size_t step, int rank) const {
    return !steps_[step].absent.empty() && steps_[step].absent[static_cast<size_t>(rank)];
  }

  void happen(const Event& event) {
    switch (event.what) {
      case What::kSubmit:
        submit(event.target);
        return;
      case What::kDrive:
        at(event.target).driving = false;
        if (!is_dead(world_.map(event.target).host)) drive(event.target);
        return;
      case What::kFrame:
        if (is_dead(event.target)) return;
        take_frame(event.target);
        drive(world_.topology().leader_of(event.target));
        return;
      case What::kSpeak:
        speaking_at_[static_cast<size_t>(event.target)] = 0;
        if (!is_dead(event.target)) drive(world_.topology().leader_of(event.target));
        return;
    }
  }

  void submit(int rank) {
    RankState& mine = at(rank);
    const size_t name = mine.order.back();
    mine.order.pop_back();
    auto call = std::make_shared<PlainCall>();
    call->key = keys_[name];
    call->text = text_of(name == 0 ? 100 + steps_[mine.step].shape : 100);
    call->descriptor = *call->text;
    call->total_bytes = 400;
    ++mine.in_flight;
    ++arrived_[mine.step][name];
    world_.submit(rank, call);
    if (!mine.order.empty()) {
      schedule(mine.pace_ns, What::kSubmit, rank);
      return;
    }
    mine.waits = true;
    wait(rank);
  }
  // All ranks share the texts.
  const PlainCall::Text& text_of(int64_t elements) {
    PlainCall::Text& text = texts_[elements];
    if (text == nullptr) {
      Descriptor descriptor;
      descriptor.tensors = {{HVD_FLOAT32, {elements}}};
      text = std::make_shared<const std::string>(descriptor.encode());
    }
    return text;
  }
  // As in the engine, a rank that waits drives, and lets its leader know.
  void wait(int rank) {
    world_.at_board(rank).waiting = 1;
    rang(world_.map(rank).ranks_here.front());
    rang(rank);
  }
  void join(int rank) {
    at(rank).joined = true;
    world_.join(rank);
    wait(rank);
  }

  void take_frame(int host) {
    auto& inbox = inbox_[static_cast<size_t>(host)];
    const Arriving arriving = std::move(inbox.front());
    inbox.pop_front();
    world_.take_from_host(host, arriving.from, arriving.frame);
  }

  // Does what a thread with the driver's token does, until there is nothing left.
  void drive(int rank) {
    const HostMap& map = world_.map(rank);
    for (bool moved = true; moved && problem_.empty();) {
      moved = false;
      if (map.is_leader()) {
        for (uint32_t local = 0; local < map.ranks_here.size(); ++local) {
          while (world_.take_ring(map.host, local)) moved = true;
        }
        moved |= world_.tell_retired(map.host);
        world_.speak(map.host);
      }
      while (world_.read(rank)) moved = true;
    }
    if (!map.is_leader()) return;
    world_.board_of(map.host).trim();
    most_log_ = std::max(most_log_, world_.board_of(map.host).log.size());
    const int64_t left_ns = world_.leader_of(map.host).silence_left_ns();
    uint64_t& speaking_at = speaking_at_[static_cast<size_t>(map.host)];
    if (left_ns < 0 || speaking_at != 0) return;
    speaking_at = now_ns_ + static_cast<uint64_t>(left_ns) + 1;
    schedule(static_cast<uint64_t>(left_ns) + 1, What::kSpeak, map.host);
  }

  bool applied(int rank, Record record, const Member::Applied& what) override {
    RankState& mine = at(rank);
    if (what.what == Member::Applied::What::kReady) {
      ready(rank, *what.call->name);
      mine.open.push_back(what.call);
    }
    if (what.what == Member::Applied::What::kZeros) ready(rank, *what.name);
    if (what.what == Member::Applied::What::kFailed) fail("an operation failed: " + what.status.text());
    if (record.kind == RecordKind::kClose) run_batch(rank);
    if (what.what != Member::Applied::What::kJoined) return false;
    world_.finish(rank, what.call);
    mine.joined = false;
    while (!steps_[mine.step].joins) ++mine.step;
    for (size_t name = 0; name < names_; ++name) {
      if (mine.next_ready[name] != mine.step + 1) fail("joined before all was done");
    }
    go_on(rank);
    return false;
  }

  void ready(int rank, const std::string& name) {
    RankState& mine = at(rank);
    const size_t index = std::stoul(name.substr(name.find('.') + 1));
    const size_t step = mine.next_ready[index]++;
    if (!mine.joined && step != mine.step) fail("ready in another step");
    if (arrived_[step][index] != takers(step)) fail("ready before all have submitted");
    if (mine.position == order_.size()) order_.push_back(index);
    if (order_[mine.position++] != index) fail("two orders");
  }
  int takers(size_t step) const {
    const auto& absent = steps_[step].absent;
    return static_cast<int>(ranks_.size()) - static_cast<int>(std::count(absent.begin(), absent.end(), true));
  }

  void run_batch(int rank) {
    RankState& mine = at(rank);
    for (const ContributionPtr& call : std::exchange(mine.open, {})) {
      world_.finish(rank, call);
      --mine.in_flight;
    }
    if (!mine.waits || mine.in_flight > 0) return;
    if (steps_[mine.step].joins) {
      mine.waits = false;
      join(rank);
    } else {
      go_on(rank);
    }
  }
  void go_on(int rank) {
    world_.at_board(rank).waiting = 0;
    at(rank).waits = false;
    ++at(rank).step;
    begin_step(rank);
  }

  // Nothing happens any more. With a dead host, the others may wait for it, and for nothing else; those behind it for
  // anything.
  void judge_end() {
    for (int rank = 0; rank < world_.topology().size(); ++rank) {
      const int host = world_.map(rank).host;
      if (is_dead(host) || is_dead(world_.map(rank).tree.above(host))) continue;
      const bool waits_for_the_dead = dead_from_step_ < steps_.size() && at(rank).step == dead_from_step_;
      if (!at(rank).done && !waits_for_the_dead) {
        fail("rank " + std::to_string(rank) + " sleeps for ever in step " + std::to_string(at(rank).step));
      }
      if (world_.has_record(rank)) fail("rank " + std::to_string(rank) + " sleeps on a record");
      if (!world_.at_board(rank).ring.empty()) fail("a leader sleeps on a frame of rank " + std::to_string(rank));
    }
    if (most_log_ > kLogSlots) fail("a log has grown to " + std::to_string(most_log_) + " records");
    for (int host = 0; host < world_.topology().hosts(); ++host) {
      if (world_.board_of(host).entries.size() > names_ + 1) fail("numbers are not given back");
    }
  }

  struct Arriving {
    uint64_t time_ns;
    int from;
    Frame frame;
  };

  const size_t names_;
  const std::vector<SimulatedStep> steps_;
  std::mt19937_64 random_;
  std::vector<PlainCall::Text> keys_;         // by name
  std::map<int64_t, PlainCall::Text> texts_;  // by elements
  PlainWorld world_;
  std::vector<RankState> ranks_;
  std::vector<std::deque<Arriving>> inbox_;  // by host
  std::map<std::pair<int, int>, uint64_t> link_free_at_;
  std::vector<uint64_t> speaking_at_;  // by host
  std::vector<Counts> counts_;         // by step
  std::vector<std::vector<uint64_t>> up_from_;
  std::vector<std::vector<int>> arrived_;  // by step and name
  std::vector<size_t> order_;              // of names, as ready
  std::priority_queue<Event> events_;
  uint64_t now_ns_ = 0, sequence_ = 0, events_run_ = 0;
  size_t current_step_ = 0, dead_from_step_ = SIZE_MAX, most_log_ = 0;
  std::string problem_;
};

}  // namespace hvd
