// SPDX-License-Identifier: Apache-2.0
// Ranks that run out of data: join, and what the others can do meanwhile, over shared memory and sockets.
#include <atomic>

#include "check.h"
#include "engine_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

EngineSettings quiet() {
  EngineSettings settings;
  settings.stall_warning_ms = 0;
  return settings;
}

// The rank that joined last, or -1 with the error in `*status`.
int join(Engine& engine, Status* status = nullptr) {
  hvd_handle handle = 0;
  Status outcome = engine.submitter().join(&handle);
  if (outcome.ok()) outcome = engine.submitter().wait(handle, 20000);
  const int last = outcome.ok() ? static_cast<int>(engine.submitter().find(handle)->results[0].rows[0]) : -1;
  engine.submitter().release(handle);
  if (status != nullptr) *status = outcome;
  return last;
}

float sum_of_one(Engine& engine, const char* name, float value, hvd_op op = HVD_SUM) {
  std::vector<float> values(3, value);
  const Status status = Call(HVD_ALLREDUCE, name).op(op).tensor(values, HVD_FLOAT32).run(engine);
  if (!status.ok()) std::printf("       %s\n", status.text().c_str());
  EXPECT(status.ok());
  return values[2];
}

uint64_t slow_requests(Engine& engine) {
  const std::string text = engine.statistics();
  return std::stoull(text.substr(text.find("slow_requests") + 16));
}

}  // namespace

TEST(what_was_in_flight_before_the_join_keeps_its_data) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring, quiet()), [](Engine& engine, int rank) {
      // Known names, so that the arrivals are counted; each rank leaves another one for the others.
      const char* names[] = {"t0", "t1", "t2"};
      for (int round = 0; round < 30; ++round) {
        for (const char* name : names) EXPECT(sum_of_one(engine, name, 1) == 3);
        // One rank comes later: by then the others have joined, and it must not be taken for one who had submitted.
        for (int step = 0; rank == round % 3 && step < 5; ++step) EXPECT(sum_of_one(engine, "alone", 1) == 1);
        std::vector<float> mine(3, 10), unnamed(1, 1);
        hvd_handle handle = 0;
        EXPECT(Call(HVD_ALLREDUCE, names[rank]).tensor(mine, HVD_FLOAT32).submit(engine, &handle).ok());
        EXPECT(join(engine) >= 0);
        EXPECT(engine.submitter().wait(handle, 20000).ok() && mine[0] == 10);
        engine.submitter().release(handle);
        EXPECT(Call(HVD_ALLREDUCE, nullptr).tensor(unnamed, HVD_FLOAT32).run(engine).ok() && unnamed[0] == 3);
      }
    });
  }
}

TEST(what_waits_for_its_turn_is_submitted_before_the_join) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring, quiet()), [](Engine& engine, int rank) {
      constexpr int kMany = 200;  // of which the process submits 64 at once
      std::vector<std::vector<float>> values(kMany, std::vector<float>(1, 1));
      std::vector<hvd_handle> handles(kMany);
      for (int i = 0; i < (rank == 0 ? kMany : 10); ++i) {
        EXPECT(Call(HVD_ALLREDUCE, nullptr).tensor(values[i], HVD_FLOAT32).submit(engine, &handles[i]).ok());
      }
      EXPECT(join(engine) == 0);
      for (int i = 0; i < (rank == 0 ? kMany : 10); ++i) {
        EXPECT(engine.submitter().wait(handles[i], 20000).ok() && values[i][0] == (i < 10 ? 2 : 1));
        engine.submitter().release(handles[i]);
      }
    });
  }
}

// A call whose turn comes while a batch is completed may be complete at once, and is told to the others only after the
// batch; the join that waited for it comes after that. So the log never says that all have joined before it says that
// something is ready which was submitted earlier. Rank 0 is held back in a callback, so that the last arrival is its.
TEST(a_join_never_overtakes_what_was_complete_before_it) {
  EngineSettings settings = quiet();
  settings.cycle_time_ms = 60000;  // the batch is closed by whoever waits, and by nobody before
  std::vector<EngineOptions> world = make_world(2, Wiring::kSharedMemory, settings);
  const std::shared_ptr<Segment> segment = world[0].segment;
  std::atomic<int> submitted{0}, other_has_moved_on{0};
  run_world(std::move(world), [&](Engine& engine, int rank) {
    constexpr int kMany = 65;  // unnamed calls, of which 64 are submitted at once
    struct Held {
      std::atomic<int>& other_has_moved_on;
      int rank;
    } held{other_has_moved_on, rank};
    const auto gate_is_done = [](void* user, const hvd_status*) {
      const Held& mine = *static_cast<Held*>(user);
      // A busy machine may put the calls into a batch behind the gate's: then the other waits for this rank.
      const uint64_t until_ns = now_ns() + 2000000000;
      while (mine.rank == 0 && mine.other_has_moved_on.load() == 0 && now_ns() < until_ns) std::this_thread::yield();
    };
    const auto call_is_done = [](void* user, const hvd_status*) {
      const Held& mine = *static_cast<Held*>(user);
      if (mine.rank == 1) mine.other_has_moved_on.store(1);
    };
    std::vector<float> gate(1, 1);
    std::vector<std::vector<float>> values(kMany, std::vector<float>(1, 1));
    std::vector<hvd_handle> handles(kMany + 1);
    EXPECT(Call(HVD_ALLREDUCE, "gate")
               .tensor(gate, HVD_FLOAT32)
               .done(gate_is_done, &held)
               .submit(engine, &handles[kMany])
               .ok());
    for (int i = 0; i < kMany; ++i) {
      Call call(HVD_ALLREDUCE, nullptr);
      EXPECT(call.tensor(values[i], HVD_FLOAT32).done(call_is_done, &held).submit(engine, &handles[i]).ok());
    }
    hvd_handle all_joined = 0;
    EXPECT(engine.submitter().join(&all_joined).ok());
    submitted.fetch_add(1);
    while (submitted.load() < 2) std::this_thread::yield();
    EXPECT(engine.submitter().wait(all_joined, 20000).ok());
    engine.submitter().release(all_joined);
    for (const hvd_handle handle : handles) {
      EXPECT(engine.submitter().wait(handle, 20000).ok());
      engine.submitter().release(handle);
    }
  });
  uint64_t joined_at = 0, last_ready_at = 0;
  Record record;
  for (uint64_t position = 0; segment->peek(position, &record); ++position) {
    if (record.kind == RecordKind::kJoin) joined_at = position;
    if (record.kind == RecordKind::kReady) last_ready_at = position;
  }
  EXPECT(joined_at > 0 && last_ready_at < joined_at);
}

TEST(an_operation_that_all_have_submitted_runs_though_one_has_joined) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring, quiet()), [](Engine& engine, int rank) {
      for (int round = 0; round < 10; ++round) {
        std::vector<int32_t> mine(1, rank);
        hvd_handle handle = 0;
        EXPECT(Call(HVD_ALLGATHER, "a").tensor(mine, HVD_INT32).submit(engine, &handle).ok());
        if (rank == 1) EXPECT(join(engine) >= 0);
        EXPECT(engine.submitter().wait(handle, 20000).ok());
        const Gathered& result = engine.submitter().find(handle)->results[0];
        EXPECT(result.shape[0] == 3 && reinterpret_cast<const int32_t*>(result.data.get())[2] == 2);
        engine.submitter().release(handle);
        if (rank != 1) EXPECT(join(engine) >= 0);
      }
    });
  }
}

TEST(disagreements_of_the_others_are_told_to_them) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring, quiet()), [](Engine& engine, int rank) {
      EXPECT(sum_of_one(engine, "t", 1) == 3);
      if (rank != 2) {
        std::vector<float> values(rank == 0 ? 3 : 4, 1);
        EXPECT(has(Call(HVD_ALLREDUCE, "t").tensor(values, HVD_FLOAT32).run(engine), HVD_MISMATCH, {"[3]", "[4]"}));
        if (rank == 0) EXPECT(engine.submitter().refuse("t", 0, "no such tensor").ok());
        if (rank == 1) {
          EXPECT(has(Call(HVD_ALLREDUCE, "t").tensor(values, HVD_FLOAT32).run(engine), HVD_REFUSED, {"no such"}));
        }
        // Different operations, which the one who has joined will never help out of.
        const Status status = Call(rank == 0 ? HVD_ALLREDUCE : HVD_BROADCAST, rank == 0 ? "allreduce.x" : "broadcast.x")
                                  .root(0)
                                  .tensor(values, HVD_FLOAT32)
                                  .run(engine);
        EXPECT(has(status, HVD_MISMATCH, {"different operations", "rank 0", "rank 1"}));
        EXPECT(sum_of_one(engine, "t", 1) == 2);
      }
      EXPECT(join(engine) >= 0);
      EXPECT(sum_of_one(engine, "t", 1) == 3);
    });
  }
}

// One rank after the other joins; the last goes on under many names, each of which drives another one out once all have
// joined. Those of before come back.
TEST(names_come_and_go_while_ranks_join) {
  constexpr int kSize = 3, kNames = 40;
  EngineSettings few = quiet();
  few.cached_names = 8;
  for (const Wiring wiring : kWirings) {
    run_world(make_world(kSize, wiring, few), [](Engine& engine, int rank) {
      const auto use = [&](int begin, int end, float expected) {
        for (int n = begin; n < end; ++n) EXPECT(sum_of_one(engine, ("n" + std::to_string(n)).c_str(), 1) == expected);
      };
      for (int round = 0; round < 6; ++round) {
        use(0, kNames, kSize);
        const int order = (rank + round) % kSize;  // of joining
        if (order > 0) use(kNames / 2, 2 * kNames, kSize - 1);
        if (order > 1) use(0, 3 * kNames, kSize - 2);
        std::vector<float> mine(3, 10);
        hvd_handle handle = 0;
        const std::string own = "own" + std::to_string(rank);
        EXPECT(Call(HVD_ALLREDUCE, own.c_str()).tensor(mine, HVD_FLOAT32).submit(engine, &handle).ok());
        EXPECT(join(engine) >= 0);
        EXPECT(engine.submitter().wait(handle, 20000).ok() && mine[0] == 10);
        engine.submitter().release(handle);
      }
      for (int again = 0; again < 20; ++again) use(0, 4, kSize);
      const uint64_t before = slow_requests(engine);
      for (int again = 0; again < 20; ++again) use(0, 4, kSize);
      EXPECT(slow_requests(engine) == before);
      const std::string text = engine.statistics();
      EXPECT(rank != 0 || text.find("\"names_evicted\": 0") == std::string::npos);
    });
  }
}

TEST(a_rank_that_leaves_ends_the_join_of_the_others) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring, quiet()), [](Engine& engine, int rank) {
      EXPECT(sum_of_one(engine, "t", 1) == 3);
      if (rank == 1) return;
      Status status;
      EXPECT(join(engine, &status) == -1);
      EXPECT(has(status, HVD_RANK_LEFT, {"join", "rank 1"}));
    });
  }
}

TEST(an_abort_ends_the_join) {
  for (const Wiring wiring : kWirings) {
    std::atomic<int> have_summed{0};
    run_world(make_world(2, wiring, quiet()), [&have_summed](Engine& engine, int rank) {
      EXPECT(sum_of_one(engine, "t", 1) == 2);
      have_summed.fetch_add(1);
      while (have_summed.load() < 2) std::this_thread::yield();
      Status status;
      if (rank == 1) engine.abort(1, "out of patience");
      if (rank == 0) {
        EXPECT(join(engine, &status) == -1);
        EXPECT(has(status, HVD_ABORTED, {"join", "out of patience"}));
      }
    });
  }
}

// Who waits for what: a rank that has joined is neither missing nor waited for.
TEST(stall_reports_leave_out_who_has_joined) {
  for (const Wiring wiring : kWirings) {
    for (const bool in_join : {false, true}) {
      EngineSettings settings;
      settings.stall_warning_ms = 200;
      settings.stall_shutdown_ms = 700;
      settings.warnings = false;
      std::atomic<int> told{0};
      std::vector<std::thread> threads;
      for (EngineOptions& options : make_world(3, wiring, settings)) {
        threads.emplace_back([&told, in_join, options = std::move(options)]() mutable {
          const int rank = options.rank;
          std::unique_ptr<Engine> engine;
          EXPECT(Engine::start(std::move(options), &engine).ok());
          for (int i = 0; i < 2; ++i) EXPECT(sum_of_one(*engine, "t", 1) == 3);
          Status status;
          if (rank == 0 || (rank == 1 && in_join)) {
            EXPECT(join(*engine, &status) == -1);
          } else if (rank == 1) {
            std::vector<float> value(3);
            status = Call(HVD_ALLREDUCE, "t").tensor(value, HVD_FLOAT32).run(*engine);
          }
          if (rank != 2) {
            EXPECT(has(status, HVD_ABORTED,
                       {in_join ? "ranks 0, 1 waited" : "rank 1 waited", in_join ? "join" : "`t`", "missing rank 2,"}));
            told.fetch_add(1);
          }
          while (told.load() < 2) sleep_ms(1);
          EXPECT(engine->stop(3000).ok());
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

TEST_MAIN
