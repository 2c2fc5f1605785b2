// SPDX-License-Identifier: Apache-2.0
// The engine end to end with ranks as threads: agreement, order, errors, leaving, poison; shared memory and sockets.
#include <algorithm>
#include <cstring>
#include <random>

#include "engine_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

Status sum(Engine& engine, const char* name, std::vector<float>& values, uint32_t flags = HVD_SYNC) {
  return Call(HVD_ALLREDUCE, name).tensor(values, HVD_FLOAT32).run(engine, flags);
}

}  // namespace

TEST(allreduce_of_every_size_sums_over_all_ranks) {
  for (const Wiring wiring : kWirings) {
    for (int size = 1; size <= 4; ++size) {
      if (size == 1 && wiring == Wiring::kSockets) continue;
      run_world(make_world(size, wiring), [&](Engine& engine, int rank) {
        for (const size_t count : {1u, 7u, 14u, 15u, 1000u, 100000u, 700001u}) {
          for (int round = 0; round < 3; ++round) {
            std::vector<float> values(count, static_cast<float>(rank + 1));
            const Status status = sum(engine, ("grad." + std::to_string(count)).c_str(), values);
            if (!status.ok()) std::printf("%s\n", status.text().c_str());
            EXPECT(status.ok());
            const float expected = static_cast<float>(size * (size + 1)) / 2;
            EXPECT(std::all_of(values.begin(), values.end(), [&](float v) { return v == expected; }));
          }
        }
      });
    }
  }
}

TEST(reducescatter_gives_each_rank_its_rows_with_the_bits_of_allreduce) {
  for (const Wiring wiring : kWirings) {
    for (int size = 1; size <= 4; ++size) {
      if (size == 1 && wiring == Wiring::kSockets) continue;
      run_world(make_world(size, wiring), [&](Engine& engine, int rank) {
        std::mt19937 random(static_cast<unsigned>(rank));
        std::normal_distribution<float> normal;
        for (const int64_t rows : {0, 1, 3, 7, 50000}) {
          std::vector<float> values(static_cast<size_t>(rows * 3));
          for (float& value : values) value = normal(random);
          std::vector<float> whole = values;
          EXPECT(Call(HVD_ALLREDUCE, "whole")
                     .op(HVD_AVERAGE)
                     .scale(0.3, 1.7)
                     .tensor(whole, HVD_FLOAT32, {rows, 3})
                     .run(engine)
                     .ok());
          // The first ranks have one row more where they cannot be dealt evenly.
          const int64_t first = rank * (rows / size) + std::min<int64_t>(rank, rows % size);
          const int64_t end = (rank + 1) * (rows / size) + std::min<int64_t>(rank + 1, rows % size);
          std::vector<float> part(static_cast<size_t>((end - first) * 3));
          EXPECT(Call(HVD_REDUCESCATTER, "part")
                     .op(HVD_AVERAGE)
                     .scale(0.3, 1.7)
                     .tensor(values, HVD_FLOAT32, {rows, 3})
                     .into(part.data())
                     .run(engine)
                     .ok());
          EXPECT(std::equal(part.begin(), part.end(), whole.begin() + first * 3));
        }
      });
    }
  }
}

TEST(alltoall_takes_any_splits_and_says_how_many_rows_came) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      for (int round = 0; round < 5; ++round) {
        // Rank s sends (s + d + round) % 3 rows to rank d, and keeps a last row that goes to nobody.
        std::vector<int64_t> splits;
        std::vector<int32_t> mine, expected;
        std::vector<int64_t> received;
        for (int peer = 0; peer < 3; ++peer) {
          splits.push_back((rank + peer + round) % 3);
          received.push_back((peer + rank + round) % 3);
          mine.insert(mine.end(), static_cast<size_t>(2 * splits.back()), 10 * rank + peer);
          expected.insert(expected.end(), static_cast<size_t>(2 * received.back()), 10 * peer + rank);
        }
        mine.insert(mine.end(), 2, -1);
        hvd_handle handle = 0;
        const auto rows = static_cast<int64_t>(mine.size() / 2);
        EXPECT(Call(HVD_ALLTOALL, "a").splits(splits).tensor(mine, HVD_INT32, {rows, 2}).submit(engine, &handle).ok());
        EXPECT(engine.submitter().wait(handle, 20000).ok());
        const SubmissionPtr done = engine.submitter().find(handle);
        const Gathered& result = done->results[0];
        EXPECT(result.rows == received);
        EXPECT(result.shape == (std::vector<int64_t>{static_cast<int64_t>(expected.size() / 2), 2}));
        EXPECT(std::memcmp(result.data.get(), expected.data(), expected.size() * 4) == 0);
        engine.submitter().release(handle);
      }
      // Ragged sizes and splits are not negotiated: after the first, no request is slow.
      EXPECT(engine.statistics().find("\"slow_requests\": 1,") != std::string::npos);
    });
  }
}

TEST(hosts_that_complete_names_in_another_order_run_them_in_one) {
  run_world(make_world(4, Wiring::kTwoHosts), [](Engine& engine, int rank) {
    const bool x_first = rank < 2;
    for (int round = 0; round < 20; ++round) {
      std::vector<float> x(1000, 1);
      std::vector<float> y(1000, 10);
      std::vector<hvd_handle> handles(2);
      EXPECT(Call(HVD_ALLREDUCE, x_first ? "x" : "y")
                 .tensor(x_first ? x : y, HVD_FLOAT32)
                 .submit(engine, &handles[0])
                 .ok());
      // By now both ranks of this host have the first one, and those of the other host another one.
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      EXPECT(Call(HVD_ALLREDUCE, x_first ? "y" : "x")
                 .tensor(x_first ? y : x, HVD_FLOAT32)
                 .submit(engine, &handles[1])
                 .ok());
      for (const hvd_handle handle : handles) {
        EXPECT(engine.submitter().wait(handle, 20000).ok());
        engine.submitter().release(handle);
      }
      EXPECT(x[0] == 4 && x[999] == 4 && y[0] == 40 && y[999] == 40);
    }
  });
}

TEST(a_rank_that_leaves_fails_those_that_wait_for_it) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      std::vector<float> values(8, 1);
      EXPECT(sum(engine, "x", values).ok());
      if (rank == 1) return;  // stops in order
      std::vector<float> more(8, 1);
      EXPECT(has(sum(engine, "x", more), HVD_RANK_LEFT, {"rank 1", "left"}));
      EXPECT(has(sum(engine, "y", more), HVD_RANK_LEFT, {"rank 1", "left"}));
    });
  }
}

TEST(an_abort_ends_all_ranks_with_its_cause) {
  for (const Wiring wiring : kWirings) {
    std::atomic<int> summed{0};
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      std::vector<float> values(8, 1);
      EXPECT(sum(engine, "x", values).ok());
      ++summed;
      while (summed.load() < 3) sleep_ms(1);  // an abort may end a peer's first operation as well
      if (rank == 2) engine.abort(2, "rank 2 gave up");
      const uint64_t start = now_ns();
      const Status status = sum(engine, "never", values);
      EXPECT(status.failed_rank() == 2 && status.text().find("gave up") != std::string::npos);
      EXPECT(static_cast<int64_t>(now_ns() - start) < promised_ns(1000));
    });
  }
}

TEST(a_barrier_holds_until_the_last_rank) {
  for (const Wiring wiring : kWirings) {
    std::atomic<int> arrived{0};
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      for (int round = 1; round <= 50; ++round) {
        if (round % 10 == 0 && rank == round / 10 % 3) sleep_ms(5);
        arrived.fetch_add(1);
        EXPECT(Call(HVD_BARRIER, nullptr).run(engine).ok());
        EXPECT(arrived.load() >= 3 * round);
      }
    });
  }
}

TEST_MAIN
