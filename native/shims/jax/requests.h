// SPDX-License-Identifier: Apache-2.0
// The engine's side of a call of XLA. Calls of equal shape share a prepared request.
#pragma once

#include "horovod/horovod.h"
#include "shims/jax/collective.h"

namespace hvd::jax {

shims::Generation& generation();

// The submitter's side of a call. If `done` is not null, it is called with `user`. On a GPU, the inputs are complete
// once `stream` (CUstream) has done the work that is queued on it now.
struct Caller {
  hvd_done_fn done = nullptr;
  void* user = nullptr;
  void* stream = nullptr;
  bool on_gpu = false;
};

// Submits it in the running generation, and finds the device. If the call is wrong, the peers are told. The caller
// holds the generation.
int submit(const Collective& collective, const Caller& caller, hvd_handle* handle, hvd_status* status);

}  // namespace hvd::jax
