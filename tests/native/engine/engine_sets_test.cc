// SPDX-License-Identifier: Apache-2.0
// Process sets end to end, ranks as threads: overlapping sets in flight at once, sets that come and go, and what each
// rank is told when it goes wrong; shared memory and sockets.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "engine_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kRounds = 8;
#else
constexpr int kRounds = 40;
#endif

struct Group {
  std::vector<int32_t> ranks;
  int32_t number = 0;
  bool has(int rank) const { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }
  int sum() const { return std::accumulate(ranks.begin(), ranks.end(), 0); }
};

// Every overlap there can be among four ranks: disjoint, nested, crossing, a circle of pairs, one rank alone.
std::vector<Group> overlapping() {
  return {{{0, 1, 2, 3}}, {{0, 1}}, {{1, 2}}, {{2, 3}}, {{0, 3}}, {{1, 2, 3}}, {{0, 2}}, {{3}}};
}

void add_all(Engine& engine, std::vector<Group>* groups) {
  for (size_t i = 1; i < groups->size(); ++i) (*groups)[i].number = add_set(engine, (*groups)[i].ranks);
}

struct Flight {
  hvd_handle handle = 0;
  std::vector<float> values;
  float expected = 0;
};

// Nobody leaves before all have finished: that would end the others' operations.
void run_sets(int size, Wiring wiring, const std::function<void(Engine&, int)>& body) {
  run_world(make_world(size, wiring), [&](Engine& engine, int rank) {
    body(engine, rank);
    EXPECT(Call(HVD_BARRIER, "end").run(engine).ok());
  });
}

}  // namespace

// Everything in flight at once, each rank in an order of its own, half of it without names.
TEST(overlapping_sets_in_flight_at_once_do_not_deadlock) {
  for (const Wiring wiring : kWirings) {
    run_sets(4, wiring, [](Engine& engine, int rank) {
      std::vector<Group> groups = overlapping();
      add_all(engine, &groups);
      std::mt19937 random(static_cast<unsigned>(rank));
      std::mt19937 shared(7);  // what all ranks choose alike
      for (int round = 0; round < kRounds; ++round) {
        struct Plan {
          const Group* group;
          std::string name;
          size_t count;
        };
        std::vector<Plan> plans;
        for (size_t g = 0; g < groups.size(); ++g) {
          for (int i = 0; i < 4; ++i) {
            const size_t count = std::array<size_t, 4>{1, 40, 3000, 70000}[shared() % 4] + static_cast<size_t>(i);
            if (groups[g].has(rank)) plans.push_back({&groups[g], "t" + std::to_string(i), count});
          }
        }
        std::vector<Flight> flights(plans.size());
        std::vector<size_t> order(plans.size());
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
          const Plan& plan = plans[i];
          flights[i].values.assign(plan.count, static_cast<float>(rank));
          flights[i].expected = static_cast<float>(plan.group->sum());
          EXPECT(Call(HVD_ALLREDUCE, plan.name.c_str())
                     .in(plan.group->number)
                     .tensor(flights[i].values, HVD_FLOAT32)
                     .submit(engine, &flights[i].handle)
                     .ok());
          if (random() % 8 == 0) sleep_ms(1);
        }
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
          EXPECT(engine.submitter().wait(flights[i].handle, 20000).ok());
          engine.submitter().release(flights[i].handle);
          EXPECT(flights[i].values.front() == flights[i].expected && flights[i].values.back() == flights[i].expected);
        }
        // Unnamed ones meet by their order in each set; blocking calls over sets that cross.
        for (const Group& group : groups) {
          if (!group.has(rank)) continue;
          std::vector<float> value(3, 1.0f);
          EXPECT(Call(HVD_ALLREDUCE, nullptr).in(group.number).tensor(value, HVD_FLOAT32).run(engine).ok());
          EXPECT(value[2] == static_cast<float>(group.ranks.size()));
        }
      }
    });
  }
}

// A number comes back with the same members, as compiled functions hold it. Names, definitions and memory of the former
// set must not show through.
TEST(sets_come_and_go_and_their_numbers_come_back_for_the_same_ranks) {
  for (const Wiring wiring : kWirings) {
    run_sets(4, wiring, [](Engine& engine, int rank) {
      std::mt19937 shared(3);
      std::map<int32_t, std::vector<int32_t>> ranks_of;
      for (int round = 0; round < kRounds; ++round) {
        std::vector<Group> groups = overlapping();
        std::shuffle(groups.begin() + 1, groups.end(), shared);
        groups.resize(4);
        add_all(engine, &groups);
        for (const Group& group : groups) {
          EXPECT(ranks_of.try_emplace(group.number, group.ranks).first->second == group.ranks);
        }
        for (int step = 0; step < 3; ++step) {
          for (const Group& group : groups) {
            if (!group.has(rank)) continue;
            const size_t count = 10 + static_cast<size_t>(round / 2 % 3) * 4000;
            std::vector<float> values(count, static_cast<float>(rank));
            EXPECT(Call(HVD_ALLREDUCE, "t").in(group.number).tensor(values, HVD_FLOAT32).run(engine).ok());
            EXPECT(values.back() == static_cast<float>(group.sum()));
          }
        }
        std::shuffle(groups.begin() + 1, groups.end(), shared);
        for (size_t i = 1; i < groups.size(); ++i) EXPECT(remove_set(engine, groups[i].number).ok());
      }
      EXPECT(ranks_of.size() == overlapping().size());
      // Whoever kept a request of a removed set is told.
      std::vector<float> value(1);
      EXPECT(has(Call(HVD_ALLREDUCE, "t").in(1).tensor(value, HVD_FLOAT32).run(engine), HVD_INVALID_ARGUMENT,
                 {"unknown process set 1"}));
    });
  }
}

// The leader takes it and gives it back, also for others.
TEST(the_memory_of_a_set_comes_back_though_the_leader_is_no_member) {
  std::vector<EngineOptions> world = make_world(3, Wiring::kSharedMemory);
  const std::shared_ptr<Segment> segment = world[0].segment;
  const auto blocks = [&segment] {
    struct stat facts{};
    EXPECT(fstat(segment->memfd(), &facts) == 0);
    return facts.st_blocks;
  };
  const auto before = blocks();
  run_world(std::move(world), [&](Engine& engine, int rank) {
    for (const std::vector<int32_t>& ranks : {std::vector<int32_t>{1, 2}, {0, 1}, {1, 2}}) {
      const int32_t set = add_set(engine, ranks);
      if (rank == 0) EXPECT(blocks() > before);
      EXPECT(remove_set(engine, set).ok());
      if (rank == 0) EXPECT(blocks() == before);  // by now: nobody adds the next without this rank
    }
    EXPECT(Call(HVD_BARRIER, "end").run(engine).ok());
  });
}

TEST(a_lasting_number_means_the_set_of_the_same_ranks) {
  const std::vector<int32_t> ranks = {0, 3, 5, 6, 9}, twin = {1, 2, 3, 5, 6, 7, 8, 11, 12, 15};
  const int32_t lasting = lasting_number(ranks);
  EXPECT(lasting == lasting_number(twin));  // found by trying all lists of up to 16 ranks
  run_sets(16, Wiring::kSharedMemory, [&](Engine& engine, int rank) {
    int32_t members = 0, member = 0;
    const auto place = [&](int32_t number) { return engine.submitter().place_in_set(number, &members, &member); };
    std::vector<int32_t> all(16);
    std::iota(all.begin(), all.end(), 0);
    EXPECT(place(lasting_number(all)).ok() && members == 16 && member == rank);
    EXPECT(has(place(lasting), HVD_INVALID_ARGUMENT, {"is not registered"}));
    add_set(engine, {2, 3});
    add_set(engine, ranks);
    EXPECT(place(lasting).ok() && members == 5 && (member == 0) == (rank == 0));
    const int32_t second = add_set(engine, twin);
    EXPECT(has(place(lasting), HVD_INVALID_ARGUMENT, {"two process sets"}));
    EXPECT(remove_set(engine, second).ok());
    EXPECT(place(lasting).ok() && members == 5);
  });
}

TEST(a_prepared_request_of_a_removed_set_is_refused) {
  run_sets(2, Wiring::kSharedMemory, [](Engine& engine, int) {
    const int32_t set = add_set(engine, {0});
    float value = 1;
    const int64_t shape = 1;
    const hvd_tensor tensor{&value, &value, &shape, 1, HVD_FLOAT32};
    hvd_request request{};
    request.size = sizeof request;
    request.kind = HVD_ALLREDUCE;
    request.op = HVD_SUM;
    request.process_set = set;
    request.ntensors = 1;
    request.tensor_size = sizeof tensor;
    request.name = "t";
    request.tensors = &tensor;
    request.prescale = request.postscale = 1;
    std::shared_ptr<const Prepared> prepared;
    const Status status = engine.submitter().prepare(request, &prepared);
    EXPECT(status.ok() == (prepared != nullptr));
    EXPECT(remove_set(engine, set).ok());
    EXPECT(add_set(engine, {0}) == set);
    if (prepared == nullptr) return;
    const void* input = &value;
    void* output = &value;
    hvd_handle handle = 0;
    EXPECT(has(engine.submitter().submit(prepared, &input, &output, 0, &handle), HVD_INVALID_ARGUMENT,
               {"has been removed"}));
  });
}

// Python gives none of these.
TEST(sets_and_calls_that_cannot_be_are_refused) {
  run_sets(3, Wiring::kSharedMemory, [](Engine& engine, int rank) {
    Status status;
    add_set(engine, {2, 0}, &status);
    EXPECT(has(status, HVD_INVALID_ARGUMENT, {"ascending"}));
    add_set(engine, {}, &status);
    EXPECT(has(status, HVD_INVALID_ARGUMENT, {"at least one rank"}));
    EXPECT(has(remove_set(engine, 0), HVD_INVALID_ARGUMENT, {"no process set 0"}));
    EXPECT(has(remove_set(engine, 9), HVD_INVALID_ARGUMENT, {"no process set 9"}));
    const int32_t set = add_set(engine, {1, 2});
    std::vector<float> value(1);
    const Status root = Call(HVD_BROADCAST, "b").in(set).root(0).tensor(value, HVD_FLOAT32).run(engine);
    EXPECT(has(root, HVD_INVALID_ARGUMENT, {rank == 0 ? "not in process set 1" : "root rank among the ranks [1, 2]"}));
  });
}

// A leader whose driving thread is kept in a callback until the members sleep. Awake, they would see its decision
// without being woken.
struct HeldLeader {
  std::atomic<int> held{0}, submitted{0}, finished{0};

  static void hold(void* user, const hvd_status*) {
    auto* self = static_cast<HeldLeader*>(user);
    const int members = 2 * ++self->held;
    while (self->submitted.load() < members) sleep_ms(1);
    sleep_ms(20);  // they fall asleep after 200 looks; the rounds are for one that got no core meanwhile
  }
};

// Where nobody waits, the members must be woken by a leader that takes no part itself.
TEST(what_nobody_waits_for_is_done_soon_though_the_leader_is_no_member) {
  for (const Wiring wiring : kWirings) {
    HeldLeader leader;
    run_sets(3, wiring, [&leader](Engine& engine, int rank) {
      uint64_t fastest_ns = UINT64_MAX;  // a busy machine delays most rounds, but not all
      const int32_t alone = add_set(engine, {0}), others = add_set(engine, {1, 2});
      std::vector<hvd_handle> handles;
      std::vector<float> values(3, 1);
      for (int round = 0; round < 5; ++round) {
        std::atomic<bool> done{false};
        const auto on_done = [](void* user, const hvd_status*) { static_cast<std::atomic<bool>*>(user)->store(true); };
        const std::string name = "t" + std::to_string(round);
        Call call(HVD_ALLREDUCE, name.c_str());
        if (rank == 0) {
          call.in(alone).done(HeldLeader::hold, &leader);
        } else {
          while (leader.held.load() <= round) sleep_ms(1);
          call.in(others).done(on_done, &done);
        }
        EXPECT(call.tensor(values, HVD_FLOAT32).submit(engine, &handles.emplace_back()).ok());
        const uint64_t begin = now_ns();
        if (rank > 0) {
          leader.submitted.fetch_add(1);
          while (!done.load() && now_ns() < begin + 20'000'000'000) sleep_ms(1);
          EXPECT(done.load());
          fastest_ns = std::min(fastest_ns, now_ns() - begin);
          leader.finished.fetch_add(1);
        }
        // Rank 0 waits for nothing of the engine meanwhile: a waiter would wake everybody.
        while (leader.finished.load() < 2 * (round + 1)) sleep_ms(1);
      }
      EXPECT(rank == 0 || fastest_ns < 600'000'000);  // the watchdog alone would take a second
      for (const hvd_handle handle : handles) {
        EXPECT(engine.submitter().wait(handle, 20000).ok());
        engine.submitter().release(handle);
      }
    });
  }
}

TEST(a_stall_in_a_set_names_the_missing_member) {
  for (const Wiring wiring : kWirings) {
    EngineSettings settings;
    settings.stall_warning_ms = 200 * kPatience;
    settings.stall_shutdown_ms = kSanitized ? 10000 : 3000;  // no rank is late by so much on a busy machine
    settings.warnings = false;
    std::vector<std::thread> threads;
    std::atomic<int> told{0};
    for (EngineOptions& options : make_world(4, wiring, settings)) {
      threads.emplace_back([&told, options = std::move(options)]() mutable {
        const int rank = options.rank;
        std::unique_ptr<Engine> engine;
        EXPECT(Engine::start(std::move(options), &engine).ok());
        const int32_t set = add_set(*engine, {1, 2, 3});
        std::vector<float> value(1, 1);
        for (int i = 0; rank > 0 && i < 2; ++i) {
          EXPECT(Call(HVD_ALLREDUCE, "t").in(set).tensor(value, HVD_FLOAT32).run(*engine).ok());
        }
        if (rank == 1 || rank == 3) {
          EXPECT(has(Call(HVD_ALLREDUCE, "t").in(set).tensor(value, HVD_FLOAT32).run(*engine), HVD_ABORTED,
                     {"`t` of process set 1", "missing rank 2", "ranks 1, 3"}));
          told.fetch_add(1);
        }
        while (told.load() < 2) sleep_ms(1);
        EXPECT(engine->stop(3000).ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_MAIN
