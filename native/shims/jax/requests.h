// SPDX-License-Identifier: Apache-2.0
// The engine's side of a call of XLA: the generation that runs, and its prepared requests, which calls of equal shape
// share.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "horovod/horovod.h"
#include "shims/generation.h"
#include "shims/jax/collective.h"

namespace hvd::jax {

// Entries are freed with their context. Never destroyed: compiled code may outlive the library's statics.
struct Generation : shims::Generation {
  std::mutex entries_mutex;
  std::map<std::string, hvd_entry*> entries;  // by key; null: the request has come once
};
Generation& generation();

// Who submits. `done` gets `user`, unless it is null. `stream` (CUstream) has made the inputs, if they lie on a GPU.
struct Caller {
  hvd_done_fn done = nullptr;
  void* user = nullptr;
  void* stream = nullptr;
};

// Submits it in the running generation; the peers are told of what is wrong with it. The caller holds the generation.
int submit(const Collective& collective, const Caller& caller, hvd_handle* handle, hvd_status* status);

}  // namespace hvd::jax
