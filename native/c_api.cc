// SPDX-License-Identifier: Apache-2.0
// The C wall: turns C++ into codes and texts, catches everything, holds no logic.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "c_guard.h"
#include "c_structs.h"
#include "communicators/mpi/library.h"
#include "engine/engine.h"
#include "horovod/horovod.h"
#include "platform/exit_code.h"
#include "platform/fault_point.h"
#include "platform/private_descriptors.h"
#include "platform/stack_source.h"
#include "platform/time_limit.h"
#include "reduction/kernels.h"

namespace hvd {
extern const char* const kBuildId;  // made by the build: native/build_id.cmake
}

struct hvd_entry {
  std::shared_ptr<const hvd::Prepared> prepared;
};

struct hvd_context {
  hvd::ForkWatch forks;
  std::atomic<int> holders{1};
  std::unique_ptr<hvd::Engine> engine;
  std::mutex mutex;
  std::unordered_map<const hvd_entry*, std::unique_ptr<hvd_entry>> entries;
};

namespace {

using hvd::guarded;
using hvd::need;
using hvd::report;
using hvd::Status;
using hvd::text_or_empty;

// guarded(), of a function that needs nothing but the context.
template <class Body>
int with(const hvd_context* context, hvd_status* status, Body&& body) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context)}));
    return body();
  });
}

// Where the last field ends without which a struct makes no sense, and where those of the first version did.
constexpr size_t kLeastOptions = offsetof(hvd_options, host_of_rank) + sizeof(void*);
constexpr size_t kLeastRequest = offsetof(hvd_request, postscale) + sizeof(double);
constexpr size_t kLeastMpi = offsetof(hvd_mpi, byte) + sizeof(hvd_mpi::byte);
constexpr size_t kFirstSetting = offsetof(hvd_setting, value) + sizeof(void*);
constexpr size_t kFirstLink = offsetof(hvd_link, index) + sizeof(int32_t);
constexpr size_t kFirstTensor = offsetof(hvd_tensor, dtype) + sizeof(int32_t);

// A caller's request as this library lays it out.
struct Request {
  hvd_request request;
  std::vector<hvd_tensor> tensors;
};
Status read_request(const hvd_request* given, Request* out) {
  HVD_RETURN_IF_ERROR(need({{"request", given}}));
  HVD_RETURN_IF_ERROR(hvd::read_struct(given, given->size, kLeastRequest, "hvd_request", &out->request));
  hvd_request& request = out->request;
  HVD_RETURN_IF_ERROR(hvd::read_structs(request.tensors, request.ntensors, request.tensor_size, kFirstTensor,
                                        "hvd_tensor", &out->tensors));
  for (const hvd_tensor& tensor : out->tensors) {
    if (tensor.ndim > 0) HVD_RETURN_IF_ERROR(need({{"shape", tensor.shape}}));
  }
  if (request.nsplits > 0) HVD_RETURN_IF_ERROR(need({{"splits", request.splits}}));
  request.size = sizeof request;
  request.tensors = out->tensors.data();
  request.tensor_size = sizeof(hvd_tensor);
  return {};
}

Status read_options(const hvd_options& given, hvd::EngineOptions* out) {
  hvd_options in;
  std::vector<hvd_setting> settings;
  std::vector<hvd_link> links;
  HVD_RETURN_IF_ERROR(hvd::read_struct(&given, given.size, kLeastOptions, "hvd_options", &in));
  HVD_RETURN_IF_ERROR(
      hvd::read_structs(in.settings, in.nsettings, in.setting_size, kFirstSetting, "hvd_setting", &settings));
  HVD_RETURN_IF_ERROR(hvd::read_structs(in.links, in.nlinks, in.link_size, kFirstLink, "hvd_link", &links));
  if (in.world_size < 1 || in.rank < 0 || in.rank >= in.world_size || in.host_of_rank == nullptr) {
    return {HVD_INVALID_ARGUMENT, "expected 0 <= rank < world_size and a host for each rank"};
  }
  out->rank = in.rank;
  out->generation = in.generation;
  out->host_of_rank.assign(in.host_of_rank, in.host_of_rank + in.world_size);
  for (const int host : out->host_of_rank) {
    if (host < 0 || host >= in.world_size) return {HVD_INVALID_ARGUMENT, "a host index is out of range"};
  }
  HVD_RETURN_IF_ERROR(hvd::parse_settings(settings.data(), in.nsettings, &out->settings));
  for (const hvd_link& link : links) {
    const int fd = fcntl(link.fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) {
      for (const auto& made : out->links) hvd::close_private(made.fd);
      return {HVD_INVALID_ARGUMENT, "a link's descriptor cannot be duplicated: " + std::string(std::strerror(errno))};
    }
    hvd::keep_private(fd);
    out->links.push_back({link.peer, static_cast<hvd_purpose>(link.purpose), fd, link.index});
  }
  return {};
}

}  // namespace

extern "C" {

uint32_t hvd_abi_version(void) { return HVD_ABI_VERSION; }

const char* hvd_code_name(int32_t code) { return hvd::Status::name_of(code); }

int32_t hvd_cuda_version(const char* library, hvd_status* status) {
  std::shared_ptr<const hvd::cuda::Driver> driver;
  const int code = guarded(status, [&] { return hvd::cuda::Driver::open(text_or_empty(library), &driver); });
  return code == HVD_OK ? driver->version() : 0;
}

int32_t hvd_nccl_version(const char* library, const char* found, hvd_status* status) {
  int version = 0;
  guarded(status, [&] {
    return hvd::device_row(HVD_ON_CUDA)->version({text_or_empty(library), text_or_empty(found)}, &version);
  });
  return version;
}

int32_t hvd_dtype_bytes(int32_t dtype) {
  return static_cast<int32_t>(hvd::element_size(static_cast<hvd_dtype>(dtype)));
}

int64_t hvd_rows_of_member(int64_t rows, int32_t members, int32_t member) {
  return members < 1 ? 0 : hvd::rows_of_member(rows, members, member);
}

const char* hvd_build_info(void) {
  static const std::string info = [] {
    std::string text = "{\"version\": \"" HVD_VERSION "\", \"build\": \"" + std::string(hvd::kBuildId) +
                       "\", \"compiler\": \"" __VERSION__ "\"";
    text += ", \"instruction_sets\": [\"plain\"";
    for (const auto isa : {hvd::InstructionSet::kAvx2, hvd::InstructionSet::kAvx512}) {
      if (hvd::machine_has(isa)) text += std::string(", \"") + hvd::instruction_set_name(isa) + "\"";
    }
    return text + "]}";
  }();
  return info.c_str();
}

int hvd_use_mpi(const hvd_mpi* mpi, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(mpi)}));
    hvd_mpi given;
    HVD_RETURN_IF_ERROR(hvd::read_struct(mpi, mpi->size, kLeastMpi, "hvd_mpi", &given));
    return hvd::mpi::use(given);
  });
}

int hvd_start(const hvd_options* options, hvd_context** context, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(options), HVD_NEED(context)}));
    hvd::EngineOptions engine_options;
    HVD_RETURN_IF_ERROR(read_options(*options, &engine_options));
    auto made = std::make_unique<hvd_context>();
    HVD_RETURN_IF_ERROR(hvd::Engine::start(std::move(engine_options), &made->engine));
    *context = made.release();
    return {};
  });
}

int hvd_stop(hvd_context* context, uint32_t timeout_ms, hvd_status* status) {
  return with(context, status, [&] { return context->engine->stop(timeout_ms); });
}

void hvd_fail_at_exit(void) { hvd::fail_at_exit(); }

void hvd_limit_time(uint32_t timeout_ms, const char* text) {
  guarded(nullptr, [&]() -> Status {
    hvd::limit_time(timeout_ms, text_or_empty(text));
    return {};
  });
}

int hvd_end_seen(hvd_context* context, hvd_status* status) {
  return with(context, status, [&] { return context->engine->end_seen(); });
}

void hvd_hold(hvd_context* context) {
  if (context != nullptr) context->holders.fetch_add(1);
}

void hvd_free(hvd_context* context) {
  // A forked child must not join threads that it does not have: the memory is given up.
  if (context != nullptr && !hvd::in_forked_child() && context->holders.fetch_sub(1) == 1) delete context;
}

void hvd_abort(hvd_context* context, int32_t failed_rank, const char* text) {
  with(context, nullptr, [&]() -> Status {
    context->engine->abort(failed_rank, text == nullptr ? "aborted" : text);
    return {};
  });
}

int hvd_prepare(hvd_context* context, const hvd_request* request, hvd_entry** entry, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(entry)}));
    auto made = std::make_unique<hvd_entry>();
    Request ours;
    HVD_RETURN_IF_ERROR(read_request(request, &ours));
    HVD_RETURN_IF_ERROR(context->engine->submitter().prepare(ours.request, &made->prepared));
    *entry = made.get();
    const std::lock_guard lock(context->mutex);
    context->entries.emplace(*entry, std::move(made));
    return {};
  });
}

void hvd_release_entry(hvd_context* context, hvd_entry* entry) {
  with(context, nullptr, [&]() -> Status {
    const std::lock_guard lock(context->mutex);
    context->entries.erase(entry);
    return {};
  });
}

int hvd_submit_entry(hvd_context* context, hvd_entry* entry, const void* const* inputs, void* const* outputs,
                     uint32_t flags, hvd_handle* handle, hvd_status* status) {
  return hvd_submit_entry_on(context, entry, inputs, outputs, flags, nullptr, nullptr, handle, status);
}

int hvd_submit_entry_for(hvd_context* context, hvd_entry* entry, const void* const* inputs, void* const* outputs,
                         uint32_t flags, void* user, hvd_handle* handle, hvd_status* status) {
  return hvd_submit_entry_on(context, entry, inputs, outputs, flags, user, nullptr, handle, status);
}

int hvd_submit_entry_on(hvd_context* context, hvd_entry* entry, const void* const* inputs, void* const* outputs,
                        uint32_t flags, void* user, void* stream, hvd_handle* handle, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(entry), HVD_NEED(handle)}));
    return context->engine->submitter().submit(entry->prepared, inputs, outputs, flags, handle, user,
                                               static_cast<hvd::cuda::Stream>(stream));
  });
}

int hvd_run_entry(hvd_context* context, hvd_entry* entry, const void* input, void* output, int32_t timeout_ms,
                  hvd_handle* handle, hvd_status* status) {
  if (entry != nullptr && entry->prepared->tensors.size() > 1) {
    return report({HVD_INVALID_ARGUMENT,
                   "expected a request of one tensor, got " + std::to_string(entry->prepared->tensors.size())},
                  status);
  }
  const int submitted = hvd_submit_entry(context, entry, &input, &output, HVD_SYNC, handle, status);
  if (submitted != HVD_OK) {
    if (handle != nullptr) *handle = 0;
    return submitted;
  }
  const int outcome = hvd_wait(context, *handle, timeout_ms, status);
  if (outcome != HVD_OK) return outcome;
  hvd_release(context, *handle);
  *handle = 0;
  return HVD_OK;
}

int hvd_submit(hvd_context* context, const hvd_request* request, hvd_handle* handle, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(handle)}));
    std::shared_ptr<const hvd::Prepared> prepared;
    Request ours;
    HVD_RETURN_IF_ERROR(read_request(request, &ours));
    HVD_RETURN_IF_ERROR(context->engine->submitter().prepare(ours.request, &prepared));
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (const hvd_tensor& tensor : ours.tensors) {
      inputs.push_back(tensor.input);
      outputs.push_back(tensor.output);
    }
    return context->engine->submitter().submit(std::move(prepared), inputs.data(), outputs.data(), ours.request.flags,
                                               handle);
  });
}

int hvd_refuse(hvd_context* context, const char* name, int32_t process_set, const char* why, hvd_status* status) {
  return with(context, status, [&]() -> Status {
    return context->engine->submitter().refuse(name, process_set, why == nullptr ? "" : why);
  });
}

int hvd_add_process_set(hvd_context* context, const int32_t* ranks, uint32_t nranks, hvd_handle* handle,
                        hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(handle)}));
    if (nranks > 0) HVD_RETURN_IF_ERROR(need({HVD_NEED(ranks)}));
    return context->engine->submitter().add_process_set(ranks, nranks, handle);
  });
}

int hvd_remove_process_set(hvd_context* context, int32_t process_set, hvd_handle* handle, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(handle)}));
    return context->engine->submitter().remove_process_set(process_set, handle);
  });
}

int hvd_process_set_place(hvd_context* context, int32_t process_set, int32_t* members, int32_t* member,
                          hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(members), HVD_NEED(member)}));
    return context->engine->submitter().place_in_set(process_set, members, member);
  });
}

int hvd_join(hvd_context* context, hvd_handle* handle, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(handle)}));
    return context->engine->submitter().join(handle);
  });
}

int hvd_device_of(hvd_context* context, const void* address, int32_t* device, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(device)}));
    return context->engine->submitter().device_of(address, device);
  });
}

int hvd_device_of_stream(hvd_context* context, void* stream, int32_t* device, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(device)}));
    return context->engine->submitter().device_of_stream(static_cast<hvd::cuda::Stream>(stream), device);
  });
}

int hvd_wait(hvd_context* context, hvd_handle handle, int32_t timeout_ms, hvd_status* status) {
  const int code = with(context, status, [&] { return context->engine->submitter().wait(handle, timeout_ms); });
  if (code != HVD_PENDING) hvd::fault_point("waited");  // the caller has not come back yet
  return code;
}

int hvd_declare_blocked(hvd_context* context, const hvd_handle* handles, uint32_t nhandles, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context)}));
    if (nhandles > 0) HVD_RETURN_IF_ERROR(need({HVD_NEED(handles)}));
    context->engine->submitter().declare_blocked({handles, nhandles});
    return {};
  });
}

int hvd_missing(hvd_context* context, hvd_handle handle, int32_t* ranks, uint32_t* nranks, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(ranks), HVD_NEED(nranks)}));
    return context->engine->submitter().missing(handle, ranks, nranks);
  });
}

int hvd_poll(hvd_context* context, hvd_handle handle, hvd_status* status) {
  return with(context, status, [&] { return context->engine->submitter().poll(handle); });
}

int hvd_poll_launch(hvd_context* context, hvd_handle handle, hvd_status* status) {
  return with(context, status, [&] { return context->engine->submitter().poll_launch(handle); });
}

int hvd_wait_on_stream(hvd_context* context, hvd_handle handle, void* stream, int32_t timeout_ms, hvd_status* status) {
  return with(context, status, [&] {
    return context->engine->submitter().wait_on_stream(handle, static_cast<hvd::cuda::Stream>(stream), timeout_ms);
  });
}

int hvd_settle(hvd_context* context, int32_t timeout_ms, hvd_status* status) {
  return with(context, status, [&] { return context->engine->submitter().settle(timeout_ms); });
}

int hvd_get_result(hvd_context* context, hvd_handle handle, uint32_t index, hvd_result* result, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(result)}));
    hvd::SubmissionPtr submission;
    hvd::Gathered* gathered = nullptr;
    HVD_RETURN_IF_ERROR(context->engine->submitter().find_result(handle, index, &submission, &gathered));
    const bool on_gpu = gathered->on_device.data() != nullptr;
    hvd::write_struct<hvd_result>({result->size, static_cast<int32_t>(gathered->shape.size()), gathered->memory(),
                                   gathered->shape.data(), gathered->rows.data(), on_gpu ? HVD_ON_CUDA : HVD_ON_HOST,
                                   on_gpu ? submission->prepared->device->ordinal() : 0},
                                  result);
    return {};
  });
}

int hvd_copy_result(hvd_context* context, hvd_handle handle, uint32_t index, void* to, void* stream,
                    hvd_status* status) {
  return with(context, status, [&] {
    return context->engine->submitter().copy_result(handle, index, to, static_cast<hvd::cuda::Stream>(stream));
  });
}

void hvd_release(hvd_context* context, hvd_handle handle) {
  with(context, nullptr, [&]() -> Status {
    context->engine->submitter().release(handle);
    return {};
  });
}

int hvd_start_timeline(hvd_context* context, int32_t descriptor, const char* path, const char* session,
                       int32_t mark_cycles, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(context), HVD_NEED(path), HVD_NEED(session)}));
    return context->engine->start_timeline(descriptor, path, session, mark_cycles != 0);
  });
}

int hvd_stop_timeline(hvd_context* context, hvd_status* status) {
  return with(context, status, [&]() -> Status {
    context->engine->stop_timeline();
    return {};
  });
}

int64_t hvd_statistics(hvd_context* context, char* buffer, int64_t capacity) {
  int64_t needed = -1;
  with(context, nullptr, [&]() -> Status {
    const std::string text = context->engine->statistics();
    needed = static_cast<int64_t>(text.size());
    if (capacity > 0 && buffer != nullptr) {
      const size_t length = std::min<size_t>(text.size(), static_cast<size_t>(capacity) - 1);
      std::memcpy(buffer, text.data(), length);
      buffer[length] = '\0';
    }
    return {};
  });
  return needed;
}

void hvd_warn(hvd_context* context, const char* text) {
  with(context, nullptr, [&]() -> Status {
    context->engine->warn(text_or_empty(text));
    return {};
  });
}

void hvd_stack_source(int signal, int fd) { hvd::offer_stack_source(signal, fd); }

int hvd_fault_point(const char* specification, const char* point) {
  if (specification == nullptr || point == nullptr || !hvd::arm_fault_point(specification)) return 0;
  hvd::fault_point(point);
  return 1;
}

}  // extern "C"
