// SPDX-License-Identifier: Apache-2.0
// Every interleaving of ranks and leaders over operations of overlapping process sets, with the engine's own Tally,
// Arrival, Coordinator and plan_batches.
//
// negotiation_model_test.cc looks at one entry of all ranks in depth; this at what sets add: a tally that counts the
// set's members only, ranks and hosts that a set does not reach, and collectives that block. A batch is a rendezvous:
// it is over when all members of its set stand in it, and until then none of them reads its log or does its leader's
// duties. (Users' threads go on submitting.) Checked: no deadlock, the same batches on all members, no wrong decision,
// none before all members have submitted, and that seeded bugs are found.
#include <algorithm>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include "check.h"
#include "fusion/batch.h"
#include "negotiation/coordinator.h"
#include "negotiation/frames.h"
#include "negotiation/tally.h"
#include "plain_word.h"

using namespace hvd;

namespace {

enum class SeededBug : uint8_t { kNone, kCountAllRanks, kRunInOrderOfSubmission, kLocalReadyAcrossHosts };

// One name per set; a step is one operation of a set, with descriptor D or E.
struct Step {
  int set;
  char letter;
};
struct Case {
  std::vector<int> host_of_rank;
  std::vector<std::vector<int>> sets;       // from number 1 on
  std::vector<std::vector<Step>> programs;  // by rank
  bool waits = false;                       // each step is done before the next is submitted
  SeededBug bug = SeededBug::kNone;
};

struct Rank {
  size_t next = 0;           // step to be submitted
  int submitting = 0;        // the set of an arrival under way, 0 where none is
  uint8_t arrival = 0;       // Arrival<>::State
  std::vector<int> rounds;   // by set: steps done
  std::vector<bool> flying;  // by set
  std::vector<std::string> known;
  size_t cursor = 0;
  std::vector<int> order;              // sets in flight, as submitted
  std::vector<int> open;               // sets that are ready
  std::vector<std::vector<int>> runs;  // batches to be run, the first now
};

struct Event {
  FrameKind kind;
  int rank, set;
  std::string text;
  uint32_t id;
  Recalled found;
};
struct Micro {
  enum Kind : uint8_t { kRecall, kReset, kAppend } kind;
  Decision decision;
};

struct World {
  std::vector<Rank> ranks;
  std::vector<std::vector<uint64_t>> cells;  // by host, by id
  std::vector<std::vector<Decision>> logs;
  std::vector<std::deque<Event>> rings, up;  // by rank; by host
  std::vector<std::deque<Micro>> down;
  std::vector<int> set_of_id;
  Coordinator coordinator{{0}};

  std::string key() const {
    Writer text;
    const auto numbers = [&](const auto& values) {
      text.put(static_cast<uint8_t>(values.size()));
      for (const auto value : values) text.put(static_cast<uint8_t>(value));
    };
    for (const Rank& rank : ranks) {
      text.put(static_cast<uint8_t>(rank.next)).put(static_cast<uint8_t>(rank.submitting)).put(rank.arrival);
      text.put(static_cast<uint16_t>(rank.cursor));
      numbers(rank.rounds), numbers(rank.flying), numbers(rank.order), numbers(rank.open);
      text.put(static_cast<uint8_t>(rank.runs.size()));
      for (const auto& run : rank.runs) numbers(run);
      for (const std::string& known : rank.known) text.put_string(known);
    }
    for (const auto& of_host : cells) {
      for (const uint64_t cell : of_host) text.put(cell);
    }
    for (const auto& log : logs) {
      text.put(static_cast<uint16_t>(log.size()));
      for (const Decision& record : log) text.put(record.kind).put(record.id).put_string(record.payload);
    }
    for (const auto* queues : {&rings, &up}) {
      for (const auto& queue : *queues) {
        text.put(static_cast<uint8_t>(queue.size()));
        for (const Event& event : queue) text.put(event.kind).put(event.set).put(event.id);
        for (const Event& event : queue) text.put(event.found.round).put(event.found.count).put(event.found.complete);
        for (const Event& event : queue) text.put(event.rank).put_string(event.text);
      }
    }
    for (const auto& queue : down) {
      text.put(static_cast<uint8_t>(queue.size()));
      for (const Micro& micro : queue) text.put(micro.kind).put(micro.decision.kind).put(micro.decision.id);
    }
    text.put_string(coordinator.snapshot());
    return text.take();
  }
};

std::string descriptor_of(int set, char letter) {
  Descriptor descriptor;
  descriptor.process_set = set;
  descriptor.tensors = {{HVD_FLOAT32, {letter == 'D' ? 3 : 4}}};
  return descriptor.encode();
}

class Checker {
 public:
  explicit Checker(Case given) : case_(std::move(given)), hosts_(1) {
    for (const int host : case_.host_of_rank) hosts_ = std::max(hosts_, static_cast<size_t>(host) + 1);
  }

  // Empty where all interleavings end well.
  std::string run() {
    const size_t ranks = case_.host_of_rank.size(), sets = case_.sets.size() + 1;
    World first;
    first.ranks.resize(ranks);
    for (Rank& rank : first.ranks) {
      rank.rounds.assign(sets, 0);
      rank.flying.assign(sets, false);
      rank.known.assign(sets, "");
    }
    first.rings.resize(ranks);
    first.up.resize(hosts_);
    first.down.resize(hosts_);
    first.logs.resize(hosts_);
    first.cells.assign(hosts_, std::vector<uint64_t>(sets, 0));
    first.set_of_id.assign(sets, 0);
    first.coordinator = Coordinator(case_.host_of_rank);
    for (size_t s = 1; s < sets; ++s) first.coordinator.add_set(static_cast<int32_t>(s), case_.sets[s - 1]);
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
  const std::vector<int>& members(int set) const { return case_.sets[static_cast<size_t>(set) - 1]; }
  bool has(int set, int rank) const { return std::ranges::find(members(set), rank) != members(set).end(); }
  uint32_t counted(int set, int host) const {
    uint32_t count = 0;
    for (size_t r = 0; r < case_.host_of_rank.size(); ++r) {
      const bool counts = case_.bug == SeededBug::kCountAllRanks || has(set, static_cast<int>(r));
      count += case_.host_of_rank[r] == host && counts ? 1 : 0;
    }
    return count;
  }
  // The descriptor that a member gives in a round of a set.
  char letter(int rank, int set, int round) const {
    for (const Step& step : case_.programs[static_cast<size_t>(rank)]) {
      if (step.set == set && round-- == 0) return step.letter;
    }
    return '?';
  }

  void push(World world) {
    if (seen_.insert(world.key()).second) stack_.push_back(std::move(world));
  }

  void expand(const World& world) {
    bool moved = false;
    for (int r = 0; r < static_cast<int>(world.ranks.size()) && problem_.empty(); ++r) {
      moved |= submit(world, r);
      moved |= follow(world, r);
      moved |= close(world, r);
    }
    if (problem_.empty()) moved |= rendezvous(world);
    for (int h = 0; h < static_cast<int>(hosts_) && problem_.empty(); ++h) moved |= lead(world, h);
    if (moved || !problem_.empty()) return;
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      const auto& flying = world.ranks[r].flying;
      if (world.ranks[r].next != case_.programs[r].size() || std::ranges::find(flying, true) != flying.end()) {
        problem_ = "deadlock";
      }
    }
  }

  // The user's thread.
  bool submit(const World& world, int r) {
    const Rank& rank = world.ranks[static_cast<size_t>(r)];
    const auto& program = case_.programs[static_cast<size_t>(r)];
    if (rank.submitting == 0) {
      if (rank.next == program.size() || rank.flying[static_cast<size_t>(program[rank.next].set)]) return false;
      if (case_.waits && !rank.order.empty()) return false;
    }
    World next = world;
    Rank& mine = next.ranks[static_cast<size_t>(r)];
    if (rank.submitting == 0) {
      const Step step = program[mine.next++];
      mine.flying[static_cast<size_t>(step.set)] = true;
      mine.order.push_back(step.set);
      if (mine.known[static_cast<size_t>(step.set)] == descriptor_of(step.set, step.letter)) {
        mine.submitting = step.set;
        mine.arrival = 0;
      } else {
        ask(&next, r, step.set);
      }
      push(std::move(next));
      return true;
    }
    const int set = rank.submitting, host = case_.host_of_rank[static_cast<size_t>(r)];
    const uint32_t id = id_of(world, set);
    Tally<PlainWord> tally(PlainWord(next.cells[static_cast<size_t>(host)][id]), counted(set, host), hosts_ > 1);
    Arrival<> arrival(static_cast<Arrival<>::State>(rank.arrival));
    arrival.step(tally, [&] {
      if (hosts_ == 1 || case_.bug == SeededBug::kLocalReadyAcrossHosts) {
        next.logs[static_cast<size_t>(host)].push_back({RecordKind::kReady, id, false, {}});
      } else {
        next.up[static_cast<size_t>(host)].push_back({FrameKind::kHostReady, r, set, {}, id, {}});
      }
    });
    mine.arrival = static_cast<uint8_t>(arrival.state());
    if (arrival.finished()) {
      mine.submitting = 0;
      if (arrival.state() == Arrival<>::State::kSlow) ask(&next, r, set);
    }
    push(std::move(next));
    return true;
  }

  static uint32_t id_of(const World& world, int set) {
    return static_cast<uint32_t>(std::ranges::find(world.set_of_id, set) - world.set_of_id.begin());
  }

  void ask(World* world, int r, int set) {
    const char asked = letter(r, set, world->ranks[static_cast<size_t>(r)].rounds[static_cast<size_t>(set)]);
    world->rings[static_cast<size_t>(r)].push_back({FrameKind::kRequest, r, set, descriptor_of(set, asked), 0, {}});
  }

  bool follow(const World& world, int r) {
    const Rank& rank = world.ranks[static_cast<size_t>(r)];
    const auto& log = world.logs[static_cast<size_t>(case_.host_of_rank[static_cast<size_t>(r)])];
    if (!rank.runs.empty() || rank.cursor == log.size()) return false;
    World next = world;
    Rank& mine = next.ranks[static_cast<size_t>(r)];
    const Decision& record = log[mine.cursor++];
    const int set = record.kind == RecordKind::kClose ? 0 : world.set_of_id[record.id];
    if (record.kind == RecordKind::kClose) {
      plan(&mine);
    } else if (has(set, r)) {
      const size_t s = static_cast<size_t>(set);
      if (record.kind == RecordKind::kDefine) {
        Definition definition;
        if (!parse_definition(record.payload, &definition) || definition.set != set) problem_ = "unreadable definition";
        mine.known[s] = definition.descriptor;
      } else {
        bool uniform = true;
        for (const int m : members(set)) {
          uniform = uniform && letter(m, set, mine.rounds[s]) == letter(r, set, mine.rounds[s]);
          const bool submitted = world.ranks[static_cast<size_t>(m)].flying[s];
          if (record.kind == RecordKind::kReady && !submitted) problem_ = "ready before all members have submitted";
        }
        if (!mine.flying[s] || uniform != (record.kind == RecordKind::kReady)) problem_ = "wrong decision";
        if (record.kind == RecordKind::kReady) {
          mine.open.push_back(set);
        } else {
          finish(&mine, set);
        }
      }
    }
    push(std::move(next));
    return true;
  }

  void plan(Rank* rank) const {
    std::vector<Descriptor> descriptors;
    std::vector<const Descriptor*> entries;
    if (case_.bug == SeededBug::kRunInOrderOfSubmission) {
      std::ranges::sort(rank->open, {}, [&](int set) { return std::ranges::find(rank->order, set); });
    }
    for (const int set : rank->open) {
      Descriptor descriptor;
      Descriptor::decode(rank->known[static_cast<size_t>(set)], &descriptor);
      descriptors.push_back(std::move(descriptor));
    }
    for (const Descriptor& descriptor : descriptors) entries.push_back(&descriptor);
    for (const Batch& batch : plan_batches(entries, 1 << 20)) {
      rank->runs.emplace_back();
      for (const BatchTensor& tensor : batch.tensors) rank->runs.back().push_back(rank->open[tensor.entry]);
    }
    rank->open.clear();
  }

  static void finish(Rank* rank, int set) {
    ++rank->rounds[static_cast<size_t>(set)];
    rank->flying[static_cast<size_t>(set)] = false;
    std::erase(rank->order, set);
  }

  // On one host, any rank with something open may end the batch.
  bool close(const World& world, int r) {
    const Rank& rank = world.ranks[static_cast<size_t>(r)];
    if (hosts_ > 1 && case_.bug != SeededBug::kLocalReadyAcrossHosts) return false;
    const auto host = static_cast<size_t>(case_.host_of_rank[static_cast<size_t>(r)]);
    if (!rank.runs.empty() || rank.open.empty() || rank.cursor != world.logs[host].size()) return false;
    World next = world;
    next.logs[host].push_back({RecordKind::kClose, 0, false, {}});
    push(std::move(next));
    return true;
  }

  bool rendezvous(const World& world) {
    bool moved = false;
    for (int set = 1; set <= static_cast<int>(case_.sets.size()); ++set) {
      const std::vector<int>* run = nullptr;
      bool all = true;
      for (const int m : members(set)) {
        const auto& runs = world.ranks[static_cast<size_t>(m)].runs;
        const bool here = !runs.empty() && runs.front().front() == set;
        all = all && here;
        if (!here) continue;
        if (run != nullptr && *run != runs.front()) problem_ = "members run different batches";
        run = &runs.front();
      }
      if (!all || !problem_.empty()) continue;
      World next = world;
      for (const int m : members(set)) {
        Rank& mine = next.ranks[static_cast<size_t>(m)];
        for (const int done : mine.runs.front()) finish(&mine, done);
        mine.runs.erase(mine.runs.begin());
      }
      push(std::move(next));
      moved = true;
    }
    return moved;
  }

  // A leader's duties; it cannot do them inside a collective.
  bool lead(const World& world, int host) {
    const auto h = static_cast<size_t>(host);
    const auto leader = static_cast<size_t>(std::ranges::find(case_.host_of_rank, host) - case_.host_of_rank.begin());
    if (!world.ranks[leader].runs.empty()) return false;
    if (!world.down[h].empty()) {
      World next = world;
      const Micro micro = next.down[h].front();
      next.down[h].pop_front();
      const uint32_t id = micro.decision.id;
      const int set = world.set_of_id[id];
      Tally<PlainWord> tally(PlainWord(next.cells[h][id]), set == 0 ? 0 : counted(set, host), hosts_ > 1);
      if (micro.kind == Micro::kRecall) {
        next.up[h].push_back({FrameKind::kRecalled, -1, set, {}, id, tally.recall()});
      }
      if (micro.kind == Micro::kReset) tally.reset(false);
      if (micro.kind == Micro::kAppend) next.logs[h].push_back(micro.decision);
      push(std::move(next));
      return true;
    }
    bool moved = false;
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      if (case_.host_of_rank[r] != host || world.rings[r].empty()) continue;
      World next = world;
      next.up[h].push_back(next.rings[r].front());
      next.rings[r].pop_front();
      push(std::move(next));
      moved = true;
    }
    return host == 0 ? coordinate(world) || moved : moved;
  }

  bool coordinate(const World& world) {
    bool moved = false;
    for (size_t h = 0; h < hosts_; ++h) {
      if (world.up[h].empty()) continue;
      World next = world;
      const Event event = next.up[h].front();
      next.up[h].pop_front();
      Effects effects;
      Coordinator& coordinator = next.coordinator;
      bool fine = true;
      if (event.kind == FrameKind::kRequest) {
        fine = coordinator.is_member(event.rank, event.set);
        coordinator.request(event.rank, event.set, "x", event.text, true, 0, &effects);
      }
      if (event.kind == FrameKind::kHostReady) {
        fine = coordinator.host_ready(static_cast<int>(h), event.id, 0, &effects);
      }
      if (event.kind == FrameKind::kRecalled) {
        fine = coordinator.recalled(static_cast<int>(h), event.id, event.found, &effects);
      }
      if (!fine) problem_ = "a message that the coordinator refuses";
      spread(&next, effects);
      push(std::move(next));
      moved = true;
    }
    return moved;
  }

  void spread(World* world, const Effects& effects) {
    for (const Decision& decision : effects.decisions) {
      Definition definition;
      if (parse_definition(decision.payload, &definition)) world->set_of_id[decision.id] = definition.set;
      Failure failure;
      if (parse_failure(decision.payload, 100, &failure)) world->set_of_id[decision.id] = failure.set;
    }
    for (size_t h = 0; h < hosts_; ++h) {
      auto& queue = world->down[h];
      for (const uint32_t id : effects.recalls) {
        if (world->coordinator.counts_on(id, static_cast<int>(h))) queue.push_back({Micro::kRecall, {{}, id, {}, {}}});
      }
      for (const Decision& decision : effects.decisions) {
        if (decision.reset) queue.push_back({Micro::kReset, {{}, decision.id, {}, {}}});
        queue.push_back({Micro::kAppend, decision});
      }
      if (hosts_ > 1 && !effects.decisions.empty())
        queue.push_back({Micro::kAppend, {RecordKind::kClose, 0, false, {}}});
    }
  }

  Case case_;
  size_t hosts_;
  std::vector<World> stack_;
  std::unordered_set<std::string> seen_;
  std::string problem_;
};

void expect_sound(const Case& given) {
  Checker checker(given);
  const std::string problem = checker.run();
  std::printf("       %zu states%s%s\n", checker.states(), problem.empty() ? "" : ": ", problem.c_str());
  EXPECT(problem.empty());
  EXPECT(checker.states() > 100);
}

std::vector<std::vector<int>> circle() { return {{0, 1}, {1, 2}, {0, 2}}; }

}  // namespace

// Each rank submits its two sets in an order of its own, all at once.
TEST(a_circle_of_pairs_on_one_host) {
  expect_sound({{0, 0, 0}, circle(), {{{1, 'D'}, {3, 'D'}}, {{2, 'D'}, {1, 'D'}}, {{3, 'D'}, {2, 'D'}}}});
}
TEST(a_chain_of_pairs_on_three_hosts) {
  expect_sound({{0, 1, 2}, {{0, 1}, {1, 2}}, {{{1, 'D'}}, {{2, 'D'}, {1, 'D'}}, {{2, 'D'}}}});
}
// Set 1 a second time: over the tally where the descriptor is the last one's, by recall where it is not. The leader of
// host 0 is no member.
TEST(a_set_without_the_leader_on_one_host) {
  for (const char* letters : {"DD", "DE", "EE"}) {
    expect_sound({{0, 0, 0}, {{1, 2}}, {{}, {{1, 'D'}, {1, letters[0]}}, {{1, 'D'}, {1, letters[1]}}}});
  }
}
TEST(a_set_that_rank_0s_host_has_no_part_in) {
  for (const char* letters : {"DD", "DE", "EE"}) {
    expect_sound({{0, 1, 2}, {{1, 2}}, {{}, {{1, 'D'}, {1, letters[0]}}, {{1, 'D'}, {1, letters[1]}}}});
  }
}
TEST(nested_sets_and_ranks_that_wait_for_each_step) {
  const std::vector<Step> inner = {{1, 'D'}, {2, 'D'}, {1, 'D'}}, outer = {{2, 'D'}};
  expect_sound({{0, 0, 0}, {{0, 1}, {0, 1, 2}}, {inner, inner, outer}, true});
  expect_sound({{0, 1, 2}, {{0, 1}, {0, 1, 2}}, {inner, inner, outer}, true});
}
TEST(two_hosts_of_two_and_one_with_a_set_across) {
  expect_sound({{0, 0, 1}, {{1, 2}, {0, 1}}, {{{2, 'D'}}, {{1, 'D'}, {2, 'D'}}, {{1, 'D'}}}});
}

TEST(the_seeded_bugs_are_found) {
  Case crossing{{0, 0, 0}, circle(), {{{1, 'D'}, {3, 'D'}}, {{2, 'D'}, {1, 'D'}}, {{3, 'D'}, {2, 'D'}}}};
  crossing.bug = SeededBug::kRunInOrderOfSubmission;
  Case repeated{{0, 0, 0}, {{1, 2}}, {{}, {{1, 'D'}, {1, 'D'}}, {{1, 'D'}, {1, 'D'}}}};
  repeated.bug = SeededBug::kCountAllRanks;
  Case apart{{0, 1}, {{0, 1}}, {{{1, 'D'}, {1, 'D'}}, {{1, 'D'}, {1, 'D'}}}};
  apart.bug = SeededBug::kLocalReadyAcrossHosts;
  for (const Case& given : {crossing, repeated, apart}) {
    Checker checker(given);
    const std::string problem = checker.run();
    std::printf("       seeded bug %d: %s\n", static_cast<int>(given.bug), problem.c_str());
    EXPECT(!problem.empty());
  }
}

TEST_MAIN
