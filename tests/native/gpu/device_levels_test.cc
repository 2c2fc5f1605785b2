// SPDX-License-Identifier: Apache-2.0
// Allreduce of GPUs on two levels, and what ends it, with the stand-in as the GPUs.
#include <barrier>
#include <cstddef>
#include <utility>
#include <vector>

#include "gpu_world.h"

using namespace hvd;

namespace {

EngineSettings on_two_levels(GpuLevels levels) {
  EngineSettings settings = with_gpu(GpuWay::kNccl);
  settings.gpu_levels = levels;
  return settings;
}

}  // namespace

// First those in processes of their own: a GPU that was used before a fork is of no use after it.

void abort_while_gpus_wait(const std::vector<int>& host_of_rank, const EngineSettings& settings) {
  in_child(30, [&] {
    std::barrier all_submitted(static_cast<std::ptrdiff_t>(host_of_rank.size()));
    run_world(make_world_on(host_of_rank, settings), [&](Engine& engine, int rank) {
      const Gpu gpu(rank);
      float* const gradient = gpu.floats(16);
      if (rank == 1) standin_hold(gpu.stream);  // its input never comes, so its peer waits inside NCCL
      standin_fill(gpu.stream, gradient, 16, 1);
      hvd_handle handle = 0;
      EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu)
                 .tensor(gradient, gradient, HVD_FLOAT32, {16})
                 .submit(engine, &handle)
                 .ok());
      all_submitted.arrive_and_wait();  // after an abort nothing can be submitted
      const Status launched = engine.submitter().wait_on_stream(handle, gpu.stream, rank == 1 ? 1000 : 20000);
      EXPECT(launched.ok() || launched.code() == HVD_PENDING || (rank != 1 && launched.code() == HVD_ABORTED));
      if (rank == 1) engine.abort(1, "rank 1 has had enough");
      EXPECT(has(engine.submitter().wait(handle, 20000), HVD_ABORTED, {"gradient", "rank 1 has had enough"}));
      engine.submitter().release(handle);
    });
  });
}

TEST(an_aborted_job_ends_what_waits_in_nccl) { abort_while_gpus_wait({0, 0}, with_gpu(GpuWay::kNccl)); }

TEST(an_aborted_job_ends_what_waits_on_two_levels) {
  for (const GpuLevels levels : {GpuLevels::kHierarchical, GpuLevels::kTorus}) {
    abort_while_gpus_wait({0, 0, 1, 1}, on_two_levels(levels));
  }
}

// Two hosts with two GPUs each. Tensors have fewer elements than a host has GPUs, and more than fit at once.
TEST(an_allreduce_on_two_levels_has_the_values_of_one_on_one) {
  for (const GpuLevels levels : {GpuLevels::kHierarchical, GpuLevels::kTorus}) {
    run_world(make_world_on({0, 0, 1, 1}, on_two_levels(levels)), [](Engine& engine, int rank) {
      const Gpu gpu(rank);
      for (const size_t count : {size_t{1}, size_t{7}, size_t{1000}, size_t{3} << 20}) {
        float *const input = gpu.floats(count), *const output = gpu.floats(count), *const more = gpu.floats(5);
        standin_fill(gpu.stream, input, count, static_cast<float>(rank + 1));
        standin_fill(gpu.stream, more, 5, static_cast<float>(10 * rank));
        const auto reduce = [&](Call call) {
          call.tensor(input, output, HVD_FLOAT32, {static_cast<int64_t>(count)}).tensor(more, more, HVD_FLOAT32, {5});
          hvd_handle handle = 0;
          EXPECT(call.submit(engine, &handle).ok());
          EXPECT(engine.submitter().wait_on_stream(handle, gpu.stream, 20000).ok());
          engine.submitter().release(handle);
        };
        reduce(std::move(on_gpu(HVD_ALLREDUCE, "sum", gpu).scale(2, 0.5)));
        EXPECT(gpu.read(output, count) == std::vector<float>(count, 10));
        EXPECT(gpu.read(more, 5) == std::vector<float>(5, 60));
        reduce(std::move(on_gpu(HVD_ALLREDUCE, "average", gpu).op(HVD_AVERAGE)));
        EXPECT(gpu.read(output, count) == std::vector<float>(count, 2.5F));
        reduce(std::move(on_gpu(HVD_ALLREDUCE, "most", gpu).op(HVD_MAX)));
        EXPECT(gpu.read(output, count) == std::vector<float>(count, 4));
        EXPECT(gpu.read(input, count) == std::vector<float>(count, static_cast<float>(rank + 1)));
      }
      // By NCCL among all of them.
      float* const weights = gpu.floats(6);
      standin_fill(gpu.stream, weights, 6, static_cast<float>(rank));
      EXPECT(
          on_gpu(HVD_BROADCAST, "weights", gpu).root(3).tensor(weights, weights, HVD_FLOAT32, {6}).run(engine, 0).ok());
      EXPECT(gpu.read(weights, 6) == std::vector<float>(6, 3));
      EXPECT(engine.statistics().find("\"batches_in_levels\": 12,") != std::string::npos);
    });
    expect_no_races();
  }
}

TEST(ranks_that_have_joined_give_zeros_on_two_levels) {
  for (const GpuLevels levels : {GpuLevels::kHierarchical, GpuLevels::kTorus}) {
    run_world(make_world_on({0, 0, 1, 1}, on_two_levels(levels)), [](Engine& engine, int rank) {
      const Gpu gpu(rank);
      float* const gradient = gpu.floats(16);
      for (int step = 0; step < (rank == 3 ? 1 : 3); ++step) {
        standin_fill(gpu.stream, gradient, 16, 1);
        EXPECT(
            on_gpu(HVD_ALLREDUCE, "gradient", gpu).tensor(gradient, gradient, HVD_FLOAT32, {16}).run(engine, 0).ok());
        EXPECT(gpu.read(gradient, 16)[15] == static_cast<float>(step == 0 ? 4 : 3));
      }
      hvd_handle join = 0;
      EXPECT(engine.submitter().join(&join).ok());
      EXPECT(engine.submitter().wait(join, 20000).ok());
      engine.submitter().release(join);
    });
    expect_no_races();
  }
}

// Three hosts' ranks do not come out even: all of NCCL is one level.
TEST(hosts_of_different_sizes_have_one_level) {
  run_world(make_world_on({0, 0, 1}, on_two_levels(GpuLevels::kTorus)), [](Engine& engine, int rank) {
    const Gpu gpu(rank);
    float* const gradient = gpu.floats(16);
    standin_fill(gpu.stream, gradient, 16, 1);
    EXPECT(on_gpu(HVD_ALLREDUCE, "gradient", gpu).tensor(gradient, gradient, HVD_FLOAT32, {16}).run(engine, 0).ok());
    EXPECT(gpu.read(gradient, 16)[15] == 3);
    EXPECT(engine.statistics().find("\"batches_in_levels\": 0,") != std::string::npos);
  });
}

TEST_MAIN
