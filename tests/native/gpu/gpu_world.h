// SPDX-License-Identifier: Apache-2.0
// Worlds of ranks that have GPUs, which the stand-in is: ranks are threads.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "engine_world.h"
#include "standin/standin.h"

namespace hvd {

inline EngineSettings with_gpu(GpuWay way) {
  EngineSettings settings;
  settings.cuda_library = settings.nccl_library = HVD_STANDIN;
  for (GpuWay& one : settings.gpu_way) one = way;
  return settings;
}

// Of one rank: a stream as a framework has it, on a GPU of its own.
struct Gpu {
  explicit Gpu(int rank) : device(rank % STANDIN_DEVICES), stream(static_cast<cuda::Stream>(standin_stream(device))) {}
  float* floats(size_t count) const { return static_cast<float*>(standin_allocate(device, count * sizeof(float))); }
  // What the framework's optimizer would see, at once or later.
  std::vector<float> read(const float* from, size_t count) const {
    std::vector<float> values(count);
    standin_copy(stream, values.data(), from, count * sizeof(float));
    standin_drain(stream);
    return values;
  }

  int device;
  cuda::Stream stream;
};

// One request on tensors of a GPU, all of them float32.
inline Call on_gpu(hvd_kind kind, const char* name, const Gpu& gpu) {
  Call call(kind, name);
  call.on(gpu.device, gpu.stream);
  return call;
}

inline void expect_no_races() {
  const std::string found = standin_races();
  if (!found.empty()) std::printf("%s", found.c_str());
  EXPECT(found.empty());
}

}  // namespace hvd
