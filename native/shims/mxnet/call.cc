// SPDX-License-Identifier: Apache-2.0
#include "shims/mxnet/call.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shims/collective.h"
#include "shims/generation.h"

namespace {

hvd_mxnet_api mxnet;

using hvd::shims::Generation;

// A call is submitted to the generation that it was made in, or to none. Never destroyed: MXNet's threads may outlive
// the library's statics.
Generation& generation() {
  static auto* const one = new Generation;
  return *one;
}

// MXNet keeps what has failed in a vector without a lock (ThreadedEngine::global_exception_refs_): a thread that
// completes a failed operation appends to it, and threads that pass over what depends on one search it. So we append
// one by one, and hvd_mxnet_fail has made room: nothing moves while another thread searches.
std::mutex failing;

// mxnet::engine::CallbackOnComplete: three words, which may be copied. `error` is a dmlc::Error, which MXNet copies.
struct OnComplete {
  void (*callback)(void* engine, void* operation, const void* error);
  void* engine;
  void* operation;

  void operator()() const { callback(engine, operation, nullptr); }

  void operator()(const char* text) const {
    alignas(16) char error[64];  // std::runtime_error has two words
    mxnet.make_error(error, text);
    {
      const std::lock_guard lock(failing);
      callback(engine, operation, error);
    }
    mxnet.end_error(error);
  }

  // The text ends with what horovod/mxnet/errors.py makes the exception of.
  void operator()(const hvd_status& status, uint64_t generation) const {
    const std::string text = "horovod: " + std::string(status.text) + "\n(code " + std::to_string(status.code) +
                             ", rank " + std::to_string(status.failed_rank) + ", generation " +
                             std::to_string(generation) + ")";
    (*this)(text.c_str());
  }
};

// The calls of a training step. Each has its part in it until it is submitted or will never be.
struct Step {
  std::mutex mutex;  // over the submissions, so that none comes after the last one
  uint32_t left;
};

// Leaves the step and calls `submit(is_last)` meanwhile. The step is gone with the last one.
template <typename Submit>
void leave(Step* step, const Submit& submit) {
  bool is_last = false;
  {
    const std::lock_guard lock(step->mutex);
    is_last = --step->left == 0;
    submit(is_last);
  }
  if (is_last) delete step;
}

// An NDArray of MXNet: one more handle of its memory, which lives as long.
struct FreeArray {
  void operator()(void* array) const { mxnet.free(array); }
};
using Array = std::unique_ptr<void, FreeArray>;

struct Call {
  hvd_request request;
  std::string name;
  std::vector<hvd_tensor> tensors;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<Array> inputs, outputs;
  Step* step = nullptr;
  uint64_t generation = 0;
  bool has_run = false;
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  OnComplete on_complete{};
};

// The same pointer for arrays that share memory: NDArray::ptr_, as shim.py has checked.
void* chunk_of(void* array) { return *static_cast<void**>(array); }

// The memory of an array. False if MXNet keeps it in a layout of its own.
bool find_memory(void* array, void** memory) {
  void* tensor = nullptr;
  if (mxnet.to_dlpack(array, &tensor) != 0) return false;
  *memory = *static_cast<void**>(tensor);  // DLTensor::data; MXNet gives no byte_offset
  mxnet.free_dlpack(tensor);
  return true;
}

// On the engine's driving thread. MXNet may delete the call as soon as it is told.
void finished(void* user, const hvd_status* outcome) {
  const auto* const call = static_cast<Call*>(user);
  const OnComplete on_complete = call->on_complete;
  const uint64_t generation = call->generation;
  hvd_release(call->context, call->handle);
  if (outcome->code == HVD_OK) {
    on_complete();
  } else {
    on_complete(*outcome, generation);
  }
}

// True once it is submitted; it may have ended then.
bool submit(Call* call, hvd_status* status) {
  for (size_t i = 0; i < call->tensors.size(); ++i) {
    void* const from = call->inputs[i].get();
    void* const to = call->outputs[i].get();
    void* input = nullptr;
    // MXNet runs no other function on this memory now, so its layout may change.
    if (mxnet.reorder != nullptr && chunk_of(from) == chunk_of(to)) mxnet.reorder(chunk_of(from));
    if (!find_memory(from, &input) || !find_memory(to, &call->tensors[i].output)) {
      hvd::shims::set_failure(status, HVD_INVALID_ARGUMENT, mxnet.last_error());
      return false;
    }
    call->tensors[i].input = input;
  }
  int code = HVD_INTERNAL;
  const auto submit_now = [&](bool is_last) {
    if (is_last) call->request.flags |= HVD_URGENT;
    code = hvd_submit(call->context, &call->request, &call->handle, status);
  };
  if (call->step == nullptr) {
    submit_now(true);
  } else {
    leave(std::exchange(call->step, nullptr), submit_now);
  }
  return code == HVD_OK;
}

}  // namespace

void hvd_mxnet_use(const hvd_mxnet_api* api) { mxnet = *api; }

uint64_t hvd_mxnet_attach(hvd_context* context) { return generation().attach(context); }

void* hvd_mxnet_new_step(uint32_t calls) { return new Step{.left = calls}; }

void* hvd_mxnet_new(const hvd_request* request, void* const* inputs, void* const* outputs, void* step) {
  auto call = std::make_unique<Call>();
  call->request = *request;
  call->name = request->name;
  call->tensors.assign(request->tensors, request->tensors + request->ntensors);
  const auto copy = [](void* array, std::vector<Array>* kept) {
    void* copied = nullptr;
    if (mxnet.copy(array, &copied) != 0) return false;
    kept->emplace_back(copied);
    return true;
  };
  for (size_t i = 0; i < call->tensors.size(); ++i) {
    hvd_tensor& tensor = call->tensors[i];
    call->shapes.emplace_back(tensor.shape, tensor.shape + tensor.ndim);
    tensor.shape = call->shapes.back().data();
    if (!copy(inputs[i], &call->inputs) || !copy(outputs[i], &call->outputs)) return nullptr;
  }
  call->request.name = call->name.c_str();
  call->request.tensors = call->tensors.data();
  call->request.done = finished;
  call->request.user = call.get();
  call->step = static_cast<Step*>(step);
  Generation& now = generation();
  const std::shared_lock lock(now.mutex);
  call->generation = now.number;
  return call.release();
}

void hvd_mxnet_run(void* /*run_context*/, void* on_complete, void* user) {
  auto* const call = static_cast<Call*>(user);
  const OnComplete done = *static_cast<const OnComplete*>(on_complete);
  const uint64_t generation_of_call = call->generation;
  call->has_run = true;
  call->on_complete = done;
  hvd_status status = hvd::shims::new_status();
  {
    Generation& now = generation();
    const std::shared_lock lock(now.mutex);
    if (now.context == nullptr || now.number != call->generation) {
      hvd::shims::set_failure(&status, HVD_NOT_RUNNING,
                              "Horovod was shut down before `" + call->name + "` could begin");
    } else {
      call->context = now.context;
      if (submit(call, &status)) return;
      hvd::shims::tell_refusal(now.context, call->name, call->request.process_set, status);
    }
  }
  done(status, generation_of_call);
}

void hvd_mxnet_fail(void* /*run_context*/, void* on_complete, void* /*user*/) {
  (*static_cast<const OnComplete*>(on_complete))("this only makes room for failures");
}

void hvd_mxnet_delete(void* user) {
  const std::unique_ptr<Call> call(static_cast<Call*>(user));
  if (call->step != nullptr) leave(call->step, [](bool) {});
  if (call->has_run) return;
  Generation& now = generation();
  const std::shared_lock lock(now.mutex);
  if (now.context != nullptr && now.number == call->generation) {
    hvd_refuse(now.context, call->name.c_str(), call->request.process_set,
               "an operation of MXNet that computes its tensor has failed", nullptr);
  }
}
