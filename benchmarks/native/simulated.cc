// SPDX-License-Identifier: Apache-2.0
// How long the shipped allreduce between hosts takes over a simulated network: simulated [hosts bytes [Gbit/s [latency
// in us [us of a processor for a message [least hosts of a group [batches]]]]]]. Without arguments, tables: of both
// ways and without groups, and of 102 MB of gradients in batches. All hosts share the memory of the tensors. Above
// BatchTimes::kMostExact hosts, for which memory does not suffice, a line is by the formula.
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "simulate/batch_times.h"
#include "simulate/simulated_allreduce.h"

namespace {

using hvd::LinkModel;
using hvd::Way;

constexpr size_t kKi = 1024, kMi = kKi * kKi;

struct Row {
  Way way;
  int hosts;
  size_t bytes;
  LinkModel model;
  int group_hosts = 0;  // as the setting
  int batches = 1;
};

void show_formula(const Row& row) {
  const hvd::BatchTimes times({.hosts = row.hosts, .link = row.model, .group_hosts = row.group_hosts});
  const double ms = times.formula_ns(row.bytes) * 1e-6, bound = hvd::bound_ms(row.hosts, row.bytes, row.model);
  std::printf("%5d hosts, %9zu bytes, by the formula  whole %9.3f ms, %6.2f times the link's %8.3f ms\n", row.hosts,
              row.bytes, ms, ms / bound, bound);
}

bool show(const Row& row) {
  const auto begin = std::chrono::steady_clock::now();
  const hvd::Taken taken = hvd::allreduce(row.way, row.hosts, row.bytes, row.model, row.group_hosts, row.batches);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!taken.status.ok()) {
    std::fprintf(stderr, "%s\n", taken.status.text().c_str());
    return false;
  }
  const double bound = hvd::bound_ms(row.hosts, row.bytes, row.model) * row.batches;
  std::printf(
      "%5d hosts in %3d groups %3d x %9zu bytes %5.0f Gbit/s  %s  %9.3f ms, %6.2f times the link's %8.3f ms, "
      "%6llu messages a host (simulated in %.2f s)\n",
      row.hosts, hvd::plan::host_groups(row.hosts, row.group_hosts), row.batches, row.bytes, row.model.bytes_per_ns * 8,
      row.way == Way::kFlat ? "whole    " : "in pieces", taken.ms, taken.ms / bound, bound,
      static_cast<unsigned long long>(taken.messages), took.count());
  std::fflush(stdout);
  return true;
}

bool show_sizes() {
  const LinkModel model, fast{.bytes_per_ns = 12.5};
  const Row rows[] = {
      {Way::kFlat, 4, 16 * kMi, model},   {Way::kFlat, 16, 1 * kMi, model},   {Way::kFlat, 16, 16 * kMi, model},
      {Way::kFlat, 64, 64 * kKi, model},  {Way::kFlat, 64, 1 * kMi, model},   {Way::kFlat, 64, 16 * kMi, model},
      {Way::kFlat, 256, 64 * kKi, model}, {Way::kFlat, 256, 1 * kMi, model},  {Way::kFlat, 256, 4 * kMi, model},
      {Way::kFlat, 1024, 4 * kKi, model}, {Way::kFlat, 1024, 1 * kMi, model}, {Way::kFlat, 16, 1 * kMi, fast},
      {Way::kFlat, 64, 1 * kMi, fast},    {Way::kFlat, 256, 1 * kMi, fast}};
  bool ok = true;
  for (Row row : rows) {
    for (const Way way : {Way::kFlat, Way::kInPieces}) {
      row.way = way;
      if (way == Way::kInPieces && !hvd::plan::goes_in_pieces(row.bytes)) continue;
      row.group_hosts = 0;
      ok = show(row) && ok;
      row.group_hosts = row.hosts;  // none
      if (hvd::plan::host_groups(row.hosts, 0) > 1) ok = show(row) && ok;
    }
  }
  return ok;
}

// As they close at 1 MiB, and what larger batches would take: from the time of some.
bool show_gradients() {
  constexpr size_t kGradients = 102'000'000;
  for (const int hosts : {16, 64, 256, 1024}) {
    const int simulated = hosts > 256 ? 1 : 4;
    for (const size_t bytes : {1 * kMi, 4 * kMi, 16 * kMi}) {
      if (static_cast<size_t>(hosts) * bytes > 4096 * kMi) continue;  // would take minutes
      const hvd::Taken taken = hvd::allreduce(Way::kFlat, hosts, bytes, {}, 0, simulated);
      if (!taken.status.ok()) return false;
      std::printf("%5d hosts, 102 MB in batches of %8zu bytes: %7.1f ms\n", hosts, bytes,
                  taken.ms / simulated * static_cast<double>(kGradients) / static_cast<double>(bytes));
      std::fflush(stdout);
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return show_sizes() && show_gradients() ? 0 : 1;
  Row row{Way::kFlat, std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10), {}};
  if (argc > 3) row.model.bytes_per_ns = std::atof(argv[3]) / 8;
  if (argc > 4) row.model.latency_ns = static_cast<uint64_t>(std::atof(argv[4]) * 1e3);
  if (argc > 5) row.model.send_ns = row.model.receive_ns = static_cast<uint64_t>(std::atof(argv[5]) * 1e3);
  if (argc > 6) row.group_hosts = std::atoi(argv[6]);
  if (argc > 7) row.batches = std::atoi(argv[7]);
  if (row.hosts > hvd::BatchTimes::kMostExact) {
    show_formula(row);
    return 0;
  }
  bool ok = true;
  for (const Way way : {Way::kFlat, Way::kInPieces}) {
    row.way = way;
    ok = show(row) && ok;
  }
  return ok ? 0 : 1;
}
