// SPDX-License-Identifier: Apache-2.0
// How long a batch takes: the formula for many hosts beside the algorithm that runs.
#include "simulate/batch_times.h"

#include <cmath>
#include <cstdio>

#include "check.h"

using namespace hvd;

TEST(the_formula_agrees_with_what_runs) {
  for (const int ranks_per_host : {1, 8}) {
    for (const int hosts : {2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}) {
      for (const size_t bytes : {size_t{64} << 10, size_t{256} << 10, size_t{1} << 20, size_t{4} << 20,
                                 size_t{16} << 20, size_t{64} << 20}) {
        if (bytes * static_cast<size_t>(hosts) > (thorough() ? size_t{1} << 32 : size_t{1} << 28)) continue;
        const BatchTimes times({.hosts = hosts, .ranks_per_host = ranks_per_host});
        const double exact = times.exact_ns(bytes), formula = times.formula_ns(bytes);
        // Few pieces that go through groups overlap less than the formula says; the smallest parts of a share are none.
        const double limit = ranks_per_host > 1 || hosts > 256 ? 0.12 : 0.05;
        const bool agrees = std::abs(formula / exact - 1) < limit;
        if (!agrees) {
          std::printf("       %3d hosts x %d, %8zu bytes: %.3f ms, the formula says %.3f\n", hosts, ranks_per_host,
                      bytes, exact * 1e-6, formula * 1e-6);
        }
        EXPECT(agrees);
      }
    }
  }
}

TEST(a_size_between_two_takes_a_time_between_theirs) {
  BatchTimes times({.hosts = 16, .ranks_per_host = 8});
  for (const size_t bytes : {size_t{100} << 10, size_t{700} << 10, size_t{5} << 20}) {
    const double found = static_cast<double>(times.of(bytes)), exact = times.exact_ns(bytes);
    std::printf("       %8zu bytes: %.3f ms, from the table %.3f\n", bytes, exact * 1e-6, found * 1e-6);
    EXPECT(std::abs(found / exact - 1) < 0.08);
  }
  EXPECT(times.of(size_t{128} << 20) == 2 * times.of(size_t{64} << 20));
  EXPECT(BatchTimes({}).of(1 << 20) == 0);  // alone
  // Entries fuse up to the limit.
  BatchTimes apart({.hosts = 16, .ranks_per_host = 8, .fusion_bytes = 0});
  EXPECT(times.of_entries({1000, 1000}) == times.of(8000));
  EXPECT(apart.of_entries({1000, 1000}) == 2 * times.of(4000));
}

TEST_MAIN
