// SPDX-License-Identifier: Apache-2.0
// Faults of a simulated job: what the survivors see, and that planted defects are found.
#include <cstdio>
#include <string>

#include "check.h"
#include "simulate/library/report.h"
#include "simulate/simulation.h"

using namespace hvd;

namespace {

constexpr size_t kSteps = 4;

Program job(int hosts, int ranks_per_host, int names, uint64_t seed, bool batches_take_time = true) {
  Program program{.hosts = hosts, .ranks_per_host = ranks_per_host, .seed = seed};
  for (int name = 0; name < names; ++name) program.names.push_back({"gradient." + std::to_string(name), 100'000});
  program.steps.resize(kSteps);
  program.batches_take_time = batches_take_time;
  return program;
}

// Of a job of 8 hosts with 3 ranks each, to which this happens in its second step.
struct Befallen {
  Status planned;
  std::string problem, cause, report;
  uint64_t told_after_ns = 0;
  size_t done = 0, failed_calls = 0;
};
Befallen befallen(const char* kind, int target, double amount, uint64_t seed = 1, uint64_t event = 0,
                  int star_hosts = ControlTree::kStarHosts) {
  Program program = job(8, 3, 5, seed);
  program.star_hosts = star_hosts;
  Befallen found;
  found.planned = program.add_fault(kind, target, 1, event, amount);
  Simulation simulation(std::move(program));
  found.problem = simulation.run();
  const Liveness::Loss* const cause = simulation.liveness().cause();
  found.cause = cause == nullptr ? "" : cause->what;
  found.told_after_ns = simulation.liveness().told_after_ns();
  found.done = simulation.counts().ranks_done;
  found.failed_calls = simulation.counts().failed_calls;
  found.report = report_of(simulation);
  return found;
}

constexpr uint64_t kMs = 1'000'000;

// A job of 3 hosts whose steps are one batch of 1 MB each, which takes about 1 ms.
Program large_batches(const char* kind, int target, double amount, uint64_t event = 0) {
  Program program = job(3, 1, 1, 1);
  program.names.front().elements = 250'000;
  EXPECT(program.add_fault(kind, target, 1, event, amount).ok());
  return program;
}
uint64_t took_ms(const Simulation& simulation, size_t step) {
  const Counts::Step& counts = simulation.counts().of(step);
  return (counts.ended_ns - counts.began_ns) / kMs;
}

}  // namespace

TEST(every_survivor_of_a_loss_hears_of_the_same_cause_in_time) {
  struct {
    const char* kind;
    int target;
    double amount;
    const char* cause;
    uint64_t least_ms, most_ms;
  } const rows[] = {
      {"kill-rank", 7, 0, "rank 7 died", 0, 2},          {"kill-rank", 6, 0, "rank 6 died", 0, 2},
      {"kill-rank", 0, 0, "rank 0 died", 0, 2},          {"kill-host", 2, 0, "host 2 is lost", 5000, 6100},
      {"kill-host", 0, 0, "host 0 is lost", 5000, 6100}, {"freeze", 7, 0, "rank 7 froze", 3000, 3600},
      {"freeze", 6, 0, "rank 6 froze", 5000, 6100},      {"freeze", 0, 0, "rank 0 froze", 5000, 6100},
      {"freeze", 7, 4000, "rank 7 froze", 3000, 3600},   {"cut", 2, 0, "host 2 is lost", 5000, 6100},
      {"kill-host", 1, 0, "host 1 is lost", 5000, 6100}, {"kill-rank", 12, 0, "rank 12 died", 0, 2},
      {"cut", 0, 0, "host 0 is lost", 5000, 6100}};
  for (const auto& row : rows) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      const int star_hosts = seed < 3 ? 8 : 4;  // a tree: host 1 has 2 and 3 in its group, host 4 has 5 and 6
      const Befallen found = befallen(row.kind, row.target, row.amount, seed, 0, star_hosts);
      EXPECT(found.planned.ok() && found.problem.empty() && found.cause == row.cause && found.done == 0);
      EXPECT(found.told_after_ns >= row.least_ms * kMs && found.told_after_ns <= row.most_ms * kMs);
      if (!found.problem.empty()) std::printf("       %s: %s\n", row.cause, found.problem.c_str());
    }
  }
}

TEST(what_only_delays_a_job_ends_it_later) {
  const Befallen usual = befallen("slow", 7, 1);
  EXPECT(usual.problem.empty() && usual.done == 24);
  struct {
    const char* kind;
    int target;
    double amount;
  } const rows[] = {{"slow", 0, 50}, {"freeze", 7, 20}, {"freeze", 0, 20}, {"delay", 2, 5}, {"late", 7, 30}};
  for (const auto& row : rows) {
    const Befallen found = befallen(row.kind, row.target, row.amount);
    EXPECT(found.problem.empty() && found.cause.empty() && found.done == 24);
    EXPECT(found.report != usual.report);
  }
}

TEST(another_shape_of_one_rank_fails_that_call_everywhere_and_nothing_else) {
  const Befallen found = befallen("shape", 7, 0);
  EXPECT(found.problem.empty() && found.failed_calls == 24 && found.done == 24);
  EXPECT(befallen("shape", -1, 0).failed_calls == 0 && befallen("shape", -1, 0).problem.empty());
}

TEST(ranks_join_and_leave_and_names_come_and_go) {
  const Befallen joined = befallen("join", 7, 0), left = befallen("leave", 7, 0), renamed = befallen("rename", -1, 0);
  EXPECT(joined.problem.empty() && joined.done == 24);
  EXPECT(left.problem.empty() && left.done == 1);
  EXPECT(renamed.problem.empty() && renamed.done == 24);
}

TEST(all_ranks_may_join_in_one_step) {
  for (const size_t step : {0, 1, 2}) {
    Program program = job(2, 2, 5, 1);
    for (const int rank : {0, 1, 2, 3}) EXPECT(program.add_fault("join", rank, static_cast<int>(step), 0, 0).ok());
    EXPECT(program.add_fault("rename", -1, 3, 0, 0).ok());
    Simulation simulation(program);
    EXPECT(simulation.run().empty() && simulation.counts().ranks_done == 4);
    for (size_t other = 0; other < kSteps; ++other) {
      const Counts::Step& counts = simulation.counts().of(other);
      EXPECT((counts.began_ns != 0) == (other <= step) && (counts.ended_ns != 0) == (other < step));
      EXPECT((counts.reduced > 0 && counts.collective_ns > 0) == (other < step));
    }
    EXPECT(simulation.counts().came == std::vector<bool>({true, true, true, true, false}));
  }
}

TEST(a_batch_counts_for_the_step_of_its_names_whoever_has_joined) {
  Program program = job(2, 1, 5, 1);
  EXPECT(program.add_fault("join", 0, 1, 0, 0).ok());
  Simulation simulation(program);
  EXPECT(simulation.run().empty());
  for (size_t step = 0; step < kSteps; ++step) {
    const Counts::Step& counts = simulation.counts().of(step);
    EXPECT(counts.reduced >= 1 && counts.reduced <= 5);
    EXPECT(counts.ended_ns > counts.began_ns && counts.collective_ns < counts.ended_ns - counts.began_ns);
  }
}

TEST(no_batch_ends_without_the_data_of_a_host_that_is_cut) {
  const auto reduced = [](const Simulation& simulation) {
    uint64_t sum = 0;
    for (size_t step = 0; step < kSteps; ++step) sum += simulation.counts().of(step).reduced;
    return sum;
  };
  for (uint64_t event = 1; event < 60; ++event) {
    Simulation simulation(large_batches("cut", 1, 0, event));
    while (!simulation.counts().came[0] && simulation.run_for(1)) continue;
    const uint64_t before = reduced(simulation);
    EXPECT(simulation.counts().came[0] && simulation.run().empty());
    EXPECT(reduced(simulation) == before && simulation.counts().ranks_done == 0);
    EXPECT(simulation.liveness().cause()->what == "host 1 is lost");
  }
}

TEST(a_delay_lengthens_batches_by_each_of_their_messages_that_follow_from_one_another) {
  Simulation usual(large_batches("slow", 0, 1)), delayed(large_batches("delay", 1, 100));
  EXPECT(usual.run().empty() && delayed.run().empty() && delayed.counts().ranks_done == 3);
  EXPECT(took_ms(delayed, 0) == took_ms(usual, 0));
  EXPECT(took_ms(delayed, 1) >= took_ms(usual, 1) + 200 && took_ms(delayed, 1) < took_ms(usual, 1) + 500);
  EXPECT(took_ms(delayed, 2) >= took_ms(usual, 2) + 300);  // and of the negotiation
}

TEST(a_delay_is_a_loss_if_the_silence_between_two_beats_is_too_long) {
  const Befallen short_enough = befallen("delay", 2, 3900), too_long = befallen("delay", 2, 4600);
  EXPECT(short_enough.problem.empty() && short_enough.cause.empty() && short_enough.done == 24);
  EXPECT(too_long.problem.empty() && too_long.done == 0);
  EXPECT(too_long.cause == "host 2 is lost" && too_long.told_after_ns < 6100 * kMs);
}

TEST(a_fault_that_never_comes_is_told) {
  const auto came = [](const char* kind, int target, int step, uint64_t event) {
    Program program = job(2, 2, 5, 1);
    EXPECT(program.add_fault("late", 1, 1, 0, 30).ok() && program.add_fault("join", 0, 1, 0, 0).ok());
    EXPECT(program.add_fault(kind, target, step, event, 1).ok());
    Simulation simulation(program);
    EXPECT(simulation.run().empty() && simulation.counts().came[0] && simulation.counts().came[1]);
    return simulation.counts().came[2];
  };
  EXPECT(came("freeze", 3, 0, 20) && !came("freeze", 3, 0, 100'000) && !came("kill-rank", 3, 0, 100'000));
  EXPECT(came("late", 1, 2, 0) && !came("late", 0, 2, 0));  // it has joined
  EXPECT(came("shape", -1, 3, 0) && !came("shape", 0, 3, 0));
  EXPECT(befallen("kill-rank", 7, 0, 1, 100'000'000).report.find("\"came\": [1]") == std::string::npos);
  EXPECT(befallen("kill-rank", 7, 0).report.find("\"came\": [1]") != std::string::npos);
}

TEST(a_fault_may_come_at_any_event) {
  const std::pair<const char*, double> kinds[] = {{"kill-rank", 0}, {"cut", 0}, {"delay", 20}, {"delay", 9000}};
  for (const auto& [kind, amount] : kinds) {
    for (uint64_t event = 1; event < 3000; event += 97) {
      const Befallen found = befallen(kind, 4, amount, 5, event);
      EXPECT(found.problem.empty());
      if (!found.problem.empty()) {
        std::printf("       %s, event %llu: %s\n", kind, static_cast<unsigned long long>(event), found.problem.c_str());
      }
    }
  }
}

TEST(a_fault_that_cannot_be_is_refused) {
  Program program = job(2, 2, 1, 1);
  EXPECT(program.add_fault("kill-rank", 4, 1, 0, 0).text() == "kill-rank: expected a rank below 4, got 4");
  EXPECT(program.add_fault("cut", 2, 1, 0, 0).text() == "cut: expected a host below 2, got 2");
  EXPECT(program.add_fault("late", 1, 9, 0, 0).text() == "late: expected a step below 4, got 9");
  EXPECT(program.add_fault("late", 1, 1, 5, 0).text() == "late: expected a step, got an event");
  EXPECT(program.add_fault("late", 1, 1, 0, 5).ok());
  EXPECT(program.add_fault("late", 2, 1, 0, 5).text() == "late: one rank is it already in step 1");
  EXPECT(program.add_fault("melt", 1, 1, 0, 0).text() == "melt: no such fault");
}

// A thousand ranks: each defect is found with one of 50 seeds at the latest.
TEST(a_planted_defect_is_found) {
  struct {
    Plant plant;
    const char* problem;
  } const rows[] = {
      {Plant::kLostWakeUp, "sleeps"}, {Plant::kTwoOrders, "two orders"}, {Plant::kDroppedFrame, "sleeps"}};
  for (const auto& row : rows) {
    std::string problem;
    uint64_t seed = 0;
    while (problem.empty() && seed < 50) {
      Program program = job(100, 10, 16, ++seed, false);
      program.plant = row.plant;
      problem = Simulation(std::move(program)).run();
    }
    std::printf("       seed %llu: %s\n", static_cast<unsigned long long>(seed), problem.c_str());
    EXPECT(problem.find(row.problem) != std::string::npos);
  }
}

// A thousand ranks with the names of ResNet-50, what comes along in a job, and a loss at any time.
TEST(a_thousand_ranks_go_through_all_kinds_of_faults) {
  const char* const losses[] = {"kill-rank", "kill-host", "freeze", "cut"};
  const uint64_t seeds = thorough() ? 20 : 1;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Program program = job(100, 10, thorough() ? 161 : 16, seed);
    for (SimulatedStep& step : program.steps) step.shuffled = true;
    const auto target = static_cast<int>(seed * 37 % 100);
    const bool planned =
        program.add_fault("slow", 10 * target, 0, 0, 8).ok() && program.add_fault("delay", 99 - target, 1, 0, 3).ok() &&
        program.add_fault("late", 999 - target, 1, 0, 5).ok() &&
        program.add_fault("freeze", 500 + target, 2, 0, 200).ok() && program.add_fault("rename", -1, 2, 0, 0).ok() &&
        program.add_fault(losses[seed % 4], target, 3, 0, 0).ok();
    EXPECT(planned);
    Simulation simulation(std::move(program));
    const std::string problem = simulation.run();
    if (!problem.empty()) std::printf("       seed %llu: %s\n", static_cast<unsigned long long>(seed), problem.c_str());
    EXPECT(problem.empty() && simulation.liveness().cause() != nullptr && simulation.counts().ranks_done == 0);
  }
}

TEST(one_seed_is_one_report) {
  EXPECT(befallen("kill-rank", 7, 0, 42).report == befallen("kill-rank", 7, 0, 42).report);
  EXPECT(befallen("kill-rank", 7, 0, 42).report != befallen("kill-rank", 7, 0, 43).report);
}

TEST_MAIN
