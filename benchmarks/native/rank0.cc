// SPDX-License-Identifier: Apache-2.0
// What a step costs rank 0's leader, without sockets: rank0 HOSTS RANKS_PER_HOST NAMES [STAR_HOSTS]. The first step
// brings requests of new names, each later one says "ready" once for each host, or group of hosts, that speaks with it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "negotiation/leader.h"
#include "simulate/hosts.h"
#include "simulate/program.h"

namespace {

using namespace hvd;

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

struct CountingUplink final : Uplink {
  void send(int, FrameKind kind, std::string_view payload) override {
    if (kind == FrameKind::kRecords) ++records;
    ++messages;
    bytes += payload.size() + 5;
  }
  void end_batch() override {}
  uint64_t messages = 0, bytes = 0, records = 0;
};
struct OneClock final : Clock {
  uint64_t now_ns() override { return 1; }
};
struct NoReaders final : Readers {  // they have read all there is
  bool wait_until(const std::function<bool()>&, bool) override { return true; }
};

struct Rank0 {
  Rank0(int hosts, int local_size, int star_hosts)
      : topology(Program{.hosts = hosts, .ranks_per_host = local_size}.host_of_rank()),
        map(topology, 0, star_hosts),
        memory(static_cast<size_t>(local_size), true),
        board(memory, 0),
        leader(map, {}, {board, uplink, clock, waker, readers}) {
    for (PlainHost::Rank& rank : memory.ranks) rank.waiting = 1;
  }
  std::vector<Requester> requesters_of(int group) const {
    std::vector<Requester> all;
    for (int host = map.tree.relay_of(group); host < map.tree.end_of(group); ++host) {
      for (const int rank : topology.ranks_of(host)) all.push_back({rank, true});
    }
    return all;
  }
  void take(int group, FrameKind kind, const std::string& payload) {
    const Status outcome = leader.take_from_host(map.tree.relay_of(group), kind, payload);
    if (outcome.ok()) return;
    std::fprintf(stderr, "%s\n", outcome.text().c_str());
    std::exit(1);
  }
  double first_step_ms(int names) {
    const double begin = processor_ms();
    for (int name = 0; name < names; ++name) {
      Descriptor descriptor;
      descriptor.tensors = {{HVD_FLOAT32, {100}}};
      RequestFrame request{{}, 0, "gradient." + std::to_string(name), descriptor.encode()};
      for (uint32_t local = 0; local < map.ranks_here.size(); ++local) {
        request.ranks = {{map.ranks_here[local], true}};
        if (!leader.take_from_rank(local, FrameKind::kRequest, request_payload(request)).ok()) std::exit(1);
      }
      for (int group = 1; group < map.tree.groups(); ++group) {
        request.ranks = requesters_of(group);
        take(group, FrameKind::kRequest, request_payload(request));
      }
    }
    return processor_ms() - begin;
  }
  double steady_step_ms(int names) {
    std::vector<HostReady> ready;
    for (int name = 0; name < names; ++name) ready.push_back({static_cast<uint32_t>(name), 0});
    const std::string payload = host_ready_payload(ready);
    memory.log.clear();
    const double begin = processor_ms();
    for (int name = 0; name < names; ++name) leader.pending().add(static_cast<uint32_t>(name), 400, 0, true, 1);
    if (!leader.speak().ok()) std::exit(1);
    for (int group = 1; group < map.tree.groups(); ++group) take(group, FrameKind::kHostReady, payload);
    if (!leader.pass_on().ok()) std::exit(1);
    return processor_ms() - begin;
  }

  const Topology topology;
  const HostMap map;
  PlainHost memory;
  PlainBoard board;
  CountingUplink uplink;
  OneClock clock;
  SilentWaker waker;
  NoReaders readers;
  Leader leader;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s HOSTS RANKS_PER_HOST NAMES [STAR_HOSTS]\n", argv[0]);
    return 2;
  }
  const int hosts = std::atoi(argv[1]), local_size = std::atoi(argv[2]), names = std::atoi(argv[3]);
  Rank0 rank_0(hosts, local_size, argc > 4 ? std::atoi(argv[4]) : ControlTree::kStarHosts);
  const double first_ms = rank_0.first_step_ms(names);
  const uint64_t sent = rank_0.uplink.messages;
  constexpr int kSteps = 21;
  std::vector<double> steps;
  for (int step = 0; step < kSteps; ++step) steps.push_back(rank_0.steady_step_ms(names));
  std::ranges::sort(steps);
  const int speakers = rank_0.map.tree.groups() - 1;
  const uint64_t records = (rank_0.uplink.messages - sent) / kSteps;
  if (records != static_cast<uint64_t>(speakers)) {
    std::fprintf(stderr, "expected a step to be one batch, got %llu messages\n",
                 static_cast<unsigned long long>(records));
    return 1;
  }
  std::printf(
      "%d hosts x %d, %d names: first step %.1f ms; steady step %.3f ms (%.3f to %.3f), %d messages in, %llu out\n",
      hosts, local_size, names, first_ms, steps[kSteps / 2], steps.front(), steps.back(), speakers,
      static_cast<unsigned long long>(records));
  return 0;
}
