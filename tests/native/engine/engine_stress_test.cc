// SPDX-License-Identifier: Apache-2.0
// The engine under random load: several threads per rank, random operations and delays, every result verified; then
// starts, stops and aborts at random moments.
#include <dirent.h>

#include <algorithm>
#include <deque>
#include <latch>
#include <random>

#include "engine_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 60;
constexpr int kCycles = 6;
#else
constexpr int kOperations = 300;
constexpr int kCycles = 30;
#endif

constexpr int kWaitMs = 40000;

// What all ranks do alike in one step of a thread's program. Names come again, so that operations take the fast way,
// and change their shape now and then, so that they are recalled.
struct Step {
  enum Kind : uint8_t { kReduce, kGroup, kBroadcast, kGather, kBarrier, kMismatch, kRefusal } kind;
  std::string name;
  int64_t count;
  int chosen;  // the root, or the rank that is wrong
};

std::vector<Step> program(int thread, int size) {
  std::mt19937 random(static_cast<unsigned>(thread));
  std::vector<Step> steps;
  for (int i = 0; i < kOperations; ++i) {
    const uint32_t dice = random() % 20;
    const Step::Kind kind = dice < 9    ? Step::kReduce
                            : dice < 11 ? Step::kGroup
                            : dice < 13 ? Step::kBroadcast
                            : dice < 15 ? Step::kGather
                            : dice < 17 ? Step::kBarrier
                            : dice < 19 ? Step::kMismatch
                                        : Step::kRefusal;
    const uint32_t number = random() % 12;
    int64_t count = random() % 8 == 0 ? random() % 40000 : 1 + number * 17;
    if (random() % 16 == 0) count = 0;
    const std::string name = std::to_string(thread) + "_" + std::to_string(kind) + "_" + std::to_string(number);
    steps.push_back({kind, name, count, static_cast<int>(random() % static_cast<uint32_t>(size))});
  }
  return steps;
}

// One rank's part of a step, from its submission to the check of its result.
class Operation {
 public:
  Operation(Engine& engine, const Step& step, int rank, int size)
      : engine_(engine), step_(step), rank_(rank), size_(size) {
    const bool wrong = step.kind == Step::kMismatch && rank == step.chosen && size > 1;
    const int64_t count = step.kind == Step::kGather ? (rank + step.count) % 5 : step.count + (wrong ? 1 : 0);
    const size_t tensors = step.kind == Step::kGroup ? 3 : step.kind == Step::kBarrier ? 0 : 1;
    for (size_t i = 0; i < tensors; ++i) {
      values_.emplace_back(static_cast<size_t>(count), static_cast<float>(rank + 1 + static_cast<int>(i)));
    }
  }

  void submit(uint32_t flags) {
    if (step_.kind == Step::kRefusal && rank_ == step_.chosen) {
      EXPECT(engine_.submitter().refuse(step_.name.c_str(), 0, "chosen to be wrong").ok());
      return;
    }
    constexpr hvd_kind kKinds[] = {HVD_ALLREDUCE, HVD_ALLREDUCE, HVD_BROADCAST, HVD_ALLGATHER,
                                   HVD_BARRIER,   HVD_ALLREDUCE, HVD_ALLREDUCE};
    Call call(kKinds[step_.kind], step_.name.c_str());
    call.root(step_.chosen);
    for (auto& tensor : values_) call.tensor(tensor, HVD_FLOAT32);
    const Status status = call.submit(engine_, &handle_, flags);
    if (!status.ok()) std::printf("%s\n", status.text().c_str());
    EXPECT(status.ok());
  }

  void finish() {
    if (handle_ == 0) return;  // the refusal itself
    const Status status = engine_.submitter().wait(handle_, kWaitMs);
    const bool fails = size_ > 1 && (step_.kind == Step::kMismatch || step_.kind == Step::kRefusal);
    const hvd_code failure = step_.kind == Step::kRefusal ? HVD_REFUSED : HVD_MISMATCH;
    if (status.code() != (fails ? failure : HVD_OK)) {
      std::printf("rank %d, `%s`: code %d: %s\n", rank_, step_.name.c_str(), status.code(), status.text().c_str());
      ++check::failures();
    } else if (!fails) {
      check_result();
    }
    engine_.submitter().release(handle_);
  }

 private:
  void check_result() {
    const int all = size_ * (size_ + 1) / 2;
    if (step_.kind == Step::kGather) {
      const SubmissionPtr done = engine_.submitter().find(handle_);
      const Gathered& gathered = done->results[0];
      const auto* at = reinterpret_cast<const float*>(gathered.data.get());
      for (int r = 0; r < size_; ++r) {
        EXPECT(gathered.rows[static_cast<size_t>(r)] == (r + step_.count) % 5);
        for (int64_t i = 0; i < gathered.rows[static_cast<size_t>(r)]; ++i) EXPECT(*at++ == static_cast<float>(r + 1));
      }
      return;
    }
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto added = static_cast<int>(i);
      const int expected = step_.kind == Step::kBroadcast ? step_.chosen + 1 : all + size_ * added;
      const auto right = [&](float value) { return value == static_cast<float>(expected); };
      EXPECT(std::all_of(values_[i].begin(), values_[i].end(), right));
    }
  }

  Engine& engine_;
  const Step& step_;
  const int rank_, size_;
  std::vector<std::vector<float>> values_;
  hvd_handle handle_ = 0;
};

void run_program(Engine& engine, int rank, int size, int thread) {
  const std::vector<Step> steps = program(thread, size);
  std::mt19937 random(static_cast<unsigned>(rank * 100 + thread));
  std::deque<std::pair<std::string, std::unique_ptr<Operation>>> open;
  const auto finish_front = [&] {
    open.front().second->finish();
    open.pop_front();
  };
  for (const Step& step : steps) {
    // A name may be in flight once; and no rank may run too far ahead, or it would wait for its own names only.
    const auto in_flight = [&] {
      return std::any_of(open.begin(), open.end(), [&](const auto& other) { return other.first == step.name; });
    };
    while (in_flight() || open.size() > 6) finish_front();
    const bool at_once = random() % 3 == 0;
    if (random() % 10 == 0) sleep_ms(static_cast<int>(random() % 4));
    if (random() % 20 == 0) EXPECT(!engine.statistics().empty());
    open.emplace_back(step.name, std::make_unique<Operation>(engine, step, rank, size));
    open.back().second->submit(at_once ? HVD_SYNC : 0);
    if (!at_once) continue;
    // Out of order: what was submitted last is waited for first.
    open.back().second->finish();
    open.pop_back();
  }
  while (!open.empty()) finish_front();
}

int entries_of(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST(random_operations_from_several_threads_of_every_rank) {
  for (const Wiring wiring : kWirings) {
    for (const int size : {2, 4}) {
      in_child(120, [&] {
        run_world(make_world(size, wiring), [&](Engine& engine, int rank) {
          std::vector<std::thread> threads;
          for (int t = 0; t < 3; ++t) threads.emplace_back([&, t] { run_program(engine, rank, size, t); });
          for (std::thread& thread : threads) thread.join();
          EXPECT(Call(HVD_BARRIER, "end").run(engine).ok());
        });
      });
    }
  }
}

TEST(many_ranks_on_one_host) {
  in_child(120, [&] {
    run_world(make_world(24, Wiring::kSharedMemory), [&](Engine& engine, int rank) {
      for (int round = 0; round < 3; ++round) {
        for (const size_t count : {1u, 3000u, 100000u}) {
          std::vector<float> values(count, static_cast<float>(rank));
          const std::string name = "x" + std::to_string(count);
          EXPECT(Call(HVD_ALLREDUCE, name.c_str()).tensor(values, HVD_FLOAT32).run(engine).ok());
          EXPECT(values.front() == 276 && values.back() == 276);
        }
      }
    });
  });
}

// Each completion submits the next operation; nobody waits, so that the engine's threads make all the progress.
TEST(callbacks_that_submit_make_a_chain_that_nobody_waits_for) {
  for (const Wiring wiring : kWirings) {
    in_child(60, [&] {
      run_world(make_world(3, wiring), [&](Engine& engine, int) {
        struct Chain {
          Engine* engine;
          std::vector<float> values = std::vector<float>(5, 1);
          std::atomic<int> done{0};

          static void next(void* user, const hvd_status* status) {
            auto* chain = static_cast<Chain*>(user);
            EXPECT(status->code == HVD_OK && chain->values[0] == 3);
            if (chain->done.fetch_add(1) + 1 < kOperations) chain->submit();
          }
          void submit() {
            std::fill(values.begin(), values.end(), 1.0f);
            hvd_handle handle = 0;
            const int number = done.load();
            const std::string name = "link." + std::to_string(number % 3);
            Call call(HVD_ALLREDUCE, number % 5 == 0 ? nullptr : name.c_str());
            EXPECT(call.done(next, this).tensor(values, HVD_FLOAT32).submit(*engine, &handle).ok());
            engine->submitter().release(handle);
          }
        } chain{&engine};
        const uint64_t start_ns = now_ns();
        chain.submit();
        while (chain.done.load() < kOperations && now_ns() - start_ns < 50'000'000'000u) sleep_ms(1);
        EXPECT(chain.done.load() == kOperations);
        EXPECT(Call(HVD_BARRIER, "end").run(engine).ok());
      });
    });
  }
}

// Rank 0, the root, needs no other rank. Rank 1 has no caller that waits, and its engine's thread sleeps by then: for a
// second, if nothing wakes it.
TEST(a_rank_that_the_batch_did_not_need_learns_of_it_at_once) {
  in_child(30, [&] {
    EngineSettings settings;
    settings.cycle_time_ms = 5;  // rank 0's engine thread does not end the batch before its caller does
    std::deque<std::latch> ended;
    for (int i = 0; i < 8; ++i) ended.emplace_back(1);
    run_world(make_world(2, Wiring::kSharedMemory, settings), [&](Engine& engine, int rank) {
      std::vector<float> values(4, static_cast<float>(rank));
      uint64_t fastest_ns = UINT64_MAX;  // a busy machine delays most rounds, but not all
      for (std::latch& round : ended) {
        const uint64_t start_ns = now_ns();
        Call call(HVD_BROADCAST, "from 0");
        call.root(0).tensor(values, HVD_FLOAT32);
        if (rank == 0) {
          sleep_ms(100);
        } else {
          call.done([](void* latch, const hvd_status*) { static_cast<std::latch*>(latch)->count_down(); }, &round);
        }
        hvd_handle handle = -1;
        EXPECT(call.submit(engine, &handle).ok());
        if (rank == 0) EXPECT(engine.submitter().wait(handle, 20000).ok());
        round.wait();
        engine.submitter().release(handle);
        fastest_ns = std::min(fastest_ns, now_ns() - start_ns);
      }
      EXPECT(fastest_ns < 600'000'000);  // a round has 0.1 s
    });
  });
}

TEST(starts_and_stops_leave_descriptors_and_threads_as_they_were) {
  for (const Wiring wiring : kWirings) {
    in_child(120, [&] {
      int descriptors = 0, threads = 0;
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        run_world(make_world(3, wiring), [&](Engine& engine, int) {
          std::vector<float> values(1000, 1);
          EXPECT(Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).run(engine).ok());
          EXPECT(values[0] == 3);
        });
        if (cycle == 0) {
          descriptors = entries_of("/proc/self/fd");
          threads = entries_of("/proc/self/task");
        }
      }
      EXPECT(entries_of("/proc/self/fd") == descriptors);
      // An emulator's threads end a little later than the threads that they stand for.
      const uint64_t limit_ns = now_ns() + 5'000'000'000u;
      while (kEmulated && entries_of("/proc/self/task") > threads && now_ns() < limit_ns) sleep_ms(1);
      const int left = entries_of("/proc/self/task");
      EXPECT(kEmulated ? left <= threads : left == threads);
    });
  }
}

TEST(an_abort_at_any_moment_ends_every_wait_and_every_stop) {
  for (const Wiring wiring : kWirings) {
    in_child(120, [&] {
      for (int cycle = 0; cycle < kCycles; ++cycle) {
        std::latch started(3);  // an abort in another rank's start would fail that start
        run_world(make_world(3, wiring), [&](Engine& engine, int rank) {
          started.arrive_and_wait();
          std::vector<std::thread> threads;
          for (int t = 0; t < 2; ++t) {
            threads.emplace_back([&, t] {
              const std::string name = "x" + std::to_string(t);
              for (Status status; status.ok();) {
                std::vector<float> values(static_cast<size_t>(t * 50000 + 5), 1);
                status = Call(HVD_ALLREDUCE, name.c_str()).tensor(values, HVD_FLOAT32).run(engine);
                if (!status.ok()) EXPECT(has(status, HVD_ABORTED, {"enough"}));
              }
            });
          }
          if (rank == cycle % 3) {
            sleep_ms(cycle % 7);
            engine.abort(rank, "enough");
          }
          for (std::thread& thread : threads) thread.join();
        });
      }
    });
  }
}

TEST_MAIN
