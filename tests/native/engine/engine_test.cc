// SPDX-License-Identifier: Apache-2.0
// The engine end to end with ranks as threads: agreement, order, errors, leaving, poison; shared memory and sockets.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
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

TEST(many_tensors_in_different_orders_fuse_and_complete) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int step = 0; step < 20; ++step) {
        std::vector<std::vector<float>> tensors;
        for (int i = 0; i < 60; ++i) tensors.emplace_back(100 + 37 * i, static_cast<float>(rank + i + step));
        std::vector<int> order(tensors.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        std::vector<hvd_handle> handles(tensors.size());
        for (const int i : order) {
          const std::string name = "t" + std::to_string(i);
          EXPECT(Call(HVD_ALLREDUCE, name.c_str()).tensor(tensors[i], HVD_FLOAT32).submit(engine, &handles[i]).ok());
        }
        for (size_t i = 0; i < handles.size(); ++i) {
          EXPECT(engine.submitter().wait(handles[i], 20000).ok());
          engine.submitter().release(handles[i]);
          EXPECT(tensors[i][0] == 3.0f * static_cast<float>(i + step) + 3.0f && tensors[i].back() == tensors[i][0]);
        }
      }
    });
  }
}

TEST(average_of_integers_is_exact_and_truncates) {
  run_world(make_world(3, Wiring::kSharedMemory), [&](Engine& engine, int rank) {
    std::vector<int8_t> values{int8_t(100), int8_t(-100), int8_t(rank)};
    EXPECT(Call(HVD_ALLREDUCE, "i8").op(HVD_AVERAGE).tensor(values, HVD_INT8).run(engine).ok());
    EXPECT(values[0] == 100 && values[1] == -100 && values[2] == 1);
    std::vector<int32_t> odd{rank == 0 ? -5 : 0};
    EXPECT(Call(HVD_ALLREDUCE, "i32").op(HVD_AVERAGE).tensor(odd, HVD_INT32).run(engine).ok());
    EXPECT(odd[0] == -1);
  });
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

TEST(splits_that_cannot_be_are_refused) {
  run_world(make_world(2, Wiring::kSharedMemory), [](Engine& engine, int) {
    std::vector<int32_t> values(5);
    const auto call = [&](std::vector<int64_t> splits) {
      return Call(HVD_ALLTOALL, "a").splits(std::move(splits)).tensor(values, HVD_INT32).run(engine);
    };
    EXPECT(has(call({1, 2, 2}), HVD_INVALID_ARGUMENT, {"one split for each of 2 members", "got 3"}));
    EXPECT(has(call({-1, 2}), HVD_INVALID_ARGUMENT, {"zero or more rows", "-1"}));
    EXPECT(has(call({3, 3}), HVD_INVALID_ARGUMENT, {"at most the 5 rows"}));
    EXPECT(has(call({INT64_MAX, INT64_MAX}), HVD_INVALID_ARGUMENT, {"at most the 5 rows"}));
    EXPECT(has(Call(HVD_ALLTOALL, "b").tensor(values, HVD_INT32).run(engine), HVD_INVALID_ARGUMENT, {"evenly", "5"}));
    EXPECT(call({2, 3}).ok());
  });
}

TEST(allgather_takes_ragged_rows_and_broadcast_takes_the_root) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      for (int round = 0; round < 4; ++round) {
        const int64_t rows = (rank + round) % 3;
        std::vector<int32_t> mine(static_cast<size_t>(rows * 2), rank);
        hvd_handle handle = 0;
        EXPECT(Call(HVD_ALLGATHER, "g").tensor(mine, HVD_INT32, {rows, 2}).submit(engine, &handle).ok());
        EXPECT(engine.submitter().wait(handle, 20000).ok());
        const SubmissionPtr done = engine.submitter().find(handle);
        const Gathered& all = done->results[0];
        EXPECT(all.shape == (std::vector<int64_t>{3, 2}));
        const auto* values = reinterpret_cast<const int32_t*>(all.data.get());
        int64_t at = 0;
        for (int r = 0; r < 3; ++r) {
          EXPECT(all.rows[static_cast<size_t>(r)] == (r + round) % 3);
          for (int64_t i = 0; i < all.rows[static_cast<size_t>(r)] * 2; ++i) EXPECT(values[at++] == r);
        }
        engine.submitter().release(handle);
        std::vector<double> payload(1000, rank + 10 * round);
        EXPECT(Call(HVD_BROADCAST, "b").root(2).tensor(payload, HVD_FLOAT64).run(engine).ok());
        EXPECT(payload[0] == 2 + 10 * round && payload[999] == payload[0]);
        EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
      }
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

TEST(ranks_that_disagree_get_the_same_words_and_go_on) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
      std::vector<float> good(4, 1);
      EXPECT(sum(engine, "x", good).ok());  // known by now: the next disagreement needs a recall
      std::vector<float> shape(rank == 1 ? 5 : 4, 1);
      EXPECT(has(sum(engine, "x", shape), HVD_MISMATCH, {"`x`", "rank 1", "expected shape [4], got [5]"}));
      std::vector<int32_t> ints(4, 1);
      std::vector<float> floats(4, 1);
      const Status dtype =
          rank == 2 ? Call(HVD_ALLREDUCE, "y").tensor(ints, HVD_INT32).run(engine) : sum(engine, "y", floats);
      EXPECT(has(dtype, HVD_MISMATCH, {"`y`", "rank 2", "expected dtype float32, got int32"}));
      const Status op =
          Call(HVD_ALLREDUCE, "z").op(rank == 0 ? HVD_MAX : HVD_SUM).tensor(good, HVD_FLOAT32).run(engine);
      EXPECT(has(op, HVD_MISMATCH, {"`z`", "rank 0", "expected reduce operation Sum, got Max"}));
      const Status root = Call(HVD_BROADCAST, "r").root(rank == 1 ? 1 : 0).tensor(good, HVD_FLOAT32).run(engine);
      EXPECT(has(root, HVD_MISMATCH, {"`r`", "rank 1", "expected root rank 0, got 1"}));
      const Status scale = Call(HVD_ALLREDUCE, "s").scale(rank == 1 ? 0.5 : 1, 1).tensor(good, HVD_FLOAT32).run(engine);
      EXPECT(has(scale, HVD_MISMATCH, {"`s`", "rank 1", "prescale"}));
      const Status kind = rank == 1 ? Call(HVD_BROADCAST, "broadcast.k").tensor(good, HVD_FLOAT32).run(engine)
                                    : sum(engine, "allreduce.k", good);
      EXPECT(has(kind, HVD_MISMATCH, {"broadcast.k", "allreduce.k", "rank 1"}));
      std::vector<float> after(4, 2);
      EXPECT(sum(engine, "x", after).ok());
      EXPECT(after[0] == 6);
    });
  }
}

TEST(a_refusal_fails_the_peers_and_the_name_works_again) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
      for (int round = 0; round < 5; ++round) {
        std::vector<float> values(8, 1);
        if (rank == 1) {
          EXPECT(engine.submitter().refuse("x", 0, "unsupported dtype complex64").ok());
        } else {
          EXPECT(has(sum(engine, "x", values), HVD_REFUSED, {"rank 1", "`x`", "complex64"}));
        }
        std::vector<float> again(8, 1);
        EXPECT(sum(engine, "x", again).ok());
        EXPECT(again[0] == 2);
      }
    });
  }
}

TEST(a_name_in_flight_twice_is_refused_on_that_rank_only) {
  run_world(make_world(2, Wiring::kSharedMemory), [&](Engine& engine, int rank) {
    std::vector<float> values(8, 1), second(8, 1);
    hvd_handle first = 0, other = 0;
    if (rank == 0) {
      EXPECT(Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).submit(engine, &first).ok());
      EXPECT(has(Call(HVD_ALLREDUCE, "x").tensor(second, HVD_FLOAT32).submit(engine, &other), HVD_DUPLICATE_NAME,
                 {"rank 0 called `x` again before the first"}));
    }
    EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
    if (rank == 1) EXPECT(Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).submit(engine, &first).ok());
    EXPECT(engine.submitter().wait(first, 20000).ok());
    EXPECT(values[0] == 2);
  });
}

TEST(hundreds_of_unnamed_requests_in_flight_match_by_order) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
      std::vector<std::vector<float>> tensors;
      for (int i = 0; i < 300; ++i) tensors.emplace_back(3 + i % 5, static_cast<float>(i + rank));
      std::vector<hvd_handle> handles(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT(Call(HVD_ALLREDUCE, nullptr).tensor(tensors[i], HVD_FLOAT32).submit(engine, &handles[i]).ok());
      }
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT(engine.submitter().wait(handles[i], 20000).ok());
        EXPECT(tensors[i][0] == 2.0f * static_cast<float>(i) + 1);
      }
    });
  }
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

TEST(a_tensor_that_one_rank_never_submits_is_ended_by_the_stall_limit) {
  for (const Wiring wiring : kWirings) {
    EngineSettings settings;
    settings.stall_warning_ms = 300;
    settings.stall_shutdown_ms = 800;
    settings.warnings = false;
    std::atomic<bool> ended{false};
    run_world(make_world(2, wiring, settings), [&](Engine& engine, int rank) {
      std::vector<float> values(8, 1);
      EXPECT(sum(engine, "x", values).ok());
      if (rank == 1) {
        while (!ended.load()) sleep_ms(10);
      } else {
        EXPECT(has(sum(engine, "x", values), HVD_ABORTED, {"`x`", "missing rank 1"}));
        ended.store(true);
      }
    });
  }
}

TEST_MAIN
