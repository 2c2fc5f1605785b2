// SPDX-License-Identifier: Apache-2.0
// NCCL on several streams of a GPU, with the stand-in as the GPUs.
#include <atomic>
#include <thread>
#include <vector>

#include "gpu_world.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

EngineSettings with_streams(uint64_t streams) {
  EngineSettings settings = with_gpu(GpuWay::kNccl);
  settings.nccl_streams = streams;
  return settings;
}

Call reduce(const char* name, const Gpu& gpu, float* values) {
  Call call = on_gpu(HVD_ALLREDUCE, name, gpu);
  call.tensor(values, values, HVD_FLOAT32, {16});
  return call;
}

}  // namespace

TEST(what_waits_for_its_input_does_not_hold_up_the_next_stream) {
  run_world(make_world(2, Wiring::kSharedMemory, with_streams(2)), [](Engine& engine, int rank) {
    const Gpu late(rank), soon(rank);
    float *const late_values = late.floats(16), *const soon_values = soon.floats(16);
    standin_hold(late.stream);
    standin_fill(late.stream, late_values, 16, 1);
    hvd_handle first = 0, second = 0;
    EXPECT(reduce("late", late, late_values).submit(engine, &first).ok());
    EXPECT(engine.submitter().wait_on_stream(first, late.stream, 20000).ok());

    standin_fill(soon.stream, soon_values, 16, 2);
    EXPECT(reduce("soon", soon, soon_values).submit(engine, &second).ok());
    EXPECT(engine.submitter().wait(second, 20000).ok());
    EXPECT(soon.read(soon_values, 16)[15] == 4);
    EXPECT(engine.submitter().poll(first).code() == HVD_PENDING);

    standin_release(late.stream);
    EXPECT(engine.submitter().wait(first, 20000).ok());
    EXPECT(late.read(late_values, 16)[15] == 2);
    engine.submitter().release(first);
    engine.submitter().release(second);
  });
  expect_no_races();
}

// Its tensors have three types, of which NCCL does not know one: three batches.
TEST(a_call_has_ended_when_all_its_streams_have) {
  run_world(make_world(2, Wiring::kSharedMemory, with_streams(3)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    for (int step = 0; step < 7; ++step) {
      float *const floats = gpu.floats(16), *const doubles = gpu.floats(32), *const shorts = gpu.floats(8);
      standin_fill(gpu.stream, floats, 16, 1);
      standin_fill(gpu.stream, doubles, 32, 0);
      standin_fill(gpu.stream, shorts, 8, 0);
      Call call = on_gpu(HVD_ALLREDUCE, "mixed", gpu);
      call.tensor(floats, floats, HVD_FLOAT32, {16})
          .tensor(doubles, doubles, HVD_FLOAT64, {16})
          .tensor(shorts, shorts, HVD_INT16, {16});
      hvd_handle handle = 0;
      EXPECT(call.submit(engine, &handle).ok());
      EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
      EXPECT(gpu.read(floats, 16)[15] == 2);
      EXPECT(gpu.read(doubles, 32)[31] == 0);
      EXPECT(gpu.read(shorts, 8)[7] == 0);
      engine.submitter().release(handle);
    }
  });
  expect_no_races();
}

TEST(a_rank_that_has_joined_gives_zeros_on_all_streams) {
  run_world(make_world(2, Wiring::kSharedMemory, with_streams(2)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const values = gpu.floats(16);
    const int steps = rank == 0 ? 1 : 5;
    for (int step = 0; step < steps; ++step) {
      standin_fill(gpu.stream, values, 16, 1);
      EXPECT(reduce("values", gpu, values).run(engine, 0).ok());
      EXPECT(gpu.read(values, 16)[15] == (step == 0 ? 2 : 1));
    }
    hvd_handle join = 0;
    EXPECT(engine.submitter().join(&join).ok());
    EXPECT(engine.submitter().wait(join, 20000).ok());
    engine.submitter().release(join);
  });
  expect_no_races();
}

TEST(a_callers_stream_goes_on_beside_a_call_that_is_waited_for_later) {
  std::atomic<bool> is_over{false};
  run_world(make_world(2, Wiring::kSharedMemory, with_streams(1)), [&](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float *const values = gpu.floats(16), *const others = gpu.floats(16);
    if (rank == 1) standin_hold(gpu.stream);
    standin_fill(gpu.stream, values, 16, 1);
    hvd_handle handle = 0;
    EXPECT(reduce("values", gpu, values).submit(engine, &handle).ok());
    while (engine.submitter().poll_launch(handle).code() == HVD_PENDING) std::this_thread::yield();
    if (rank == 0) {
      std::atomic<bool> has_gone_on{false};
      standin_fill(gpu.stream, others, 1, 3);
      std::thread framework([&] {
        standin_drain(gpu.stream);
        has_gone_on.store(true);
      });
      const uint64_t began = now_ns();
      while (!has_gone_on.load() && now_ns() - began < kPatience * uint64_t{5} * 1000000000) std::this_thread::yield();
      EXPECT(has_gone_on.load());
      is_over.store(true);
      framework.join();
    }
    while (!is_over.load()) std::this_thread::yield();
    if (rank == 1) standin_release(gpu.stream);
    EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
    EXPECT(gpu.read(values, 16)[15] == 2);
    EXPECT(engine.submitter().wait(handle, 20000).ok());
    engine.submitter().release(handle);
  });
  expect_no_races();
}

TEST(a_stream_that_cannot_be_made_leaves_the_others) {
  EngineSettings settings = with_streams(2);
  settings.warnings = false;
  standin_fail("ncclCommInitRankConfig", 2, 5, 2);  // the second stream's
  run_world(make_world(2, Wiring::kSharedMemory, settings), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const values = gpu.floats(16);
    for (int step = 0; step < 3; ++step) {
      standin_fill(gpu.stream, values, 16, 1);
      EXPECT(reduce("values", gpu, values).run(engine, 0).ok());
      EXPECT(gpu.read(values, 16)[15] == 2);
    }
    EXPECT(engine.statistics().find("\"batches_by_nccl\": 3,") != std::string::npos);
  });
  expect_no_races();
}

TEST(a_process_gives_nccl_one_gpu_whatever_the_stream) {
  run_world(make_world(2, Wiring::kSharedMemory, with_streams(2)), [](Engine& engine, int rank) {
    const Gpu mine(rank), other(rank + 2);
    EXPECT(reduce("first", mine, mine.floats(16)).run(engine, 0).ok());
    // Both are wrong, and either may hear of the other's error first.
    EXPECT(has(reduce("second", other, other.floats(16)).run(engine, 0), HVD_INVALID_ARGUMENT,
               {"a process gives NCCL tensors of one GPU, got GPU "}));
  });
}

TEST_MAIN
