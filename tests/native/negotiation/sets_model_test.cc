// SPDX-License-Identifier: Apache-2.0
// Ranks and leaders over operations of overlapping process sets, in every interleaving (model.h), with the engine's own
// plan_batches.
//
// negotiation_model_test.cc looks at names of all ranks in depth; this at what sets add: a tally that counts the set's
// members only, ranks and hosts that a set does not reach, and collectives that block. A batch is a rendezvous: it is
// over when all members of its set stand in it, and until then none of them reads its log or does its leader's duties.
// (Users' threads go on submitting.) Checked: no deadlock, the same batches on all members, no wrong decision, and none
// before all members have submitted.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "fusion/batch.h"
#include "model.h"
#include "negotiation/frames.h"

using namespace hvd;

namespace {

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
  bool in_order_of_submission = false;      // a bug of this model's own batches
};

struct Ready {
  int set = 0;
  ContributionPtr call;
};

struct Progress {
  size_t next = 0;           // step to be submitted
  std::vector<int> rounds;   // by set: steps done
  std::vector<bool> flying;  // by set
  std::vector<int> order;    // sets in flight, as submitted
  std::vector<Ready> open;
  std::vector<std::vector<Ready>> runs;  // batches to be run, the first now

  void put(Writer* text) const {
    const auto numbers = [&](const auto& values) {
      text->put(static_cast<uint8_t>(values.size()));
      for (const auto value : values) text->put(static_cast<uint8_t>(value));
    };
    const auto sets = [&](const std::vector<Ready>& all) {
      text->put(static_cast<uint8_t>(all.size()));
      for (const Ready& ready : all) text->put(static_cast<uint8_t>(ready.set));
    };
    text->put(static_cast<uint8_t>(next));
    numbers(rounds), numbers(flying), numbers(order), sets(open);
    text->put(static_cast<uint8_t>(runs.size()));
    for (const auto& run : runs) sets(run);
  }
};

std::string descriptor_of(int set, char letter) {
  Descriptor descriptor;
  descriptor.process_set = set;
  descriptor.tensors = {{HVD_FLOAT32, {letter == 'D' ? 3 : 4}}};
  return descriptor.encode();
}

class SetsChecker final : public model::Checker<Progress> {
 public:
  explicit SetsChecker(Case given) : Checker(given.host_of_rank, {}), case_(std::move(given)) {}

 private:
  size_t sets() const { return case_.sets.size() + 1; }
  const std::vector<int>& members(int set) const { return case_.sets[static_cast<size_t>(set) - 1]; }
  bool has(int set, int rank) const { return std::ranges::find(members(set), rank) != members(set).end(); }
  const std::vector<Step>& program(int rank) const { return case_.programs[static_cast<size_t>(rank)]; }
  // The descriptor that a member gives in a round of a set.
  char letter(int rank, int set, int round) const {
    for (const Step& step : program(rank)) {
      if (step.set == set && round-- == 0) return step.letter;
    }
    return '?';
  }

  Progress first_plan(int) override {
    Progress plan;
    plan.rounds.assign(sets(), 0);
    plan.flying.assign(sets(), false);
    return plan;
  }
  void prepare(Member* member, int rank) override {
    for (int set = 1; set < static_cast<int>(sets()); ++set) {
      if (has(set, rank)) member->add_set(set);
    }
  }
  void prepare(Leader* leader) override {
    for (int set = 1; set < static_cast<int>(sets()); ++set) leader->add_set(set, members(set));
  }

  void move_rank(const W& world, int r) override {
    const Progress& mine = at(world.ranks, r).plan;
    const bool may_submit = mine.next < program(r).size() && !mine.flying[program(r)[mine.next].set];
    if (may_submit && !(case_.waits && !mine.order.empty())) submit(world, r, static_cast<int>(mine.next));
    close(world, r);
  }
  std::shared_ptr<model::Contributed> contribution(const W&, int r, int argument) override {
    const Step& step = program(r)[static_cast<size_t>(argument)];
    auto made = std::make_shared<model::Contributed>();
    made->set = step.set;
    made->key = "x";
    made->text = descriptor_of(step.set, step.letter);
    made->descriptor = made->text;
    return made;
  }
  void submitted(W* world, int r, int argument) override {
    Progress& mine = at(world->ranks, r).plan;
    const int set = program(r)[static_cast<size_t>(argument)].set;
    ++mine.next;
    mine.flying[static_cast<size_t>(set)] = true;
    mine.order.push_back(set);
  }

  bool closes_matter() const override { return true; }
  bool may_read(const W& world, int r) override { return at(world.ranks, r).plan.runs.empty(); }
  bool may_lead(const W& world, int host) override {
    const auto leader = std::ranges::find(case_.host_of_rank, host) - case_.host_of_rank.begin();
    return world.ranks[static_cast<size_t>(leader)].plan.runs.empty();
  }

  bool applied(W* world, int r, Record record, const Member::Applied& what) override {
    Progress& mine = at(world->ranks, r).plan;
    if (record.kind == RecordKind::kClose) plan(&mine);
    if (record.kind != RecordKind::kReady && record.kind != RecordKind::kError) return false;
    const int set = at(world->hosts, map_of(r).host)->value.entries[record.id].set;
    if (set == 0 || !has(set, r)) return false;
    if (what.call == nullptr) {
      fail("a decision about nothing");
      return false;
    }
    const auto s = static_cast<size_t>(set);
    const bool ready = record.kind == RecordKind::kReady;
    bool uniform = true;
    for (const int m : members(set)) {
      uniform = uniform && letter(m, set, mine.rounds[s]) == letter(r, set, mine.rounds[s]);
      const Progress& theirs = at(world->ranks, m).plan;
      if (ready && !theirs.flying[s] && theirs.rounds[s] <= mine.rounds[s] && !is_submitting(*world, m, set)) {
        fail("ready before all members have submitted");
      }
    }
    if (!mine.flying[s] || uniform != ready) fail("wrong decision");
    if (ready) {
      mine.open.push_back({set, what.call});
      return false;
    }
    finish(&mine, set);
    return true;
  }
  // It has been counted, but its call has not come to its end.
  bool is_submitting(const W& world, int r, int set) const {
    const model::MemberCall& call = at(world.ranks, r).call;
    return call.kind == model::MemberCall::Kind::kSubmit && program(r)[static_cast<size_t>(call.argument)].set == set;
  }

  void plan(Progress* mine) const {
    if (case_.in_order_of_submission) {
      std::ranges::sort(mine->open, {}, [&](const Ready& ready) { return std::ranges::find(mine->order, ready.set); });
    }
    std::vector<Descriptor> descriptors(mine->open.size());
    std::vector<const Descriptor*> entries;
    for (size_t i = 0; i < descriptors.size(); ++i) {
      Descriptor::decode(mine->open[i].call->descriptor, &descriptors[i]);
      entries.push_back(&descriptors[i]);
    }
    for (const Batch& batch : plan_batches(entries, 1 << 20)) {
      mine->runs.emplace_back();
      for (const BatchTensor& tensor : batch.tensors) mine->runs.back().push_back(mine->open[tensor.entry]);
    }
    mine->open.clear();
  }

  static void finish(Progress* mine, int set) {
    ++mine->rounds[static_cast<size_t>(set)];
    mine->flying[static_cast<size_t>(set)] = false;
    std::erase(mine->order, set);
  }

  // On one host, any rank with something open may end the batch.
  void close(const W& world, int r) {
    const Progress& mine = at(world.ranks, r).plan;
    const PlainHost& host = world.hosts.front()->value;
    if (hosts() > 1 || !mine.runs.empty() || mine.open.empty() || at(world.ranks, r).read != host.log.size()) return;
    W next = world;
    change_host(&next, 0, [](PlainHost* changed) { changed->log.push_back({RecordKind::kClose, 0}); });
    push(std::move(next));
  }

  void move_all(const W& world) override {
    for (int set = 1; set < static_cast<int>(sets()); ++set) {
      std::vector<int> run;
      bool all = true;
      for (const int m : members(set)) {
        const auto& runs = at(world.ranks, m).plan.runs;
        const bool here = !runs.empty() && runs.front().front().set == set && !busy(world, m);
        all = all && here;
        if (!here) continue;
        std::vector<int> theirs;
        for (const Ready& ready : runs.front()) theirs.push_back(ready.set);
        if (!run.empty() && run != theirs) fail("members run different batches");
        run = theirs;
      }
      if (all) run_batch(world, members(set));
    }
  }

  void run_batch(const W& world, const std::vector<int>& ranks) {
    W next = world;
    for (const int m : ranks) {
      Progress& mine = at(next.ranks, m).plan;
      for (const Ready& ready : mine.runs.front()) {
        finish(&mine, ready.set);
        with_member(&next, m, [&](Member* member) { member->finish(ready.call); });
      }
      mine.runs.erase(mine.runs.begin());
    }
    push(std::move(next));
  }

  void judge_end(const W& world) override {
    for (size_t r = 0; r < ranks(); ++r) {
      const Progress& mine = world.ranks[r].plan;
      if (mine.next != case_.programs[r].size() || std::ranges::find(mine.flying, true) != mine.flying.end()) {
        fail("deadlock");
      }
    }
  }

  Case case_;
};

void expect_sound(const Case& given) {
  SetsChecker checker(given);
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
// Set 1 a second time: over the tally if the descriptor is the last one's, by recall if it is not. The leader of host 0
// is no member.
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
// The set's only member on host 1 is not that host's leader.
TEST(a_set_across_hosts_without_their_leaders) {
  for (const char* letters : {"DD", "DE", "EE"}) {
    expect_sound({{0, 0, 1, 1}, {{1, 3}}, {{}, {{1, 'D'}, {1, letters[0]}}, {}, {{1, 'D'}, {1, letters[1]}}}});
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

TEST(batches_in_order_of_submission_are_found_to_deadlock) {
  Case crossing{{0, 0, 0}, circle(), {{{1, 'D'}, {3, 'D'}}, {{2, 'D'}, {1, 'D'}}, {{3, 'D'}, {2, 'D'}}}};
  crossing.in_order_of_submission = true;
  SetsChecker checker(crossing);
  const std::string problem = checker.run();
  std::printf("       %s\n", problem.c_str());
  EXPECT(!problem.empty());
}

TEST_MAIN
