// SPDX-License-Identifier: Apache-2.0
// A thousand ranks on a hundred hosts, from several seeds: first step, steady state, a changed shape, a late name,
// joins, a lost host. HVD_SIMULATE_SEED=N runs that seed alone.
#include <cstdlib>

#include "check.h"
#include "simulate/simulation.h"

using namespace hvd;

namespace {

constexpr int kHosts = 100, kRanksPerHost = 10, kNames = 16;

uint64_t total(const std::map<FrameKind, uint64_t>& by_kind) {
  uint64_t sum = 0;
  for (const auto& [kind, count] : by_kind) sum += count;
  return sum;
}
uint64_t count_of(const std::map<FrameKind, uint64_t>& by_kind, FrameKind kind) {
  const auto found = by_kind.find(kind);
  return found == by_kind.end() ? 0 : found->second;
}

std::vector<uint64_t> seeds() {
  if (const char* chosen = std::getenv("HVD_SIMULATE_SEED")) return {std::strtoull(chosen, nullptr, 10)};
  return {1, 2, 3};
}

enum Step : size_t { kFirst, kSteady, kSteadyAgain, kShuffled, kChanged, kLate, kUneven, kUnevenEnd, kAfter, kLost };

std::vector<SimulatedStep> program() {
  std::vector<bool> absent(kHosts * kRanksPerHost), dead(kHosts);
  for (size_t rank = 0; rank < absent.size(); rank += 7) absent[rank] = true;
  dead[17] = true;
  std::vector<SimulatedStep> steps(kLost + 1);
  steps[kShuffled].shuffled = true;
  for (size_t step = kChanged; step < steps.size(); ++step) steps[step].shape = 1;
  steps[kLate].late_rank = 573;
  steps[kUneven].absent = steps[kUnevenEnd].absent = absent;
  steps[kUneven].shuffled = true;
  steps[kUnevenEnd].joins = true;
  steps[kLost].dead = dead;
  return steps;
}

void show(const Simulation& simulation, size_t step, const char* what) {
  const auto& counts = simulation.counts().of(step);
  std::printf("       %-10s %6llu messages up (%llu requests), %6llu down, %9llu bytes, %llu batches\n", what,
              static_cast<unsigned long long>(total(counts.up)),
              static_cast<unsigned long long>(count_of(counts.up, FrameKind::kRequest)),
              static_cast<unsigned long long>(total(counts.down)),
              static_cast<unsigned long long>(counts.bytes_up + counts.bytes_down),
              static_cast<unsigned long long>(counts.batches));
}

// `speakers`: the hosts with whose leaders rank 0's speaks.
void run_all(int star_hosts, uint64_t speakers) {
  for (const uint64_t seed : seeds()) {
    Simulation simulation(kHosts, kRanksPerHost, kNames, program(), seed, star_hosts);
    const std::string problem = simulation.run();
    std::printf("       seed %llu: %llu events, %.1f ms of virtual time%s%s\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(simulation.queue().happened()),
                static_cast<double>(simulation.queue().now_ns()) * 1e-6, problem.empty() ? "" : ": ", problem.c_str());
    EXPECT(problem.empty());
    const std::pair<size_t, const char*> shown[] = {
        {kFirst, "first"}, {kSteady, "steady"}, {kShuffled, "shuffled"}, {kChanged, "changed"},
        {kLate, "late"},   {kUneven, "uneven"}, {kUnevenEnd, "its end"}};
    for (const auto& [step, what] : shown) show(simulation, step, what);
    // One request for a host, or a group of hosts, and a name, whatever the number of its ranks.
    EXPECT(count_of(simulation.counts().of(kFirst).up, FrameKind::kRequest) == speakers * kNames);
    EXPECT(count_of(simulation.counts().of(kChanged).up, FrameKind::kRequest) == speakers);
    // Steady: nothing but "ready" up and records down, one of each for a host and a batch.
    for (const size_t step : {kSteady, kSteadyAgain, kAfter}) {
      const auto& counts = simulation.counts().of(step);
      EXPECT(total(counts.up) == count_of(counts.up, FrameKind::kHostReady));
      EXPECT(counts.batches > 0 && counts.most_up_from_a_host <= counts.batches);
      EXPECT(total(counts.down) == counts.batches * speakers);
    }
    // Uneven: the same, though a seventh of the ranks has joined. In the first such step some are counted before that.
    EXPECT(count_of(simulation.counts().of(kUneven).up, FrameKind::kRequest) < speakers * kNames);
    EXPECT(count_of(simulation.counts().of(kUnevenEnd).up, FrameKind::kRequest) == speakers * kNames);
    // The lost host's ranks are missing everywhere, and nobody else is.
    const std::vector<Undecided> waiting = simulation.undecided();
    EXPECT(waiting.size() == kNames);
    for (const Undecided& item : waiting) {
      EXPECT(item.missing == simulation.world().topology().ranks_of(17));
      EXPECT(item.arrived.size() == (kHosts - 1) * kRanksPerHost);
    }
  }
}

}  // namespace

TEST(a_thousand_ranks_on_a_hundred_hosts) { run_all(ControlTree::kStarHosts, kHosts - 1); }
TEST(a_thousand_ranks_on_a_tree_of_hosts) { run_all(9, 10); }

// Its group is cut off, and nobody else.
TEST(a_lost_relay_takes_its_group_with_it) {
  std::vector<SimulatedStep> steps(3);
  steps[2].dead.assign(kHosts, false);
  steps[2].dead[11] = true;  // of hosts 11 to 20
  Simulation simulation(kHosts, kRanksPerHost, kNames, steps, 1, 9);
  EXPECT(simulation.run().empty());
  const std::vector<Undecided> waiting = simulation.undecided();
  EXPECT(waiting.size() == kNames);
  for (const Undecided& item : waiting) {
    EXPECT(item.missing.size() == 10 * kRanksPerHost);
    EXPECT(item.missing.front() == 11 * kRanksPerHost && item.missing.back() == 21 * kRanksPerHost - 1);
  }
}

TEST(one_seed_is_one_run) {
  std::string first;
  for (int i = 0; i < 2; ++i) {
    Simulation simulation(8, 4, 5, {SimulatedStep{}, SimulatedStep{.shuffled = true}, SimulatedStep{}}, 42);
    EXPECT(simulation.run().empty());
    const std::string outcome =
        std::to_string(simulation.queue().happened()) + "/" + std::to_string(simulation.queue().now_ns());
    EXPECT(first.empty() || outcome == first);
    first = outcome;
  }
}

TEST_MAIN
