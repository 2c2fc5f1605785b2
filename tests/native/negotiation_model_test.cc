// SPDX-License-Identifier: Apache-2.0
// Every interleaving of ranks and leaders over one entry, with the engine's own Tally, Arrival and Coordinator.
//
// A state is the tally words, each rank's place in its submission, the logs, rings and links, and the coordinator. A
// step is one shared-memory operation, or one message taken. A rank's plan is a word of what it does one after the
// other: D and E are allreduces of two shapes, G is an allgather, X a refused call, J joins, and j joins without
// waiting for the call before it. All plans, or all of a list, are run for each rank. Checked: no deadlock, no wrong
// decision (READY exactly where all ranks that have not joined gave the same descriptor, and those that have can give
// zeros), that the fast way is back when all have joined, and that seeded bugs are found.
#include <algorithm>
#include <deque>
#include <optional>
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
  size_t next = 0;      // letter of the plan
  size_t flying = 0;    // the letter in flight
  bool joined = false;
  size_t joins = 0;    // of all ranks, that it has read of
  size_t decided = 0;  // since the last of them
  std::optional<uint32_t> counted_in;
  size_t cursor = 0;
  std::string known;  // the descriptor the log has defined, as far as this rank has read
};

struct Event {  // to the coordinator, over a host's way up
  FrameKind kind;
  int rank;
  std::string text;
  Recalled found;
  CountedIn counted;
};

struct Micro {  // a leader's next shared-memory operation
  enum Kind : uint8_t { kRecall, kReset, kBackToTheFastWay, kAppend } kind;
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
      text.put(rank.state).put(rank.arrival).put(rank.next).put(rank.flying).put(rank.joined).put(rank.joins);
      text.put(rank.decided).put(rank.counted_in.value_or(UINT32_MAX)).put(rank.cursor).put_string(rank.known);
    }
    for (const uint64_t cell : cells) text.put(cell);
    for (const auto& log : logs) text.put(log.size());
    for (const auto& log : logs) {
      for (const Decision& record : log) text.put(record.kind).put_string(record.payload);
    }
    auto events = [&](const std::deque<Event>& queue) {
      text.put(queue.size());
      for (const Event& event : queue) {
        text.put(event.kind).put(event.rank).put_string(event.text);
        text.put(event.found.round).put(event.found.count).put(event.found.complete);
        text.put(event.counted.empty() ? UINT32_MAX : event.counted.begin()->second);
      }
    };
    for (const auto& ring : rings) events(ring);
    for (const auto& queue : up) events(queue);
    for (const auto& queue : down) {
      text.put(queue.size());
      for (const Micro& micro : queue) {
        text.put(micro.kind).put(micro.decision.kind).put(micro.decision.id).put(micro.decision.stays_recalled);
      }
    }
    text.put_string(coordinator.snapshot());
    return text.take();
  }
};

std::string descriptor_of(char letter) {
  Descriptor descriptor;
  descriptor.kind = letter == 'G' ? HVD_ALLGATHER : HVD_ALLREDUCE;
  descriptor.tensors = {{HVD_FLOAT32, {letter == 'D' ? 3 : 4}}};
  return descriptor.encode();
}

template <class Bugs>
class Checker {
 public:
  Checker(std::vector<int> host_of_rank, std::vector<std::string> plans)
      : hosts_(host_of_rank), plans_(std::move(plans)) {
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
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      const Rank& rank = world.ranks[r];
      if (rank.next != plans_[r].size() || rank.state != RankState::kIdle || rank.joined) problem_ = "deadlock";
    }
    for (size_t h = 0; h < members_.size() && problem_.empty(); ++h) {
      World end = world;
      Tally<PlainWord, Bugs> tally(PlainWord(end.cells[h]), members_[h], across_hosts());
      const bool joined = plans_[0].back() == 'J' || plans_[0].back() == 'j';
      if (joined && tally.recalled()) problem_ = "still on the slow way";
    }
  }

  bool across_hosts() const { return members_.size() > 1; }

  // What a rank gives to a round: after so many joins of all ranks, the so manieth decision. '-' where it has joined.
  char letter(size_t rank, size_t joins, size_t round) const {
    size_t begin = 0;
    for (; joins > 0; --joins) begin = plans_[rank].find_first_of("Jj", begin) + 1;
    const size_t end = std::min(plans_[rank].find_first_of("Jj", begin), plans_[rank].size());
    return begin + round < end ? plans_[rank][begin + round] : '-';
  }

  bool step_rank(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    const bool moved = rank.state != RankState::kArriving && consume(world, r);
    return submit(world, r) || moved;
  }

  bool submit(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    const char letter = rank.next < plans_[r].size() ? plans_[r][rank.next] : '-';
    if (rank.state == RankState::kArriving) return arrive(world, r);
    const bool joins = letter == 'j' || (letter == 'J' && rank.state == RankState::kIdle);
    if (rank.joined || letter == '-' || (rank.state == RankState::kWaiting && !joins)) return false;
    World next = world;
    Rank& mine = next.ranks[r];
    if (joins) {
      CountedIn counted;
      if (rank.counted_in.has_value() && !Bugs::kForgetWhatWasCounted) counted[0] = *rank.counted_in;
      next.rings[r].push_back({FrameKind::kJoin, r, {}, {}, std::move(counted)});
      mine.joined = true;
    } else {
      mine.flying = mine.next;
      if (letter != 'X' && rank.known == descriptor_of(letter)) {
        mine.state = RankState::kArriving;
        mine.arrival = 0;
      } else {
        ask(&next, r);
      }
    }
    ++mine.next;
    push(std::move(next));
    return true;
  }

  bool arrive(const World& world, int r) {
    const int host = hosts_[r];
    World next = world;
    Rank& mine = next.ranks[r];
    Tally<PlainWord, Bugs> tally(PlainWord(next.cells[host]), members_[host], across_hosts());
    Arrival<Bugs> arrival(static_cast<typename Arrival<Bugs>::State>(mine.arrival));
    arrival.step(tally, [&] {
      if (across_hosts()) {
        next.up[host].push_back({FrameKind::kHostReady, r, {}, {}, {}});
      } else {
        next.logs[host].push_back({RecordKind::kReady, 0, false, {}});
      }
    });
    if (mine.arrival == 0 && arrival.state() != Arrival<Bugs>::State::kSlow) mine.counted_in = arrival.round();
    mine.arrival = static_cast<uint8_t>(arrival.state());
    if (arrival.finished()) {
      mine.state = RankState::kWaiting;
      if (arrival.state() == Arrival<Bugs>::State::kSlow) ask(&next, r);
    }
    push(std::move(next));
    return true;
  }

  void ask(World* world, int r) {
    const char letter = plans_[r][world->ranks[r].flying];
    world->ranks[r].state = RankState::kWaiting;
    const FrameKind kind = letter == 'X' ? FrameKind::kRefuse : FrameKind::kRequest;
    world->rings[r].push_back({kind, r, letter == 'X' ? "refused" : descriptor_of(letter), {}, {}});
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
    } else if (record.kind == RecordKind::kJoin) {
      for (size_t other = 0; other < plans_.size(); ++other) {
        if (letter(other, rank.joins, rank.decided) != '-') problem_ = "joined before all have";
      }
      if (!rank.joined || rank.state != RankState::kIdle) problem_ = "joined before all have";
      mine.joined = false;
      ++mine.joins;
      mine.decided = 0;
    } else {
      judge(rank, r, record.kind == RecordKind::kReady);
      mine.state = RankState::kIdle;
      mine.counted_in.reset();
      ++mine.decided;
    }
    push(std::move(next));
    return true;
  }

  void judge(const Rank& rank, int r, bool ready) {
    char agreed = '-';
    bool can_run = true;
    for (size_t other = 0; other < plans_.size(); ++other) {
      const char seen = letter(other, rank.joins, rank.decided);
      can_run = can_run && seen != 'X' && (agreed == '-' || seen == '-' || seen == agreed);
      if (seen != '-') agreed = seen;
    }
    for (size_t other = 0; other < plans_.size(); ++other) {
      if (agreed == 'G' && letter(other, rank.joins, rank.decided) == '-') can_run = false;
    }
    const char mine = letter(r, rank.joins, rank.decided);
    const bool is_there = mine == '-' ? rank.joined : rank.state == RankState::kWaiting;
    if (agreed == '-' || ready != can_run || !is_there) problem_ = "wrong decision";
    if (ready && rank.known != descriptor_of(agreed)) problem_ = "wrong definition";
  }

  bool step_leader(const World& world, int host) {
    if (!world.down[host].empty()) {
      World next = world;
      const Micro micro = next.down[host].front();
      next.down[host].pop_front();
      Tally<PlainWord, Bugs> tally(PlainWord(next.cells[host]), members_[host], across_hosts());
      switch (micro.kind) {
        case Micro::kRecall:
          next.up[host].push_back({FrameKind::kRecalled, -1, {}, tally.recall(), {}});
          break;
        case Micro::kReset:
          tally.reset(micro.decision.stays_recalled);
          break;
        case Micro::kBackToTheFastWay:
          if (tally.recalled()) tally.reset(false);
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
      if (event.kind == FrameKind::kRecalled) next.coordinator.recalled(static_cast<int>(h), 0, event.found, &effects);
      if (event.kind == FrameKind::kJoin) next.coordinator.join(event.rank, event.counted, 0, &effects);
      for (auto& queue : next.down) {
        for (size_t i = 0; i < effects.recalls.size(); ++i) queue.push_back({Micro::kRecall, {}});
        for (const Decision& decision : effects.decisions) {
          if (decision.reset) queue.push_back({Micro::kReset, decision});
          if (decision.kind == RecordKind::kJoin) queue.push_back({Micro::kBackToTheFastWay, {}});
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
  std::vector<World> stack_;
  std::unordered_set<std::string> seen_;
  std::string problem_;
};

// Each rank with each of the plans; returns the first problem. Adds up the states.
template <class Bugs>
std::string check_all(const std::vector<int>& host_of_rank, const std::vector<std::string>& choices, size_t* states) {
  std::vector<size_t> digits(host_of_rank.size(), 0);
  for (;;) {
    std::vector<std::string> plans;
    for (const size_t digit : digits) plans.push_back(choices[digit]);
    Checker<Bugs> checker(host_of_rank, plans);
    const std::string problem = checker.run();
    *states += checker.states();
    if (!problem.empty()) {
      std::string text = problem + " with plans";
      for (const std::string& plan : plans) text += " " + plan;
      return text;
    }
    size_t i = 0;
    while (i < digits.size() && ++digits[i] == choices.size()) digits[i++] = 0;
    if (i == digits.size()) return "";
  }
}

std::vector<std::string> all_plans(size_t rounds, const std::string& letters) {
  std::vector<std::string> plans = {""};
  for (; rounds > 0; --rounds) {
    std::vector<std::string> longer;
    for (const std::string& plan : plans) {
      for (const char letter : letters) longer.push_back(plan + letter);
    }
    plans = std::move(longer);
  }
  return plans;
}

void expect_sound(const std::vector<int>& host_of_rank, const std::vector<std::string>& choices) {
  size_t states = 0;
  const std::string problem = check_all<NoSeededBugs>(host_of_rank, choices, &states);
  std::printf("       %zu states%s%s\n", states, problem.empty() ? "" : ": ", problem.c_str());
  EXPECT(problem.empty());
  EXPECT(states > 100);
}

void expect_sound(const std::vector<int>& host_of_rank, size_t rounds, const std::string& letters) {
  expect_sound(host_of_rank, all_plans(rounds, letters));
}

const std::vector<std::string> kUneven = {"DDDJD", "DDjD", "DEJD", "DJD", "jD"};

struct IgnoreRecalled : NoSeededBugs {
  static constexpr bool kIgnoreRecalled = true;
};
struct AnnounceBeforeReset : NoSeededBugs {
  static constexpr bool kAnnounceBeforeReset = true;
};
struct DropTheRecall : NoSeededBugs {
  static constexpr bool kDropTheRecall = true;
};
struct ForgetWhatWasCounted : NoSeededBugs {
  static constexpr bool kForgetWhatWasCounted = true;
};

}  // namespace

TEST(two_ranks_of_one_host) { expect_sound({0, 0}, 3, "DE"); }
TEST(three_ranks_of_one_host) { expect_sound({0, 0, 0}, 3, "DE"); }
TEST(two_ranks_of_one_host_that_may_refuse) { expect_sound({0, 0}, 3, "DEX"); }
TEST(two_hosts) { expect_sound({0, 1}, 3, "DE"); }
TEST(three_hosts) { expect_sound({0, 1, 2}, 2, "DE"); }
TEST(two_hosts_of_two_and_one) { expect_sound({0, 0, 1}, 2, "DE"); }
TEST(two_hosts_that_may_refuse) { expect_sound({0, 1}, 2, "DEX"); }

TEST(two_ranks_of_one_host_that_join) {
  expect_sound({0, 0}, {"DDDJDJ", "DDjDJ", "DEJDJ", "DGJDJ", "DXJDJ", "DJDJ", "jDJ", "DDJJ", "JDDJ"});
}
TEST(three_ranks_of_one_host_that_join) { expect_sound({0, 0, 0}, kUneven); }
TEST(two_hosts_that_join) { expect_sound({0, 1}, {"DDDJDJ", "DDjDJ", "DEJDJ", "DGJDJ", "DXJDJ", "DJDJ", "jDJ"}); }
TEST(two_hosts_of_two_and_one_that_join) { expect_sound({0, 0, 1}, {"DDjD", "DDJD", "DjD"}); }

TEST(the_seeded_bugs_are_found) {
  size_t states = 0;
  const std::string ignored = check_all<IgnoreRecalled>({0, 0}, all_plans(3, "DE"), &states);
  const std::string early = check_all<AnnounceBeforeReset>({0, 0}, all_plans(3, "DE"), &states);
  const std::string dropped = check_all<DropTheRecall>({0, 0, 0}, kUneven, &states);
  const std::string forgotten = check_all<ForgetWhatWasCounted>({0, 0, 0}, kUneven, &states);
  std::printf(
      "       ignoring the recall: %s\n       announcing before the reset: %s\n       dropping the recall of a "
      "complete "
      "round: %s\n       joining without what was counted: %s\n",
      ignored.c_str(), early.c_str(), dropped.c_str(), forgotten.c_str());
  EXPECT(!ignored.empty());
  EXPECT(!early.empty());
  EXPECT(!dropped.empty());
  EXPECT(!forgotten.empty());
}

TEST_MAIN
