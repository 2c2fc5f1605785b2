// SPDX-License-Identifier: Apache-2.0
#include "shims/jax/requests.h"

#include <atomic>
#include <string>

namespace hvd::jax {

namespace {

constexpr size_t kMostEntries = 4096;  // shapes that never come back must not fill the memory
std::atomic<int64_t> calls{0};

bool depends_on_place(hvd_kind kind) {
  return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL || kind == HVD_REDUCESCATTER;
}

// True if the shapes that were computed when the program was compiled still hold.
bool is_same_place(const Collective& collective, hvd_status* status) {
  if (!depends_on_place(collective.kind)) return true;
  int32_t members = 0, member = 0;
  if (hvd_process_set_place(generation().context, collective.process_set, &members, &member, status) != HVD_OK) {
    return false;
  }
  if (members == collective.members && member == collective.member) return true;
  shims::set_failure(status, HVD_INVALID_ARGUMENT,
                     "the function was compiled for rank " + std::to_string(collective.member) + " of " +
                         std::to_string(collective.members) + ", and this is rank " + std::to_string(member) + " of " +
                         std::to_string(members) +
                         "\nhint: jax.clear_caches() after hvd.init() with another number of ranks; what was exported "
                         "has to be exported again");
  return false;
}

}  // namespace

shims::Generation& generation() {
  static auto* const one = new shims::Generation;  // never destroyed: compiled code may outlive the library's statics
  return *one;
}

int submit(const Collective& collective, const Caller& caller, hvd_handle* handle, hvd_status* status) {
  static auto* const entries = new shims::EntryCache(kMostEntries);  // never destroyed, too
  calls.fetch_add(1);
  hvd_context* const context = generation().context;
  if (context == nullptr) return shims::set_failure(status, HVD_NOT_RUNNING, generation().absence());
  hvd_request request = shims::request_of(collective, collective.tensors);
  request.flags = HVD_SYNC | HVD_URGENT;  // the program waits, at first in hvd_wait
  request.done = caller.done;
  request.user = caller.user;
  int code = HVD_OK;
  if (caller.on_gpu) {
    request.place = HVD_ON_CUDA;
    code = shims::find_device(context, collective.tensors, caller.stream, &request.device, status);
  }
  if (code == HVD_OK) {
    code = is_same_place(collective, status) ? entries->submit(&generation(), request, caller.stream, handle, status)
                                             : status->code;
  }
  if (code != HVD_OK) shims::tell_refusal(context, collective.name, collective.process_set, *status);
  return code;
}

}  // namespace hvd::jax

extern "C" {

// The generation that compiled functions belong to from here on; null: none, and those in flight end with hvd_stop,
// which is to follow.
HVD_EXPORT void hvd_jax_attach(hvd_context* context) { hvd::jax::generation().attach(context); }

// How often compiled functions have called.
HVD_EXPORT int64_t hvd_jax_calls(void) { return hvd::jax::calls.load(); }

}  // extern "C"
