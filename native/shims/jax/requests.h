// SPDX-License-Identifier: Apache-2.0
// The engine's side of a call of XLA: the generation that runs, and its prepared requests, which calls of equal shape
// share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "horovod/horovod.h"
#include "shims/generation.h"
#include "shims/jax/collective.h"

namespace hvd::jax {

// Never destroyed: compiled code may outlive the library's statics.
struct Generation : shims::Generation {
  struct Known {
    std::shared_ptr<hvd_entry> entry;  // null: the request has come once
    uint64_t used = 0;                 // the number of its last call
  };
  static constexpr size_t kMostKeys = 4096;  // shapes that never come back must not fill the memory
  std::mutex entries_mutex;
  std::map<std::string, Known> entries;  // by key
};
Generation& generation();

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
int submit(Collective* collective, const Caller& caller, hvd_handle* handle, hvd_status* status);

}  // namespace hvd::jax
