// SPDX-License-Identifier: Apache-2.0
#include "shims/jax/requests.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "shims/on_gpu.h"
#include "shims/refusal.h"

namespace hvd::jax {

namespace {

constexpr uint32_t kFlags = HVD_SYNC | HVD_URGENT;  // the program waits, at first in hvd_wait
std::atomic<int64_t> calls{0};

// Two collectives with equal keys have equal requests, but for the addresses.
std::string key_of(const Collective& collective) {
  const int32_t fixed[] = {collective.kind,      collective.op,     collective.process_set,
                           collective.root_rank, collective.device, static_cast<int32_t>(collective.name.size())};
  const double scales[] = {collective.prescale, collective.postscale};
  std::string key;
  const auto add = [&key](const void* bytes, size_t count) { key.append(static_cast<const char*>(bytes), count); };
  add(fixed, sizeof fixed);
  add(scales, sizeof scales);
  key += collective.name;
  for (const hvd_tensor& tensor : collective.tensors) {
    add(&tensor.ndim, sizeof tensor.ndim);
    add(&tensor.dtype, sizeof tensor.dtype);
    add(tensor.shape, sizeof(int64_t) * static_cast<size_t>(tensor.ndim));
  }
  return key;
}

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
  set_failure(status, HVD_INVALID_ARGUMENT,
              "the function was compiled for rank " + std::to_string(collective.member) + " of " +
                  std::to_string(collective.members) + ", and this is rank " + std::to_string(member) + " of " +
                  std::to_string(members) + "\nhint: jax.clear_caches() after hvd.init() with another number of ranks");
  return false;
}

hvd_request request_of(const Collective& collective, const Caller& caller) {
  hvd_request request{};
  request.size = sizeof request;
  request.kind = collective.kind;
  request.op = collective.op;
  request.process_set = collective.process_set;
  request.root_rank = collective.root_rank;
  request.flags = kFlags;
  request.ntensors = static_cast<uint32_t>(collective.tensors.size());
  request.tensor_size = sizeof(hvd_tensor);
  request.name = collective.name.empty() ? nullptr : collective.name.c_str();
  request.tensors = collective.tensors.data();
  request.prescale = collective.prescale;
  request.postscale = collective.postscale;
  request.done = caller.done;
  request.user = caller.user;
  if (collective.device >= 0) {
    request.place = HVD_ON_CUDA;
    request.device = collective.device;
  }
  return request;
}

// With the mutex. The half that was not used for longest: then it takes as many new keys until the next time.
void forget_old_half(std::map<std::string, Generation::Known>* entries) {
  std::vector<uint64_t> uses;
  for (const auto& [key, known] : *entries) uses.push_back(known.used);
  const auto middle = uses.begin() + static_cast<ptrdiff_t>(uses.size() / 2);
  std::nth_element(uses.begin(), middle, uses.end());
  std::erase_if(*entries, [last = *middle](const auto& item) { return item.second.used <= last; });
}

// The prepared request of a key; null for the first call.
int find_entry(const Collective& collective, const Caller& caller, std::shared_ptr<hvd_entry>* entry,
               hvd_status* status) {
  auto& entries = generation().entries;
  const std::string key = key_of(collective);
  const std::lock_guard lock(generation().entries_mutex);
  const bool is_first = !entries.contains(key);
  if (is_first && entries.size() >= Generation::kMostKeys) forget_old_half(&entries);
  Generation::Known& known = entries[key];
  known.used = static_cast<uint64_t>(calls.load());
  if (is_first) return HVD_OK;
  int code = HVD_OK;
  if (known.entry == nullptr) known.entry = generation().prepare(request_of(collective, caller), &code, status);
  *entry = known.entry;
  return code;
}

int submit_known(const Collective& collective, const Caller& caller, hvd_handle* handle, hvd_status* status) {
  std::shared_ptr<hvd_entry> entry;
  int code = find_entry(collective, caller, &entry, status);
  if (code != HVD_OK) return code;
  if (entry != nullptr) {
    code = shims::submit_entry(generation().context, entry.get(), collective.tensors, kFlags, caller.user,
                               caller.stream, handle, status);
    if (code != HVD_INVALID_ARGUMENT || collective.process_set == 0) return code;
    // The process set has been removed since, and another one may have its number.
    const std::lock_guard lock(generation().entries_mutex);
    generation().entries.erase(key_of(collective));
  }
  return shims::submit_once(generation().context, request_of(collective, caller), caller.stream, handle, status);
}

}  // namespace

Generation& generation() {
  static auto* const one = new Generation;
  return *one;
}

int submit(Collective* collective, const Caller& caller, hvd_handle* handle, hvd_status* status) {
  calls.fetch_add(1);
  if (generation().context == nullptr) {
    set_failure(status, HVD_NOT_RUNNING, generation().absence());
    return HVD_NOT_RUNNING;
  }
  int code = HVD_OK;
  if (caller.on_gpu) {
    code = shims::find_device(generation().context, collective->tensors, caller.stream, &collective->device, status);
  }
  if (code == HVD_OK) {
    code = is_same_place(*collective, status) ? submit_known(*collective, caller, handle, status) : status->code;
  }
  if (code != HVD_OK) shims::tell_refusal(generation().context, collective->name, collective->process_set, *status);
  return code;
}

}  // namespace hvd::jax

extern "C" {

// The generation that compiled functions belong to from here on; null: none, and those in flight end with hvd_stop,
// which is to follow.
HVD_EXPORT void hvd_jax_attach(hvd_context* context) {
  hvd::jax::Generation& generation = hvd::jax::generation();
  generation.attach(context);
  const std::lock_guard lock(generation.entries_mutex);
  generation.entries.clear();
}

// How often compiled functions have called.
HVD_EXPORT int64_t hvd_jax_calls(void) { return hvd::jax::calls.load(); }

}  // extern "C"
