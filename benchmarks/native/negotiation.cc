// SPDX-License-Identifier: Apache-2.0
// Negotiation of many ranks in one process and in virtual time: negotiation HOSTS RANKS_PER_HOST NAMES [STEPS [SEED
// [STAR_HOSTS]]]: with more hosts than these, their leaders form a tree.
// Prints the messages of each step, and what the simulation itself needs: of memory 0.6 KB for a rank and a name.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "simulate/simulation.h"

namespace {

uint64_t total(const std::map<hvd::FrameKind, uint64_t>& by_kind) {
  return std::accumulate(by_kind.begin(), by_kind.end(), uint64_t{0},
                         [](uint64_t sum, const auto& entry) { return sum + entry.second; });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s HOSTS RANKS_PER_HOST NAMES [STEPS [SEED [STAR_HOSTS]]]\n", argv[0]);
    return 2;
  }
  const int hosts = std::atoi(argv[1]), local_size = std::atoi(argv[2]), names = std::atoi(argv[3]);
  const auto steps = static_cast<size_t>(argc > 4 ? std::atoi(argv[4]) : 2);
  const uint64_t seed = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : 1;
  const auto begin = std::chrono::steady_clock::now();
  hvd::Simulation simulation(hosts, local_size, names, std::vector<hvd::SimulatedStep>(steps), seed,
                             argc > 6 ? std::atoi(argv[6]) : hvd::ControlTree::kStarHosts);
  const std::string problem = simulation.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (size_t step = 0; step < steps; ++step) {
    const hvd::Counts::Step& counts = simulation.counts().of(step);
    std::printf("step %zu: %llu messages to rank 0 (%.1f MB), %llu from it (%.1f MB), %llu by relays, %llu batches\n",
                step, static_cast<unsigned long long>(total(counts.up)), static_cast<double>(counts.bytes_up) * 1e-6,
                static_cast<unsigned long long>(total(counts.down)), static_cast<double>(counts.bytes_down) * 1e-6,
                static_cast<unsigned long long>(total(counts.relayed)),
                static_cast<unsigned long long>(counts.batches));
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%d ranks, %d names: %.1f ms of virtual time; simulated in %.1f s, %llu events, %.0f MB\n",
              hosts * local_size, names, static_cast<double>(simulation.queue().now_ns()) * 1e-6, took.count(),
              static_cast<unsigned long long>(simulation.queue().happened()),
              static_cast<double>(usage.ru_maxrss) * 1e-3);
  if (!problem.empty()) std::fprintf(stderr, "%s\n", problem.c_str());
  return problem.empty() ? 0 : 1;
}
