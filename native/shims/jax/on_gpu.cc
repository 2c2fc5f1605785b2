// SPDX-License-Identifier: Apache-2.0
// The handler for tensors on a GPU. It submits, waits until the operation is launched, and has XLA's stream wait for its
// end: the host does not. Its thread enqueues a program's work one call after the other. So a call that would return
// earlier could let nothing overtake it.
//
// What fails after the launch is told by the next call.
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "shims/jax/requests.h"

namespace hvd::jax {

namespace {

constexpr int kSliceMs = 20;  // between two, the generation may end

// The device of the tensors that have elements.
int find_device(Collective* collective, hvd_status* status) {
  for (const hvd_tensor& tensor : collective->tensors) {
    bool is_empty = false;
    for (int32_t d = 0; d < tensor.ndim; ++d) is_empty = is_empty || tensor.shape[d] == 0;
    if (!is_empty) return hvd_device_of(generation().context, tensor.input, &collective->device, status);
  }
  return HVD_OK;
}

int start(Collective* collective, void* stream, hvd_handle* handle, hvd_status* status) {
  if (generation().context != nullptr && find_device(collective, status) != HVD_OK) return status->code;
  return submit(*collective, {nullptr, nullptr, stream}, handle, status);
}

int take_results(const Collective& collective, void* stream, hvd_handle handle, hvd_status* status) {
  hvd_context* const context = generation().context;
  for (size_t i = 0; i < collective.tensors.size(); ++i) {
    hvd_result result{};
    result.size = sizeof result;
    const auto index = static_cast<uint32_t>(i);
    if (hvd_get_result(context, handle, index, &result, status) != HVD_OK) return status->code;
    if (!rows_are_equal(collective, i, result, status)) return status->code;
    void* const to = collective.tensors[i].output;
    if (hvd_copy_result(context, handle, index, to, stream, status) != HVD_OK) return status->code;
  }
  return HVD_OK;
}

int launch(Collective* collective, void* stream, hvd_status* status) {
  hvd_handle handle = 0;
  std::shared_lock held(generation().mutex);
  const uint64_t number = generation().number;
  int code = start(collective, stream, &handle, status);
  if (code != HVD_OK) return code;
  while ((code = hvd_wait_on_stream(generation().context, handle, stream, kSliceMs, status)) == HVD_PENDING) {
    held.unlock();
    std::this_thread::yield();
    held.lock();
    if (generation().number != number) {
      set_failure(status, HVD_NOT_RUNNING,
                  "Horovod was shut down while a compiled function waited for the other ranks.");
      return HVD_NOT_RUNNING;
    }
  }
  if (code == HVD_OK && is_ragged(collective->kind)) code = take_results(*collective, stream, handle, status);
  hvd_release(generation().context, handle);
  return code;
}

// Null if all went well so far.
Error* run(const CallFrame& frame) {
  StreamGet asked{sizeof asked, nullptr, frame.context, nullptr};
  if (Error* const error = frame.api->stream_get(&asked); error != nullptr) return error;
  hvd_status status{};
  status.size = sizeof status;
  Collective collective;
  const std::string problem = read_frame(frame, &collective);
  if (!problem.empty()) set_failure(&status, HVD_INVALID_ARGUMENT, problem);
  if (problem.empty() && launch(&collective, asked.stream, &status) == HVD_OK) return nullptr;
  return error_of(frame.api, status, collective.tree);
}

}  // namespace

}  // namespace hvd::jax

extern "C" {

// The handler that XLA calls in programs for CUDA. Null if all went well.
HVD_EXPORT void* hvd_jax_collective_on_gpu(hvd::jax::CallFrame* frame) {
  return hvd::jax::answer_question(*frame) ? nullptr : hvd::jax::run(*frame);
}

}  // extern "C"
