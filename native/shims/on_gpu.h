// SPDX-License-Identifier: Apache-2.0
// The shims' common steps for requests on tensors of a GPU.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "horovod/horovod.h"

namespace hvd::shims {

// The GPU of the tensors that have elements. If none has, that of the stream, on which their moment is recorded.
inline int find_device(hvd_context* context, std::span<const hvd_tensor> tensors, void* stream, int32_t* device,
                       hvd_status* status) {
  for (const hvd_tensor& tensor : tensors) {
    const bool has_elements = std::find(tensor.shape, tensor.shape + tensor.ndim, 0) == tensor.shape + tensor.ndim;
    if (has_elements) return hvd_device_of(context, tensor.input, device, status);
  }
  return hvd_device_of_stream(context, stream, device, status);
}

// Submits what was prepared. On a GPU, the inputs are what `stream` has computed by now.
inline int submit_entry(hvd_context* context, hvd_entry* entry, std::span<const hvd_tensor> tensors, uint32_t flags,
                        void* user, void* stream, hvd_handle* handle, hvd_status* status) {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const hvd_tensor& tensor : tensors) {
    inputs.push_back(tensor.input);
    outputs.push_back(tensor.output);
  }
  return hvd_submit_entry_on(context, entry, inputs.data(), outputs.data(), flags, user, stream, handle, status);
}

// Submits a request that will not come again. On a GPU, only one that is prepared can be given a stream.
inline int submit_once(hvd_context* context, const hvd_request& request, void* stream, hvd_handle* handle,
                       hvd_status* status) {
  if (request.place == HVD_ON_HOST) return hvd_submit(context, &request, handle, status);
  hvd_entry* entry = nullptr;
  int code = hvd_prepare(context, &request, &entry, status);
  if (code != HVD_OK) return code;
  code = submit_entry(context, entry, {request.tensors, request.ntensors}, request.flags, request.user, stream, handle,
                      status);
  hvd_release_entry(context, entry);
  return code;
}

}  // namespace hvd::shims
