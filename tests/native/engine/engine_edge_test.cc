// SPDX-License-Identifier: Apache-2.0
// The engine where it is hard pressed: bursts beyond every buffer, several threads of a rank waiting, callbacks that
// submit, starts and stops that cannot succeed, memory and descriptors that run out. A hang is a failure here: each
// test runs in a child with a time limit.
#include <dirent.h>
#include <sys/resource.h>

#include <condition_variable>
#include <cstring>

#include "engine_world.h"
#include "negotiation/names.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

Status sum(Engine& engine, const std::string& name, std::vector<float>& values, uint32_t flags = HVD_SYNC) {
  return Call(HVD_ALLREDUCE, name.c_str()).tensor(values, HVD_FLOAT32).run(engine, flags);
}

double seconds_since(uint64_t start_ns) { return static_cast<double>(now_ns() - start_ns) * 1e-9; }

// A lost wake-up costs 0.1 to 1 s each time. A slow machine costs less, a busy one may cost more, and sanitizers do.
// So the limits hold if the machine is free, as in `make check-all`.
void expect_within(double limit_s, uint64_t start_ns, const char* what) {
  const double seconds = seconds_since(start_ns);
  if (!thorough()) limit_s *= 10;
  if (!kSanitized && seconds > limit_s) {
    std::printf("%s took %.2f s, expected at most %.2f\n", what, seconds, limit_s);
    ++check::failures();
  }
}

class Latch {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

int open_descriptors() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

}  // namespace

TEST(thousands_of_new_names_at_once_pass_through_every_buffer) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      run_world(make_world(2, wiring), [&](Engine& engine, int) {
        const int count = kSanitized ? 3000 : 6000;
        std::vector<std::vector<float>> tensors(static_cast<size_t>(count), {1.0f});
        std::vector<hvd_handle> handles(tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
          const std::string name = "a.rather.long.name.of.a.layer." + std::to_string(i);
          EXPECT(Call(HVD_ALLREDUCE, name.c_str()).tensor(tensors[i], HVD_FLOAT32).submit(engine, &handles[i]).ok());
        }
        for (size_t i = 0; i < tensors.size(); ++i) {
          EXPECT(engine.submitter().wait(handles[i], 50000).ok());
          EXPECT(tensors[i][0] == 2);
        }
      });
    });
  }
}

TEST(a_request_larger_than_the_rings_and_socket_buffers_is_not_slowed_by_sleep) {
  for (const Wiring wiring : kWirings) {
    for (const bool waits : {true, false}) {
      in_child(30, [&] {
        run_world(make_world(2, wiring), [&](Engine& engine, int) {
          std::vector<float> values(kSanitized ? 20000 : 150000, 1.0f);
          std::vector<std::vector<float>> tensors(values.size(), {1.0f});
          Call call(HVD_ALLREDUCE, "group");
          for (auto& tensor : tensors) call.tensor(tensor, HVD_FLOAT32);
          std::vector<float> first(1, 1);
          EXPECT(sum(engine, "first", first).ok());
          const uint64_t start_ns = now_ns();
          hvd_handle handle = 0;
          EXPECT(call.submit(engine, &handle).ok());
          while (!waits && engine.submitter().poll(handle).code() == HVD_PENDING && seconds_since(start_ns) < 50)
            sleep_ms(1);
          EXPECT(engine.submitter().wait(handle, 50000).ok());
          expect_within(1.5, start_ns, waits ? "a huge group that is waited for" : "a huge group that is polled");
          EXPECT(tensors.front()[0] == 2 && tensors.back()[0] == 2);
          EXPECT(Call(HVD_BARRIER, nullptr).run(engine).ok());
        });
      });
    }
  }
}

TEST(a_second_waiting_thread_is_served_at_once_while_the_first_sleeps) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
        std::vector<float> late(4, 1);
        std::thread first;
        if (rank == 0) first = std::thread([&] { EXPECT(sum(engine, "late", late).ok()); });
        std::vector<float> values(4, 1);
        EXPECT(sum(engine, "ready", values).ok());
        sleep_ms(50);  // not needed for the result: the first is most likely asleep by now
        const uint64_t start_ns = now_ns();
        for (int i = 0; i < 20; ++i) {
          if (rank == 0) sleep_ms(3);  // so that the other rank does not come later, and wake the first by that
          for (int again = 0; again < 2; ++again) EXPECT(sum(engine, "new." + std::to_string(i), values).ok());
        }
        expect_within(1.0, start_ns, "40 operations of a second thread");
        if (rank == 1) EXPECT(sum(engine, "late", late).ok());
        if (first.joinable()) first.join();
        EXPECT(late[0] == 2);
      });
    });
  }
}

TEST(stop_ends_the_waits_of_other_threads) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      for (int round = 0; round < 10; ++round) {
        Latch waits;
        run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
          std::vector<float> values(4, 1);
          EXPECT(sum(engine, "x", values).ok());
          if (rank == 1) return waits.wait();
          std::vector<std::vector<float>> tensors(3, std::vector<float>(4));
          std::vector<std::thread> waiting;
          std::atomic<int> submitted{0};
          for (int t = 0; t < 3; ++t) {
            waiting.emplace_back([&, t] {
              hvd_handle handle = 0;
              const std::string name = "never." + std::to_string(t);
              auto& tensor = tensors[static_cast<size_t>(t)];
              EXPECT(Call(HVD_ALLREDUCE, name.c_str()).tensor(tensor, HVD_FLOAT32).submit(engine, &handle).ok());
              ++submitted;
              const hvd_code code = engine.submitter().wait(handle, 20000).code();
              EXPECT(code == HVD_NOT_RUNNING);
            });
          }
          while (submitted.load() < 3) std::this_thread::yield();
          const uint64_t start_ns = now_ns();
          EXPECT(engine.stop(5000).ok());
          expect_within(0.6, start_ns, "a stop while others wait");
          waits.open();
          for (std::thread& thread : waiting) thread.join();
        });
      }
    });
  }
}

// Rank 1's callback keeps it from the batch's second part, in which rank 0 sits by then.
TEST(stop_is_bounded_where_another_thread_sits_in_a_collective) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      Latch inside, submitted, stopped;
      std::atomic<int> rank_0_done{0};
      run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
        std::vector<float> values(4, 1), large(400000, 1);
        struct Context {
          Latch *inside, *stopped;
        } context{&inside, &stopped};
        const auto block = [](void* user, const hvd_status*) {
          static_cast<Context*>(user)->inside->open();
          static_cast<Context*>(user)->stopped->wait();
        };
        hvd_handle handles[2] = {0, 0};
        Call first(HVD_ALLREDUCE, "first");
        if (rank == 1) first.done(block, &context);
        EXPECT(first.tensor(values, HVD_FLOAT32).submit(engine, &handles[0]).ok());
        EXPECT(Call(HVD_BROADCAST, "second").root(1).tensor(large, HVD_FLOAT32).submit(engine, &handles[1]).ok());
        if (rank == 1) submitted.open();
        std::thread waiting([&] {
          EXPECT(!engine.submitter().wait(handles[1], 20000).ok());
          if (rank == 0) rank_0_done.store(1);
        });
        if (rank == 0) {
          inside.wait();
          submitted.wait();
          const uint64_t start_ns = now_ns();
          EXPECT(engine.stop(300).ok());
          expect_within(1.5, start_ns, "a stop that may take 0.3 s");
          stopped.open();
        }
        waiting.join();
      });
    });
  }
}

TEST(a_callback_that_stops_waits_or_asks_for_statistics_does_not_hang) {
  in_child(30, [&] {
    run_world(make_world(2, Wiring::kSharedMemory), [&](Engine& engine, int) {
      struct Context {
        Engine* engine;
        int stop_code;
        std::string statistics;
      } context{&engine, -1, ""};
      const auto ask = [](void* user, const hvd_status*) {
        auto* mine = static_cast<Context*>(user);
        mine->statistics = mine->engine->statistics();
        mine->stop_code = mine->engine->stop(1000).code();
      };
      std::vector<float> values(4, 1);
      EXPECT(Call(HVD_ALLREDUCE, "x").done(ask, &context).tensor(values, HVD_FLOAT32).run(engine).ok());
      EXPECT(context.stop_code == HVD_WOULD_DEADLOCK);
      EXPECT(context.statistics.find("\"shm\"") != std::string::npos);
      EXPECT(sum(engine, "y", values).ok());
    });
  });
}

TEST(statistics_answer_while_a_caller_waits) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
        std::vector<float> values(4, 1);
        if (rank == 0) {
          std::thread waiting([&] { EXPECT(sum(engine, "late", values).ok()); });
          const uint64_t start_ns = now_ns();
          for (int i = 0; i < 50; ++i) {
            EXPECT(engine.statistics().find("transport") != std::string::npos);
            sleep_ms(2);
          }
          expect_within(1.0, start_ns, "50 questions for statistics");
          EXPECT(sum(engine, "go", values).ok());
          waiting.join();
        } else {
          std::vector<float> other(4, 1);
          EXPECT(sum(engine, "go", other).ok());
          EXPECT(sum(engine, "late", values).ok());
        }
      });
    });
  }
}

TEST(a_start_whose_peers_never_come_ends_in_time) {
  in_child(20, [&] {
    EngineSettings settings;
    settings.start_timeout_ms = 300;
    std::vector<EngineOptions> world = make_world(2, Wiring::kSharedMemory, settings);
    std::unique_ptr<Engine> engine;
    const uint64_t start_ns = now_ns();
    const Status status = Engine::start(std::move(world[0]), &engine);
    EXPECT(has(status, HVD_UNAVAILABLE, {"0.3 s", "HOROVOD_START_TIMEOUT"}));
    expect_within(2, start_ns, "a start limited to 0.3 s");
    // Whoever comes later learns it as well.
    EXPECT(!Engine::start(std::move(world[1]), &engine).ok());
  });
}

TEST(a_start_without_descriptors_is_an_error_and_leaks_none) {
  if (kSanitized && !kEmulated) {
    std::printf("not run: the sanitizers themselves need descriptors\n");
    return;
  }
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      rlimit before{};
      EXPECT(getrlimit(RLIMIT_NOFILE, &before) == 0);
      int refused = 0;
      bool started = false;
      for (int more = 0; more < 12 && !started; ++more) {
        const int at_first = open_descriptors();
        {
          std::vector<EngineOptions> world = make_world(2, wiring);
          int highest = dup(0);
          close(highest);
          rlimit tight = before;
          tight.rlim_cur = static_cast<rlim_t>(highest + more);
          EXPECT(setrlimit(RLIMIT_NOFILE, &tight) == 0);
          std::vector<std::thread> ranks;
          std::atomic<int> good{0};
          std::unique_ptr<Engine> engines[2];
          for (size_t r = 0; r < 2; ++r) {
            ranks.emplace_back([&, r] { good += Engine::start(std::move(world[r]), &engines[r]).ok() ? 1 : 0; });
          }
          for (std::thread& thread : ranks) thread.join();
          EXPECT(setrlimit(RLIMIT_NOFILE, &before) == 0);
          started = good.load() == 2;
          refused += started ? 0 : 1;
          std::vector<std::thread> leaving;
          for (auto& engine : engines) {
            if (engine != nullptr) leaving.emplace_back([&] { EXPECT(engine->stop(2000).ok()); });
          }
          for (std::thread& thread : leaving) thread.join();
        }
        EXPECT(open_descriptors() == at_first);
      }
      EXPECT(refused > 0 && started);
    });
  }
}

TEST(a_result_too_large_for_memory_ends_the_job_and_says_so) {
  if (kSanitized && !kEmulated) {
    std::printf("not run: sanitizers end a program that asks for too much memory\n");
    return;
  }
  for (const bool waits : {true, false}) {
    in_child(20, [&] {
      run_world(make_world(2, Wiring::kSharedMemory), [&](Engine& engine, int) {
        std::vector<uint8_t> few(1);
        hvd_handle handle = 0;
        EXPECT(Call(HVD_ALLGATHER, "x").tensor(few, HVD_UINT8, {int64_t{1} << 46}).submit(engine, &handle).ok());
        while (!waits && engine.submitter().poll(handle).code() == HVD_PENDING) sleep_ms(1);
        EXPECT(has(engine.submitter().wait(handle, 10000), HVD_OUT_OF_MEMORY, {"`x`", "memory"}));
      });
    });
  }
}

// Rank 0 begins with one of them, rank 1 with the other: nobody waits for ever.
TEST(two_threads_of_a_rank_may_wait_for_different_operations_about_one_subject) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [](Engine& engine, int rank) {
      const auto one = [&](const char* name) {
        std::vector<float> values(4, 1);
        EXPECT(sum(engine, name, values).ok() && values[0] == 2);
      };
      const auto spread = [&] {
        std::vector<float> values(4, 1);
        EXPECT(Call(HVD_BROADCAST, "broadcast.k").root(0).tensor(values, HVD_FLOAT32).run(engine).ok());
      };
      one("main thread");
      std::thread other([&] {
        one("other thread");
        if (rank == 1) sleep_ms(300);
        one("allreduce.k");
      });
      if (rank == 0) sleep_ms(300);
      spread();
      other.join();
    });
  }
}

// The ranks wait for different operations about `k`; one of them asks for the other's from its callback, at once.
TEST(what_a_conflict_ended_can_be_submitted_from_the_callback) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
        struct Context {
          Engine* engine;
          std::string name;
          std::vector<float> values;
          hvd_handle handle = 0;
        };
        const auto follow = [](void* user, const hvd_status*) {
          auto* mine = static_cast<Context*>(user);
          Call call(HVD_ALLREDUCE, mine->name.c_str());
          EXPECT(call.tensor(mine->values, HVD_FLOAT32).submit(*mine->engine, &mine->handle).ok());
        };
        for (int round = 0; round < 5; ++round) {
          const std::string subject = "k" + std::to_string(round), other = "broadcast." + subject;
          Context context{&engine, "allreduce." + subject, std::vector<float>(4, 1)};
          std::vector<float> values(4, 1);
          if (rank == 1) {
            Call call(HVD_BROADCAST, other.c_str());
            const Status status = call.done(follow, &context).tensor(values, HVD_FLOAT32).run(engine);
            EXPECT(has(status, HVD_MISMATCH, {other.c_str(), context.name.c_str()}));
            EXPECT(engine.submitter().wait(context.handle, 10000).ok());
            engine.submitter().release(context.handle);
          } else {
            EXPECT(has(sum(engine, context.name, values), HVD_MISMATCH, {other.c_str(), context.name.c_str()}));
            EXPECT(sum(engine, context.name, context.values).ok());
          }
          EXPECT(context.values[0] == 2);
        }
      });
    });
  }
}

TEST(operations_about_one_subject_may_start_in_another_order_on_every_rank) {
  for (const Wiring wiring : kWirings) {
    in_child(30, [&] {
      std::atomic<int> first_submitted{0};
      run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
        std::vector<float> a(4, 1), b(4, static_cast<float>(rank));
        hvd_handle handles[2] = {0, 0};
        for (int i = 0; i < 2; ++i) {
          if ((i == 0) == (rank == 0)) {
            EXPECT(Call(HVD_ALLREDUCE, "allreduce.k").tensor(a, HVD_FLOAT32).submit(engine, &handles[0]).ok());
          } else {
            EXPECT(Call(HVD_BROADCAST, "broadcast.k").root(1).tensor(b, HVD_FLOAT32).submit(engine, &handles[1]).ok());
          }
          ++first_submitted;
          while (i == 0 && first_submitted.load() < 2) std::this_thread::yield();
          if (i == 0) EXPECT(engine.submitter().poll(handles[rank]).code() == HVD_PENDING);
          if (i == 0) sleep_ms(20);  // time for the coordinator to be wrong
        }
        for (const hvd_handle handle : handles) EXPECT(engine.submitter().wait(handle, 10000).ok());
        EXPECT(a[0] == 2 && b[0] == 1);
      });
    });
  }
}

TEST(requests_that_cannot_be_right_are_refused) {
  in_child(20, [&] {
    run_world(make_world(1, Wiring::kSharedMemory), [&](Engine& engine, int) {
      std::vector<float> values(4, 1);
      const int64_t shape = 4;
      hvd_tensor tensor{values.data(), values.data(), &shape, 1, HVD_FLOAT32};
      hvd_request request{};
      request.size = sizeof request;
      request.name = "x";
      request.tensors = &tensor;
      request.ntensors = 1;
      request.op = HVD_SUM;
      request.prescale = request.postscale = 1;
      std::shared_ptr<const Prepared> prepared;
      EXPECT(engine.submitter().prepare(request, &prepared).ok());
      for (const hvd_op op : {HVD_BITAND, HVD_BITOR, HVD_BITXOR}) {
        std::vector<int32_t> bits(4, 1);
        EXPECT(has(Call(HVD_REDUCESCATTER, "b").op(op).tensor(values, HVD_FLOAT32).run(engine), HVD_INVALID_ARGUMENT,
                   {name_of(op), "is for integers and bool, got float32"}));
        EXPECT(has(Call(HVD_ALLREDUCE, "b").op(op).scale(1, 2).tensor(bits, HVD_INT32).run(engine),
                   HVD_INVALID_ARGUMENT, {name_of(op), "cannot be scaled"}));
        EXPECT(Call(HVD_ALLREDUCE, "b").op(op).tensor(bits, HVD_UINT32).run(engine).ok());
      }
      EXPECT(has(Call(HVD_BROADCAST, "d").tensor(values, static_cast<hvd_dtype>(HVD_UINT64 + 1)).run(engine),
                 HVD_INVALID_ARGUMENT, {"unknown dtype 13"}));
      EXPECT(
          has(Call(HVD_ALLREDUCE, "o").op(static_cast<hvd_op>(HVD_BITXOR + 1)).tensor(values, HVD_FLOAT32).run(engine),
              HVD_INVALID_ARGUMENT, {"unsupported reduce operation 9"}));
      const void* const input = values.data();
      const void* const no_input = nullptr;
      void* const output = values.data();
      void* const no_output = nullptr;
      hvd_handle handle = 0;
      EXPECT(has(engine.submitter().submit(prepared, &input, &no_output, 0, &handle), HVD_INVALID_ARGUMENT,
                 {"`x`", "output"}));
      EXPECT(has(engine.submitter().submit(prepared, &input, nullptr, 0, &handle), HVD_INVALID_ARGUMENT,
                 {"`x`", "output"}));
      EXPECT(has(engine.submitter().submit(prepared, &no_input, &output, 0, &handle), HVD_INVALID_ARGUMENT,
                 {"`x`", "input"}));
      EXPECT(engine.submitter().submit(prepared, &input, &output, 0, &handle).ok());
      EXPECT(engine.submitter().wait(handle, 1000).ok());
      EXPECT(has(engine.submitter().refuse(std::string(5000, 'n').c_str(), 0, "why"), HVD_INVALID_ARGUMENT, {"4096"}));
    });
    run_world(make_world(2, Wiring::kSharedMemory), [&](Engine& engine, int rank) {
      std::vector<float> values(4, 1);
      const std::string odd = "n\n\t\"\\ \xff\xfe %s %n";
      if (rank == 1) {
        EXPECT(engine.submitter().refuse(odd.c_str(), 0, std::string(20 << 20, 'y')).ok());
      } else {
        EXPECT(has(sum(engine, odd, values), HVD_REFUSED, {"rank 1", "`n\\n\\x09\"\\ ", "yyy"}));
      }
      std::vector<float> after(4, 1);
      EXPECT(sum(engine, odd, after).ok());
    });
  });
}

TEST_MAIN
