// SPDX-License-Identifier: Apache-2.0
// Operations on tensors that lie on a GPU, through the engine, with the stand-in as the GPU: ranks are threads.
#include <array>
#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "gpu/launched_calls.h"
#include "gpu_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

constexpr GpuWay kWays[] = {GpuWay::kHost, GpuWay::kNccl};

// Both ways, on one host and on several.
void run_worlds(int size, const std::function<void(Engine&, int)>& body) {
  for (const GpuWay way : kWays) {
    for (const Wiring wiring : {Wiring::kSharedMemory, Wiring::kSockets}) {
      run_world(make_world(size, wiring, with_gpu(way)), body);
      expect_no_races();
    }
  }
}

hvd_handle submitted(Engine& engine, const Gpu& gpu, float* gradient) {
  hvd_handle handle = 0;
  Call call = on_gpu(HVD_ALLREDUCE, "gradient", gpu);
  EXPECT(call.tensor(gradient, gradient, HVD_FLOAT32, {16}).submit(engine, &handle).ok());
  return handle;
}

}  // namespace

// First those in processes of their own: a GPU that was used before a fork is of no use after it.

TEST(whoever_settles_hears_of_an_error_that_nobody_has_waited_for) {
  in_child(30, [] {
    run_world(make_world(1, Wiring::kSharedMemory, with_gpu(GpuWay::kNccl)), [](Engine& engine, int rank) {
      const Gpu gpu(rank);
      float* const gradient = gpu.floats(16);
      standin_hold(gpu.stream);
      standin_fill(gpu.stream, gradient, 16, 1);
      hvd_handle handle = 0;
      Call call = on_gpu(HVD_ALLREDUCE, "gradient", gpu);
      call.tensor(gradient, gradient, HVD_FLOAT32, {16});
      EXPECT(call.submit(engine, &handle).ok());
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      standin_fail("cuEventQuery", 0, 700, 1 << 30);
      standin_release(gpu.stream);
      engine.submitter().release(handle);
      for (int i = 0; i < 2; ++i) EXPECT(has(engine.submitter().settle(20000), HVD_DEVICE_LOST, {"CUDA error 700"}));
      EXPECT(has(call.submit(engine, &handle), HVD_DEVICE_LOST, {"CUDA error 700"}));
    });
  });
}

// Until it is known which rank was lost, which takes a moment.
TEST(nobody_who_settles_meanwhile_hears_that_all_is_well) {
  in_child(30, [] {
    std::atomic<int> launched{0};
    run_world(make_world(2, Wiring::kSharedMemory, with_gpu(GpuWay::kNccl)), [&](Engine& engine, int rank) {
      const Gpu gpu(rank);
      float* const gradient = gpu.floats(16);
      standin_hold(gpu.stream);
      standin_fill(gpu.stream, gradient, 16, 1);
      const hvd_handle handle = submitted(engine, gpu, gradient);
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      for (++launched; launched < 2;) std::this_thread::yield();
      standin_fail("ncclCommGetAsyncError", 0, 6, 1 << 30);
      Status status;
      do {
        status = engine.submitter().settle(0);
      } while (status.code() == HVD_PENDING);
      EXPECT(has(status, HVD_RANK_LOST, {"NCCL error 6"}));
      standin_release(gpu.stream);
      engine.submitter().release(handle);
    });
  });
}

TEST(an_allreduce_waits_for_its_input_and_the_reader_for_its_result) {
  run_worlds(2, [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const gradient = gpu.floats(1000);
    for (int step = 0; step < 20; ++step) {
      standin_fill(gpu.stream, gradient, 1000, static_cast<float>(step + rank));
      hvd_handle handle = 0;
      EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu)
                 .tensor(gradient, gradient, HVD_FLOAT32, {1000})
                 .submit(engine, &handle)
                 .ok());
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      EXPECT(gpu.read(gradient, 1000)[999] == static_cast<float>(2 * step + 1));
      engine.submitter().release(handle);
    }
  });
}

TEST(a_staged_operation_is_launched_once_its_input_is_there) {
  run_world(make_world(1, Wiring::kSharedMemory, with_gpu(GpuWay::kHost)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const gradient = gpu.floats(64);
    standin_hold(gpu.stream);
    standin_fill(gpu.stream, gradient, 64, 3);
    hvd_handle handle = 0;
    EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu)
               .tensor(gradient, gradient, HVD_FLOAT32, {64})
               .submit(engine, &handle)
               .ok());
    // The input has not been computed.
    EXPECT(engine.submitter().poll_launch(handle).code() == HVD_PENDING);
    EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 50).code() == HVD_PENDING);
    standin_release(gpu.stream);
    EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
    EXPECT(gpu.read(gradient, 64)[63] == 3);
    EXPECT(engine.submitter().poll_launch(handle).ok());
    EXPECT(engine.submitter().settle(20000).ok());
    EXPECT(engine.submitter().poll(handle).ok());
    const std::string statistics = engine.statistics();
    const std::string key = "\"blocked_for_data_s\": ";
    EXPECT(std::stod(statistics.substr(statistics.find(key) + key.size())) >= 0.05);  // the first wait
    engine.submitter().release(handle);
  });
  expect_no_races();
}

TEST(every_operation_has_the_values_that_it_has_in_host_memory) {
  const int64_t copies_that_wait = standin_count().pageable_copies;
  run_worlds(3, [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    const auto mine = static_cast<float>(rank + 1);
    const auto run = [&](Call call) {
      hvd_handle handle = 0;
      const Status submitted = call.submit(engine, &handle);
      if (!submitted.ok()) std::printf("%s\n", submitted.text().c_str());
      EXPECT(submitted.ok());
      EXPECT(engine.submitter().wait(handle, 20000).ok());
      return handle;
    };
    float *const input = gpu.floats(6), *const output = gpu.floats(6), *const more = gpu.floats(100);
    standin_fill(gpu.stream, input, 6, mine);
    standin_fill(gpu.stream, more, 100, 10 * mine);
    engine.submitter().release(run(std::move(on_gpu(HVD_ALLREDUCE, "group", gpu)
                                                 .op(HVD_AVERAGE)
                                                 .tensor(input, output, HVD_FLOAT32, {6})
                                                 .tensor(more, more, HVD_FLOAT32, {100}))));
    EXPECT(gpu.read(output, 6) == std::vector<float>(6, 2) && gpu.read(more, 100) == std::vector<float>(100, 20));
    engine.submitter().release(
        run(std::move(on_gpu(HVD_ALLREDUCE, "most", gpu).op(HVD_MAX).tensor(input, output, HVD_FLOAT32, {6}))));
    EXPECT(gpu.read(output, 6) == std::vector<float>(6, 3));
    engine.submitter().release(
        run(std::move(on_gpu(HVD_BROADCAST, "weights", gpu).root(1).tensor(input, output, HVD_FLOAT32, {6}))));
    EXPECT(gpu.read(output, 6) == std::vector<float>(6, 2));
    engine.submitter().release(
        run(std::move(on_gpu(HVD_REDUCESCATTER, "parts", gpu).tensor(input, output, HVD_FLOAT32, {6}))));
    EXPECT(gpu.read(output, 2) == std::vector<float>(2, 6));
    for (const hvd_kind kind : {HVD_ALLGATHER, HVD_ALLTOALL}) {
      const hvd_handle handle =
          run(std::move(on_gpu(kind, name_of(kind), gpu).tensor(input, nullptr, HVD_FLOAT32, {6})));
      SubmissionPtr submission;
      Gathered* result = nullptr;
      EXPECT(engine.submitter().find_result(handle, 0, &submission, &result).ok());
      const auto count = static_cast<size_t>(result->shape[0]);
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      EXPECT(engine.submitter().copy_result(handle, 0, more, gpu.stream).ok());
      EXPECT(engine.submitter().copy_result(handle, 1, more, gpu.stream).code() == HVD_INVALID_ARGUMENT);
      engine.submitter().release(handle);  // the copy may not have begun
      const std::vector<float> values = gpu.read(more, count);
      EXPECT(count == (kind == HVD_ALLGATHER ? 18u : 6u));
      for (size_t i = 0; i < count; ++i) EXPECT(values[i] == static_cast<float>(i / (count / 3) + 1));
    }
  });
  EXPECT(standin_count().pageable_copies == copies_that_wait);
  expect_no_races();
}

// Its memory is lent: the next call must not get it before.
TEST(a_gathered_result_in_host_memory_stays_until_it_is_copied) {
  run_world(make_world(1, Wiring::kSharedMemory, with_gpu(GpuWay::kHost)), [](Engine& engine, int rank) {
    const Gpu gpu(rank), other(rank);
    float *const first = gpu.floats(16), *const second = gpu.floats(16);
    const auto gather = [&engine](const Gpu& on, float value, float* result, bool copies_later) {
      float* const input = on.floats(16);
      standin_fill(on.stream, input, 16, value);
      hvd_handle handle = 0;
      EXPECT(on_gpu(HVD_ALLGATHER, "rows", on).tensor(input, nullptr, HVD_FLOAT32, {16}).submit(engine, &handle).ok());
      EXPECT(engine.submitter().wait(handle, 20000).ok());
      EXPECT(engine.submitter().wait_on_stream(handle, on.stream, 20000).ok());
      if (copies_later) standin_hold(on.stream);
      EXPECT(engine.submitter().copy_result(handle, 0, result, on.stream).ok());
      engine.submitter().release(handle);
    };
    gather(gpu, 1, first, true);
    gather(other, 2, second, false);
    standin_release(gpu.stream);
    EXPECT(gpu.read(first, 16)[15] == 1 && other.read(second, 16)[15] == 2);
  });
  expect_no_races();
}

// As of hooks whose forward ran on different streams: of each stream, its latest tensor's moment counts.
TEST(tensors_of_several_streams_may_travel_in_one_batch) {
  run_worlds(2, [](Engine& engine, int rank) {
    const std::array<Gpu, 2> gpus{Gpu(rank), Gpu(rank)};
    constexpr const char* kNames[] = {"a", "b", "c", "d", "e", "f"};
    for (int step = 0; step < 20; ++step) {
      std::vector<std::pair<hvd_handle, float*>> calls;
      for (size_t i = 0; i < std::size(kNames); ++i) {
        const Gpu& gpu = gpus[i % 2];
        float* const gradient = gpu.floats(16);
        standin_fill(gpu.stream, gradient, 16, static_cast<float>(i));
        Call call = on_gpu(HVD_ALLREDUCE, kNames[i], gpu);
        calls.emplace_back(0, gradient);
        EXPECT(call.tensor(gradient, gradient, HVD_FLOAT32, {16}).submit(engine, &calls.back().first).ok());
      }
      for (size_t i = 0; i < calls.size(); ++i) {
        const auto [handle, gradient] = calls[i];
        EXPECT(engine.submitter().wait_on_stream(handle, gpus[0].stream, 20000).ok());
        EXPECT(gpus[0].read(gradient, 16)[15] == static_cast<float>(2 * i));
        engine.submitter().release(handle);
      }
    }
  });
}

// Rank 2 sends no rows, and gets some or none. Those of the others differ: few, none, and more than fits at once.
void exchange_rows(Engine& engine, int rank, int size, bool rank_2_gets_some) {
  const Gpu gpu(rank);
  const auto rows = [&](int from, int to) -> int64_t {
    if (from == 2 || (to == 2 && !rank_2_gets_some)) return 0;
    return from == 0 && to == 1 ? 40000 : from + 2 * to;  // none from 0 to itself
  };
  std::vector<int64_t> splits;
  for (int to = 0; to < size; ++to) splits.push_back(rows(rank, to));
  const int64_t sent = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  float* const mine = gpu.floats(static_cast<size_t>(sent) + 1);
  standin_fill(gpu.stream, mine, static_cast<size_t>(sent), static_cast<float>(rank + 1));
  hvd_handle handle = 0;
  EXPECT(on_gpu(HVD_ALLTOALL, "uneven", gpu)
             .splits(splits)
             .tensor(mine, nullptr, HVD_FLOAT32, {sent})
             .submit(engine, &handle)
             .ok());
  EXPECT(engine.submitter().wait(handle, 20000).ok());
  std::vector<float> expected;
  for (int from = 0; from < size; ++from) {
    expected.insert(expected.end(), static_cast<size_t>(rows(from, rank)), static_cast<float>(from + 1));
  }
  float* const result = gpu.floats(expected.size() + 1);
  EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
  EXPECT(engine.submitter().copy_result(handle, 0, result, gpu.stream).ok());
  engine.submitter().release(handle);
  EXPECT(gpu.read(result, expected.size()) == expected);
}

TEST(a_rank_without_rows_in_an_alltoall_keeps_nobody_waiting) {
  for (const int size : {3, 4}) {
    for (const bool some : {true, false}) {
      run_worlds(size, [&](Engine& engine, int rank) { exchange_rows(engine, rank, size, some); });
    }
  }
}

TEST(nccl_does_not_keep_the_host_waiting_for_the_input) {
  run_world(make_world(2, Wiring::kSharedMemory, with_gpu(GpuWay::kNccl)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const gradient = gpu.floats(64);
    standin_hold(gpu.stream);
    standin_fill(gpu.stream, gradient, 64, 3);
    hvd_handle handle = 0;
    EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu)
               .tensor(gradient, gradient, HVD_FLOAT32, {64})
               .submit(engine, &handle)
               .ok());
    EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
    EXPECT(engine.submitter().poll_launch(handle).ok() && engine.submitter().poll(handle).code() == HVD_PENDING);
    EXPECT(engine.submitter().wait(handle, 50).code() == HVD_PENDING);
    standin_release(gpu.stream);
    EXPECT(gpu.read(gradient, 64)[63] == 6);
    EXPECT(engine.submitter().wait(handle, 20000).ok());
    engine.submitter().release(handle);
  });
  expect_no_races();
}

TEST(a_name_is_free_once_its_operation_is_launched) {
  run_worlds(2, [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const gradient = gpu.floats(16);
    standin_fill(gpu.stream, gradient, 16, 1);
    std::vector<hvd_handle> handles;
    for (int i = 0; i < 5; ++i) {
      const hvd_handle handle = submitted(engine, gpu, gradient);
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      handles.push_back(handle);
    }
    EXPECT(gpu.read(gradient, 16)[15] == 32);
    for (const hvd_handle handle : handles) {
      EXPECT(engine.submitter().wait(handle, 20000).ok());
      engine.submitter().release(handle);
    }
  });
  expect_no_races();
}

// A rank that ends before it has used a GPU: the others cannot know whether it has one, and ask again each time.
TEST(ranks_that_cannot_meet_in_nccl_ask_it_for_no_ids) {
  const int64_t before = standin_count().unique_ids;
  run_world(make_world(2, Wiring::kSharedMemory, with_gpu(GpuWay::kBest)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    for (int step = 0; step < 20 && rank == 0; ++step) {
      float* const gradient = gpu.floats(16);
      standin_fill(gpu.stream, gradient, 16, 4);
      EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu).tensor(gradient, gradient, HVD_FLOAT32, {16}).run(engine, 0).ok());
      EXPECT(gpu.read(gradient, 16)[15] == 4);
    }
    hvd_handle join = 0;
    EXPECT(engine.submitter().join(&join).ok());
    EXPECT(engine.submitter().wait(join, 20000).ok());
    engine.submitter().release(join);
  });
  EXPECT(standin_count().unique_ids == before);
}

TEST(nothing_is_left_behind_by_a_hundred_generations) {
  standin_counts before{};
  for (int generation = 0; generation < 100; ++generation) {
    run_world(make_world(2, Wiring::kSharedMemory, with_gpu(GpuWay::kBest)), [](Engine& engine, int rank) {
      static const std::array<Gpu, 2> gpus{Gpu(0), Gpu(1)};
      static const std::array<float*, 2> gradients{gpus[0].floats(1000), gpus[1].floats(1000)};
      const Gpu& gpu = gpus[static_cast<size_t>(rank)];
      float* const gradient = gradients[static_cast<size_t>(rank)];
      standin_fill(gpu.stream, gradient, 1000, 1);
      hvd_handle handle = 0;
      EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu)
                 .tensor(gradient, gradient, HVD_FLOAT32, {1000})
                 .submit(engine, &handle)
                 .ok());
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      engine.submitter().release(handle);  // and the generation ends while the GPU is at work
    });
    if (generation == 10) before = standin_count();
  }
  const standin_counts after = standin_count();
  EXPECT(after.streams == before.streams && after.allocations == before.allocations);
  EXPECT(after.events <= before.events + 4 && after.pinned <= before.pinned + 2);
  EXPECT(after.pageable_copies == before.pageable_copies);
  expect_no_races();
}

// Who waits for tensors in host memory is not woken again and again for the sake of GPUs.
TEST(without_work_on_gpus_nobody_looks_at_them) {
  const LaunchedCalls none;
  EXPECT(none.look_again_in_ns(false, true) < 0 && none.look_again_in_ns(false, false) < 0);
  EXPECT(none.look_again_in_ns(true, false) > 0);
}

TEST(messages_between_gpus_arrive) {
  run_worlds(3, [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const mine = gpu.floats(1000);
    float* const theirs = gpu.floats(1000);
    const auto end = [&](hvd_handle handle) {
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      EXPECT(engine.submitter().wait(handle, 20000).ok());
      const SubmissionPtr done = engine.submitter().find(handle);
      const int64_t sender = done->results.empty() ? -1 : done->results[0].rows[0];
      engine.submitter().release(handle);
      return sender;
    };
    // From one rank, then from any.
    for (const int from : {(rank + 2) % 3, -1}) {
      standin_fill(gpu.stream, mine, 1000, static_cast<float>(rank + 1));
      hvd_handle sent = 0, received = 0;
      Call send = on_gpu(HVD_SEND, nullptr, gpu);
      EXPECT(send.root((rank + 1) % 3).tensor(mine, nullptr, HVD_FLOAT32, {1000}).submit(engine, &sent).ok());
      Call receive = on_gpu(HVD_RECEIVE, nullptr, gpu);
      EXPECT(receive.root(from).tensor(nullptr, theirs, HVD_FLOAT32, {1000}).submit(engine, &received).ok());
      EXPECT(end(received) == (rank + 2) % 3);
      end(sent);
      const float expected = static_cast<float>((rank + 2) % 3 + 1);
      EXPECT(gpu.read(theirs, 1000) == std::vector<float>(1000, expected));
    }
    EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
  });
}

TEST_MAIN
