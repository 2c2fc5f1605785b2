// SPDX-License-Identifier: Apache-2.0
// The kernels: from TensorFlow's call to a request of the engine and back (step 4 of a gradient's way, for TensorFlow).
//
// Every collective is an asynchronous kernel: it submits and returns, the engine's thread runs it, and TensorFlow hears
// of it through its `done`. So no number of TensorFlow's threads is too small, and gradients overlap with the backward
// pass. A kernel instance is one node of a graph (or one cached call of eager code) and prepares its request once.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "shims/collective.h"
#include "shims/generation.h"
#include "shims/tensorflow/api.h"
#include "shims/tensorflow/gpu_stream.h"
#include "shims/tensorflow/steps.h"

namespace hvd::tensorflow {

// The running generation, and this rank's place on its host, which is set before it is attached.
extern shims::Generation generation;
extern std::atomic<int32_t> local_rank, local_size;
// Where kernels on a GPU take its stream; null: they get their tensors in host memory.
extern std::atomic<EigenDevice> eigen_device;
// True if these kernels could get their tensors on the GPU with another setting.
extern std::atomic<bool> may_stay_on_gpu;

// A node's attributes. Fixed for the kernel's life.
struct Collective : shims::Collective {
  int first_tensor = 0;  // inputs before it are not tensors of the operation
  bool is_gradient = false;
  bool on_gpu = false;         // a kernel for a GPU, whose tensors are there if eigen_device is set
  std::shared_ptr<Step> step;  // gradients: the others of the same step
};

class Kernel {
 public:
  explicit Kernel(Collective collective) : collective_(std::move(collective)) {}
  ~Kernel();
  const Collective& collective() const { return collective_; }

  shims::EntryCache& entries() { return entries_; }

 private:
  const Collective collective_;
  shims::EntryCache entries_;  // of the last shapes and dtypes
};

// A question to HorovodPlace: "rank", "size", "included" in a process set; "local_rank", "local_size".
struct PlaceQuery {
  std::string what;
  int32_t process_set;
};

// The functions that TensorFlow calls.
void compute_place(void* query, TF_OpKernelContext* context);
void compute_collective(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done);
void delete_collective(void* kernel);

// Sets the kernel's failure from a status of the engine.
void fail(TF_OpKernelContext* context, const hvd_status& status);
void fail(TF_OpKernelContext* context, Code code, const char* text);

}  // namespace hvd::tensorflow
