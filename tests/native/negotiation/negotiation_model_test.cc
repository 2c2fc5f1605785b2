// SPDX-License-Identifier: Apache-2.0
// Every interleaving of negotiation_model.h for all plans of a length, or all of a list, for each rank. With room for
// one name and two numbers, every other name makes one go. That bugs are found, tools/mutate shows.
#include "negotiation_model.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

using namespace hvd;

namespace {

// Ranks that have not joined must come to the same names.
bool end_alike(const std::vector<std::string>& plans) {
  const std::vector<Epoch> first = epochs_of(plans[0]);
  return std::ranges::all_of(plans, [&](const std::string& plan) {
    const std::vector<Epoch> epochs = epochs_of(plan);
    bool alike = epochs.size() == first.size();
    for (size_t name = 0; name < kNames; ++name) {
      alike = alike && epochs.back().letters[name].size() == first.back().letters[name].size();
    }
    return alike;
  });
}

// One of each list for each rank, in all ways.
std::vector<std::vector<std::string>> all_choices(size_t ranks, const std::vector<std::string>& choices) {
  std::vector<std::vector<std::string>> all = {{}};
  for (; ranks > 0; --ranks) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& plans : all) {
      for (const std::string& choice : choices) {
        longer.push_back(plans);
        longer.back().push_back(choice);
      }
    }
    all = std::move(longer);
  }
  std::erase_if(all, [](const auto& plans) { return !end_alike(plans); });
  return all;
}

struct Findings {
  size_t states = 0;
  std::string problem;  // the first one seen; empty: none
};

// Each rank with each of the plans, on all processors.
Findings check_all(const std::vector<int>& host_of_rank, const std::vector<std::string>& choices,
                   NameLimits limits = {}, int star_hosts = ControlTree::kStarHosts) {
  const auto all = all_choices(host_of_rank.size(), choices);
  Findings findings;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  auto check_some = [&] {
    for (size_t i = next++; i < all.size(); i = next++) {
      PlanChecker checker(host_of_rank, all[i], limits, star_hosts);
      std::string problem = checker.run();
      const std::lock_guard lock(mutex);
      findings.states += checker.states();
      if (problem.empty()) continue;
      next = all.size();
      if (!findings.problem.empty()) continue;
      findings.problem = problem + " with plans";
      for (const std::string& plan : all[i]) findings.problem += " " + plan;
    }
  };
  std::vector<std::jthread> others(std::max(1U, std::thread::hardware_concurrency()) - 1);
  for (std::jthread& other : others) other = std::jthread(check_some);
  check_some();
  others.clear();
  return findings;
}

// The one name first, which is no loss: a rank's names take their ways apart.
std::vector<std::string> all_plans(size_t rounds, const std::string& letters) {
  std::vector<std::string> plans = {""};
  for (; rounds > 0; --rounds) {
    std::vector<std::string> longer;
    for (const std::string& plan : plans) {
      for (const char letter : letters) {
        if (plan.empty() || name_of_letter(plan.back()) <= name_of_letter(letter)) longer.push_back(plan + letter);
      }
    }
    plans = std::move(longer);
  }
  return plans;
}

constexpr NameLimits kNoRoom{1, 2};

void expect_sound(const std::vector<int>& host_of_rank, const std::vector<std::string>& choices, NameLimits limits = {},
                  int star_hosts = ControlTree::kStarHosts) {
  const Findings findings = check_all(host_of_rank, choices, limits, star_hosts);
  std::printf("       %zu states%s%s\n", findings.states, findings.problem.empty() ? "" : ": ",
              findings.problem.c_str());
  EXPECT(findings.problem.empty());
  EXPECT(findings.states > 100);
}

void expect_sound(const std::vector<int>& host_of_rank, size_t rounds, const std::string& letters,
                  NameLimits limits = {}) {
  // Sanitizers look at the code, not at every interleaving: ten minutes of it would show them nothing new.
  if (kSanitized || !thorough()) rounds = host_of_rank.size() > 2 ? 1 : 2;
  expect_sound(host_of_rank, all_plans(rounds, letters), limits);
}

const std::vector<std::string> kUneven = {"DDDJD", "DDjD", "DEJD", "DJD", "jD"};

}  // namespace

TEST(two_ranks_of_one_host) { expect_sound({0, 0}, 3, "DE"); }
TEST(three_ranks_of_one_host) { expect_sound({0, 0, 0}, 3, "DE"); }
TEST(two_ranks_of_one_host_that_may_refuse) { expect_sound({0, 0}, 3, "DEX"); }
TEST(two_hosts) { expect_sound({0, 1}, 3, "DE"); }
TEST(three_hosts) {
  const std::vector<std::string> all = {"DE", "DD", "EE"};
  expect_sound({0, 1, 2}, thorough() ? all : std::vector<std::string>(1, all[0]));
}
TEST(two_hosts_of_two_and_one) { expect_sound({0, 0, 1}, {"DD", "DE", "EE"}); }
TEST(two_hosts_that_may_refuse) { expect_sound({0, 1}, 2, "DEX"); }

TEST(two_ranks_of_one_host_that_join) {
  expect_sound({0, 0}, {"DDDJDJ", "DDjDJ", "DEJDJ", "DGJDJ", "DXJDJ", "DJDJ", "jDJ", "DDJJ", "JDDJ"});
}
TEST(three_ranks_of_one_host_that_join) { expect_sound({0, 0, 0}, kUneven); }
TEST(two_hosts_that_join) { expect_sound({0, 1}, {"DDDJDJ", "DDjDJ", "DEJDJ", "DGJDJ", "DXJDJ", "DJDJ", "jDJ"}); }
TEST(two_hosts_of_two_and_one_that_join) { expect_sound({0, 0, 1}, {"DDjD", "DjD"}); }

// Every name makes the other go, or finds no number free.
TEST(two_ranks_of_one_host_without_room_for_both_names) { expect_sound({0, 0}, 3, "DEde", kNoRoom); }
TEST(two_ranks_whose_names_come_and_go) { expect_sound({0, 0}, 4, "Dd", kNoRoom); }
TEST(three_ranks_of_one_host_without_room) { expect_sound({0, 0, 0}, 3, "Dd", kNoRoom); }
TEST(two_ranks_that_may_refuse_without_room) { expect_sound({0, 0}, 3, "DdX", kNoRoom); }
TEST(two_hosts_without_room) { expect_sound({0, 1}, 3, "Dd", kNoRoom); }
TEST(two_hosts_of_two_and_one_without_room) { expect_sound({0, 0, 1}, 2, "Dd", kNoRoom); }
TEST(two_ranks_without_a_fast_way) { expect_sound({0, 0}, 3, "DEd", {0, 2}); }

TEST(two_ranks_of_one_host_that_join_without_room) { expect_sound({0, 0}, {"DdJd", "DDdjd", "djd", "Jd"}, kNoRoom); }
TEST(two_hosts_that_join_without_room) { expect_sound({0, 1}, {"Ddjd", "djd", "Jd"}, kNoRoom); }
TEST(three_ranks_that_join_without_room) { expect_sound({0, 0, 0}, {"Djd", "djd"}, kNoRoom); }

// The first of the other hosts is a relay of both.
TEST(three_hosts_in_a_tree) { expect_sound({0, 1, 2}, {"DD", "DE"}, {}, 1); }
TEST(three_hosts_in_a_tree_that_join) { expect_sound({0, 1, 2}, {"DjD", "jD"}, {}, 1); }
// A tree, and names without room, are above; both take 20 s.
TEST(three_hosts_in_a_tree_without_room) {
  if (thorough()) expect_sound({0, 1, 2}, {"Dd"}, kNoRoom, 1);
}

TEST_MAIN
