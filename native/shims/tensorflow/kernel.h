// SPDX-License-Identifier: Apache-2.0
// The kernels: from TensorFlow's call to a request of the engine and back (step 4 of a gradient's way, for TensorFlow).
//
// Every collective is an asynchronous kernel: it submits and returns, the engine's thread runs it, and TensorFlow hears
// of it through its `done`. So no number of TensorFlow's threads is too small, and gradients overlap with the backward
// pass. A kernel instance is one node of a graph (or one cached call of eager code) and prepares its request once.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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
struct Collective {
  hvd_kind kind = HVD_ALLREDUCE;
  std::string name;  // as the other ranks know it; empty: matched by order
  int32_t process_set = 0;
  int32_t op = HVD_SUM;
  int32_t root_rank = -1;
  double prescale = 1.0, postscale = 1.0;
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

  // Submits; `user` goes to finished(). On a GPU, the inputs are what `stream` has computed by now. Needs the
  // generation held shared.
  int submit(hvd_request* request, void* user, void* stream, hvd_handle* handle, hvd_status* status);

 private:
  const Collective collective_;
  std::mutex mutex_;
  // Of the running generation. Null: there is none yet.
  using Entry = std::shared_ptr<hvd_entry>;

  // The request of the last shapes and dtypes; an entry from the second time on, so that shapes which never come back
  // cost little. Other calls may still submit it when it is replaced.
  std::vector<int64_t> key_;
  uint64_t generation_ = 0;
  Entry entry_;
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
// The text of a failure for people; its last line names the command that explains it.
std::string text_of(const hvd_status& status);

}  // namespace hvd::tensorflow
