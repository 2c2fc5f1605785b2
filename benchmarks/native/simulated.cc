// SPDX-License-Identifier: Apache-2.0
// How long the shipped allreduce between hosts takes over a simulated network: simulated [hosts bytes [Gbit/s [latency
// in us [us of a processor for a message]]]]; without arguments, a table of both ways. Needs hosts x bytes of memory.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "simulate/simulated_allreduce.h"

namespace {

using hvd::LinkModel;
using hvd::Way;

constexpr size_t kKi = 1024, kMi = kKi * kKi;

bool show(Way way, int hosts, size_t bytes, const LinkModel& model) {
  const auto begin = std::chrono::steady_clock::now();
  const hvd::Taken taken = hvd::allreduce(way, hosts, bytes, model);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!taken.status.ok()) {
    std::fprintf(stderr, "%s\n", taken.status.text().c_str());
    return false;
  }
  const double bound = hvd::bound_ms(hosts, bytes, model);
  std::printf(
      "%5d hosts %9zu bytes %5.0f Gbit/s  %s  %9.3f ms, %6.2f times the link's %8.3f ms, %6llu messages a host "
      "(simulated in %.2f s)\n",
      hosts, bytes, model.bytes_per_ns * 8, way == Way::kFlat ? "whole    " : "in pieces", taken.ms, taken.ms / bound,
      bound, static_cast<unsigned long long>(taken.messages), took.count());
  std::fflush(stdout);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  LinkModel model;
  if (argc > 3) model.bytes_per_ns = std::atof(argv[3]) / 8;
  if (argc > 4) model.latency_ns = static_cast<uint64_t>(std::atof(argv[4]) * 1e3);
  if (argc > 5) model.send_ns = model.receive_ns = static_cast<uint64_t>(std::atof(argv[5]) * 1e3);
  bool ok = true;
  if (argc > 2) {
    for (const Way way : {Way::kFlat, Way::kInPieces}) {
      ok = ok && show(way, std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10), model);
    }
    return ok ? 0 : 1;
  }
  const LinkModel fast{.bytes_per_ns = 12.5};
  struct {
    int hosts;
    size_t bytes;
    LinkModel model;
  } const rows[] = {{4, 16 * kMi, model},   {16, 1 * kMi, model},  {16, 16 * kMi, model}, {64, 64 * kKi, model},
                    {64, 1 * kMi, model},   {64, 16 * kMi, model}, {256, 1 * kMi, model}, {256, 4 * kMi, model},
                    {1024, 1 * kMi, model}, {16, 1 * kMi, fast},   {64, 1 * kMi, fast},   {256, 1 * kMi, fast}};
  for (const auto& row : rows) {
    for (const Way way : {Way::kFlat, Way::kInPieces}) {
      if (way == Way::kFlat || row.bytes >= 256 * kKi) ok = show(way, row.hosts, row.bytes, row.model) && ok;
    }
  }
  return ok ? 0 : 1;
}
