// SPDX-License-Identifier: Apache-2.0
// Every interleaving of ranks and leaders over one entry, with the engine's own Tally, Arrival and Coordinator.
//
// A state is the tally words, each rank's place in its submission, the logs, rings and links, and the coordinator. A
// step is one shared-memory operation, or one message taken. All plans of descriptors (D or E, X a refused call) by
// rank and round are run. Checked: no deadlock, no wrong decision (READY exactly where all ranks gave the same
// descriptor), and that two seeded bugs are found.
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "negotiation/coordinator.h"
#include "negotiation/tally.h"
#include "plain_word.h"

using namespace hvd;

namespace {

enum class RankState : uint8_t { kIdle, kArriving, kWaiting };

struct Rank {
  RankState state = RankState::kIdle;
  uint8_t arrival = 0;  // Arrival<>::State
  int round = 0;
  size_t cursor = 0;
  std::string known;  // the descriptor the log has defined, as far as this rank has read
};

struct Event {  // to the coordinator, over a host's way up
  FrameKind kind;
  int rank;
  std::string text;
  uint32_t count;
};

struct Micro {  // a leader's next shared-memory operation
  enum Kind : uint8_t { kRecall, kReset, kAppend } kind;
  Decision decision;
};

struct World {
  std::vector<Rank> ranks;
  std::vector<uint64_t> cells;              // by host
  std::vector<std::vector<Decision>> logs;  // by host
  std::vector<std::deque<Event>> rings;     // by rank
  std::vector<std::deque<Event>> up;        // by host
  std::vector<std::deque<Micro>> down;      // by host
  Coordinator coordinator{{0}};

  std::string key() const {
    Writer text;
    for (const Rank& rank : ranks) {
      text.put(rank.state).put(rank.arrival).put(rank.round).put(rank.cursor).put_string(rank.known);
    }
    for (const uint64_t cell : cells) text.put(cell);
    for (const auto& log : logs) text.put(log.size());
    for (const auto& log : logs) {
      for (const Decision& record : log) text.put(record.kind).put_string(record.payload);
    }
    auto events = [&](const std::deque<Event>& queue) {
      text.put(queue.size());
      for (const Event& event : queue) text.put(event.kind).put(event.rank).put_string(event.text).put(event.count);
    };
    for (const auto& ring : rings) events(ring);
    for (const auto& queue : up) events(queue);
    for (const auto& queue : down) {
      text.put(queue.size());
      for (const Micro& micro : queue) text.put(micro.kind).put(micro.decision.kind);
    }
    text.put_string(coordinator.snapshot());
    return text.take();
  }
};

std::string descriptor_of(char letter) {
  Descriptor descriptor;
  descriptor.tensors = {{HVD_FLOAT32, {letter == 'D' ? 3 : 4}}};
  return descriptor.encode();
}

template <class Bugs>
class Checker {
 public:
  Checker(std::vector<int> host_of_rank, std::vector<std::string> plans)
      : hosts_(host_of_rank), plans_(std::move(plans)), rounds_(plans_[0].size()) {
    for (const int host : hosts_) {
      if (static_cast<size_t>(host) >= members_.size()) members_.resize(host + 1, 0);
      ++members_[host];
    }
  }

  // Empty where all interleavings end well.
  std::string run() {
    World first;
    first.ranks.resize(hosts_.size());
    first.rings.resize(hosts_.size());
    first.cells.resize(members_.size());
    first.logs.resize(members_.size());
    first.up.resize(members_.size());
    first.down.resize(members_.size());
    first.coordinator = Coordinator(hosts_);
    push(std::move(first));
    while (!stack_.empty() && problem_.empty()) {
      const World world = std::move(stack_.back());
      stack_.pop_back();
      expand(world);
    }
    return problem_;
  }
  size_t states() const { return seen_.size(); }

 private:
  void push(World world) {
    if (seen_.insert(world.key()).second) stack_.push_back(std::move(world));
  }

  void expand(const World& world) {
    bool moved = false;
    for (size_t r = 0; r < world.ranks.size() && problem_.empty(); ++r) moved |= step_rank(world, static_cast<int>(r));
    for (size_t h = 0; h < members_.size() && problem_.empty(); ++h) moved |= step_leader(world, static_cast<int>(h));
    if (moved || !problem_.empty()) return;
    for (const Rank& rank : world.ranks) {
      if (rank.round != static_cast<int>(rounds_)) problem_ = "deadlock";
    }
  }

  bool step_rank(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    const int host = hosts_[r];
    if (rank.state == RankState::kWaiting) return consume(world, r);
    if (rank.round == static_cast<int>(rounds_)) return false;
    World next = world;
    Rank& mine = next.ranks[r];
    if (rank.state == RankState::kIdle) {
      const char letter = plans_[r][rank.round];
      if (letter != 'X' && rank.known == descriptor_of(letter)) {
        mine.state = RankState::kArriving;
        mine.arrival = 0;
      } else {
        ask(&next, r);
      }
      push(std::move(next));
      return true;
    }
    Tally<PlainWord, Bugs> tally(PlainWord(next.cells[host]), members_[host]);
    Arrival<Bugs> arrival(static_cast<typename Arrival<Bugs>::State>(rank.arrival));
    arrival.step(tally, [&] {
      if (members_.size() == 1) {
        next.logs[host].push_back({RecordKind::kReady, 0, false, {}});
      } else {
        next.up[host].push_back({FrameKind::kHostReady, r, {}, 0});
      }
    });
    mine.arrival = static_cast<uint8_t>(arrival.state());
    if (arrival.finished()) {
      mine.state = RankState::kWaiting;
      if (arrival.state() == Arrival<Bugs>::State::kSlow) ask(&next, r);
    }
    push(std::move(next));
    return true;
  }

  void ask(World* world, int r) {
    const char letter = plans_[r][world->ranks[r].round];
    world->ranks[r].state = RankState::kWaiting;
    const FrameKind kind = letter == 'X' ? FrameKind::kRefuse : FrameKind::kRequest;
    world->rings[r].push_back({kind, r, letter == 'X' ? "refused" : descriptor_of(letter), 0});
  }

  bool consume(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    const auto& log = world.logs[hosts_[r]];
    if (rank.cursor == log.size()) return false;
    World next = world;
    Rank& mine = next.ranks[r];
    const Decision& record = log[rank.cursor];
    ++mine.cursor;
    if (record.kind == RecordKind::kDefine) {
      Reader reader(record.payload);
      reader.get_string();
      mine.known = reader.get_string();
    } else {
      const char letter = plans_[r][rank.round];
      bool uniform = letter != 'X';
      for (const std::string& plan : plans_) uniform = uniform && plan[rank.round] == letter;
      const bool ready = record.kind == RecordKind::kReady;
      if (ready != uniform || (ready && rank.known != descriptor_of(letter))) {
        problem_ = "wrong decision";
        return true;
      }
      ++mine.round;
      mine.state = RankState::kIdle;
    }
    push(std::move(next));
    return true;
  }

  bool step_leader(const World& world, int host) {
    if (!world.down[host].empty()) {
      World next = world;
      const Micro micro = next.down[host].front();
      next.down[host].pop_front();
      Tally<PlainWord, Bugs> tally(PlainWord(next.cells[host]), members_[host]);
      switch (micro.kind) {
        case Micro::kRecall:
          next.up[host].push_back({FrameKind::kRecalled, -1, {}, tally.recall()});
          break;
        case Micro::kReset:
          tally.reset();
          break;
        case Micro::kAppend:
          next.logs[host].push_back(micro.decision);
          break;
      }
      push(std::move(next));
      return true;
    }
    bool moved = false;
    for (size_t r = 0; r < hosts_.size(); ++r) {
      if (hosts_[r] != host || world.rings[r].empty()) continue;
      World next = world;
      next.up[host].push_back(next.rings[r].front());
      next.rings[r].pop_front();
      push(std::move(next));
      moved = true;
    }
    if (host != 0) return moved;
    for (size_t h = 0; h < members_.size(); ++h) {
      if (world.up[h].empty()) continue;
      World next = world;
      const Event event = next.up[h].front();
      next.up[h].pop_front();
      Effects effects;
      if (event.kind == FrameKind::kRequest)
        next.coordinator.request(event.rank, 0, "x", event.text, true, 0, &effects);
      if (event.kind == FrameKind::kRefuse) next.coordinator.refuse(event.rank, 0, "x", event.text, 0, &effects);
      if (event.kind == FrameKind::kHostReady) next.coordinator.host_ready(static_cast<int>(h), 0, 0, &effects);
      if (event.kind == FrameKind::kRecalled) next.coordinator.recalled(static_cast<int>(h), 0, event.count, &effects);
      for (auto& queue : next.down) {
        for (size_t i = 0; i < effects.recalls.size(); ++i) queue.push_back({Micro::kRecall, {}});
        for (const Decision& decision : effects.decisions) {
          if (decision.reset) queue.push_back({Micro::kReset, {}});
          queue.push_back({Micro::kAppend, decision});
        }
      }
      push(std::move(next));
      moved = true;
    }
    return moved;
  }

  std::vector<int> hosts_;
  std::vector<uint32_t> members_;
  std::vector<std::string> plans_;
  size_t rounds_;
  std::vector<World> stack_;
  std::unordered_set<std::string> seen_;
  std::string problem_;
};

// All plans over `letters`; returns the first problem. Adds up the states.
template <class Bugs>
std::string check_all(const std::vector<int>& host_of_rank, int rounds, const std::string& letters, size_t* states) {
  const size_t cells = host_of_rank.size() * static_cast<size_t>(rounds);
  std::vector<size_t> digits(cells, 0);
  for (;;) {
    std::vector<std::string> plans(host_of_rank.size());
    for (size_t i = 0; i < cells; ++i) plans[i / static_cast<size_t>(rounds)] += letters[digits[i]];
    Checker<Bugs> checker(host_of_rank, plans);
    const std::string problem = checker.run();
    *states += checker.states();
    if (!problem.empty()) {
      std::string text = problem + " with plans";
      for (const std::string& plan : plans) text += " " + plan;
      return text;
    }
    size_t i = 0;
    while (i < cells && ++digits[i] == letters.size()) digits[i++] = 0;
    if (i == cells) return "";
  }
}

void expect_sound(const std::vector<int>& host_of_rank, int rounds, const std::string& letters) {
  size_t states = 0;
  const std::string problem = check_all<NoSeededBugs>(host_of_rank, rounds, letters, &states);
  std::printf("       %zu states%s%s\n", states, problem.empty() ? "" : ": ", problem.c_str());
  EXPECT(problem.empty());
  EXPECT(states > 100);
}

struct IgnoreRecalled : NoSeededBugs {
  static constexpr bool kIgnoreRecalled = true;
};
struct AnnounceBeforeReset : NoSeededBugs {
  static constexpr bool kAnnounceBeforeReset = true;
};

}  // namespace

TEST(two_ranks_of_one_host) { expect_sound({0, 0}, 3, "DE"); }
TEST(three_ranks_of_one_host) { expect_sound({0, 0, 0}, 3, "DE"); }
TEST(two_ranks_of_one_host_that_may_refuse) { expect_sound({0, 0}, 3, "DEX"); }
TEST(two_hosts) { expect_sound({0, 1}, 3, "DE"); }
TEST(three_hosts) { expect_sound({0, 1, 2}, 2, "DE"); }
TEST(two_hosts_of_two_and_one) { expect_sound({0, 0, 1}, 2, "DE"); }
TEST(two_hosts_that_may_refuse) { expect_sound({0, 1}, 2, "DEX"); }

TEST(the_seeded_bugs_are_found) {
  size_t states = 0;
  const std::string ignored = check_all<IgnoreRecalled>({0, 0}, 3, "DE", &states);
  const std::string early = check_all<AnnounceBeforeReset>({0, 0}, 3, "DE", &states);
  std::printf("       ignoring the recall: %s\n       announcing before the reset: %s\n", ignored.c_str(),
              early.c_str());
  EXPECT(!ignored.empty());
  EXPECT(!early.empty());
}

TEST_MAIN
