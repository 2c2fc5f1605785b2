// SPDX-License-Identifier: Apache-2.0
// The handler for tensors on a GPU. It submits, waits until the operation is launched, and has XLA's stream wait for
// its end: the host does not. XLA's thread enqueues a program's work one call after the other, so to return before the
// launch would gain nothing.
//
// The next call reports a failure that follows the launch.
#include <mutex>
#include <shared_mutex>

#include "shims/jax/requests.h"

namespace hvd::jax {

namespace {

constexpr int kSliceMs = 1000;

int take_results(const Collective& collective, hvd_context* context, void* stream, hvd_handle handle,
                 hvd_status* status) {
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

int launch(const Collective& collective, void* stream, hvd_status* status) {
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  {
    const std::shared_lock held(generation().mutex);
    context = generation().context;
    const int code = submit(collective, {.stream = stream, .on_gpu = true}, &handle, status);
    if (code != HVD_OK) return code;
    hvd_hold(context);
  }
  // The generation may end now, and Python may free its context.
  int code = HVD_PENDING;
  while (code == HVD_PENDING) code = hvd_wait_on_stream(context, handle, stream, kSliceMs, status);
  if (code == HVD_OK && shims::is_ragged(collective.kind))
    code = take_results(collective, context, stream, handle, status);
  hvd_release(context, handle);
  hvd_free(context);
  return code;
}

// Null if all went well so far.
Error* run(const CallFrame& frame) {
  StreamGet asked{sizeof asked, nullptr, frame.context, nullptr};
  if (Error* const error = frame.api->stream_get(&asked); error != nullptr) return error;
  hvd_status status = shims::new_status();
  Collective collective;
  const std::string problem = read_frame(frame, &collective);
  if (!problem.empty()) shims::set_failure(&status, HVD_INVALID_ARGUMENT, problem);
  if (problem.empty() && launch(collective, asked.stream, &status) == HVD_OK) return nullptr;
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
