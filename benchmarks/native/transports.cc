// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth of the shm and TCP transports, by size: transports [members] [shm|tcp|both] [links]
// [cached|streamed].
//
// Forks one process per member, not pinned. Every size runs in rounds; a round is timed on all members between two
// barriers, and the slowest member counts. Prints the median and the quartile of the rounds, and the line hop before
// and after, because a virtual machine may move between placements while it runs. Results are verified.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "members.h"
#include "platform/clock.h"

namespace {

using hvd::Communicator;
using hvd::Slice;

constexpr int kRounds = 15;

// The slowest member's time per operation, in nanoseconds.
double timed_round(Communicator& communicator, const Slice& slice, const hvd::Reduction& reduction, int operations) {
  EXPECT(communicator.barrier().ok());
  const int64_t start = static_cast<int64_t>(hvd::now_ns());
  for (int i = 0; i < operations; ++i) EXPECT(communicator.allreduce({&slice, 1}, reduction).ok());
  const int64_t mine = (static_cast<int64_t>(hvd::now_ns()) - start) / operations;
  std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
  EXPECT(communicator.exchange(&mine, sizeof mine, all.data()).ok());
  return static_cast<double>(*std::max_element(all.begin(), all.end()));
}

void measure(Communicator& communicator, size_t bytes) {
  std::vector<float> values(bytes / 4, 1.0f);
  // The average of equal values stays what it was, so the buffer can be used again and checked at the end.
  const hvd::Reduction average{HVD_FLOAT32, HVD_SUM, 1.0, 1.0, communicator.size()};
  const Slice slice{reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<std::byte*>(values.data()),
                    static_cast<int64_t>(values.size())};
  const int operations = static_cast<int>(std::clamp<size_t>((size_t{8} << 20) / bytes, 1, 2000));
  timed_round(communicator, slice, average, operations);
  std::vector<double> rounds;
  for (int i = 0; i < kRounds; ++i) rounds.push_back(timed_round(communicator, slice, average, operations));
  std::sort(rounds.begin(), rounds.end());
  const bool right = std::all_of(values.begin(), values.end(), [](float v) { return v == 1.0f; });
  EXPECT(right);
  if (communicator.member() != 0) return;
  const double median = rounds[kRounds / 2];
  std::printf("%-4s %2d %10zu B  median %12.2f us  q1 %12.2f us  min %12.2f us  %7.2f GB/s%s\n", communicator.name(),
              communicator.size(), bytes, median / 1e3, rounds[kRounds / 4] / 1e3, rounds[0] / 1e3,
              static_cast<double>(bytes) / median, right ? "" : "  WRONG");
  std::fflush(stdout);
}

void run(Communicator& communicator) {
  if (communicator.member() == 0) std::printf("{%s}\n", communicator.describe().c_str());
  for (size_t bytes : {4ul, 56ul, 64ul, 1024ul, 4096ul, 16384ul, 32768ul, 65536ul, 131072ul, 262144ul, 524288ul,
                       1ul << 20, 4ul << 20, 16ul << 20, 64ul << 20, 256ul << 20}) {
    measure(communicator, bytes);
  }
  if (communicator.member() == 0) std::printf("{%s}\n", communicator.describe().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 2;
  const std::string which = argc > 2 ? argv[2] : "both";
  const int links = argc > 3 ? std::atoi(argv[3]) : 2;
  const std::string stores = argc > 4 ? argv[4] : "";
  hvd::CommunicatorSettings options;
  if (stores == "cached") options.stores = hvd::Stores::kCached;
  if (stores == "streamed") options.stores = hvd::Stores::kStreamed;
  for (members::Wire wire : {members::Wire::kShm, members::Wire::kTcp}) {
    if (which != "both" && which != (wire == members::Wire::kShm ? "shm" : "tcp")) continue;
    members::World world(wire, n, links);
    members::run_processes(world, options, run);
  }
  return check::failures() == 0 ? 0 : 1;
}
