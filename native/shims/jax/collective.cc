// SPDX-License-Identifier: Apache-2.0
#include "shims/jax/collective.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <thread>

#include "shims/generation.h"
#include "shims/refusal.h"

namespace hvd::jax {

namespace {

constexpr uint32_t kFlags = HVD_SYNC | HVD_URGENT;  // somebody waits, at first in hvd_wait
// How long the handler drives the engine itself, as that is the fastest way; a thread of XLA is blocked meanwhile.
constexpr int kMomentMs = 1;
constexpr size_t kMostKeys = 4096;  // shapes that never come back must not fill the memory
// XLA's dtype by hvd_dtype.
constexpr int32_t kXlaDtype[] = {6, 2, 3, 4, 5, 10, 16, 11, 12, 1};

// Entries are freed with their context. Never destroyed: compiled code may outlive the library's statics.
struct Generation : shims::Generation {
  std::mutex entries_mutex;
  std::map<std::string, hvd_entry*> entries;  // by key; null: the request has come once
};
Generation& generation() {
  static auto* const one = new Generation;
  return *one;
}

// A collective from its submission until its end, and XLA's side of it.
struct Call {
  enum State : int { kUnderWay, kDone, kLeft };  // kLeft: the handler has returned, so finished() tells XLA

  Collective collective;
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  const Api* api = nullptr;
  Future* future = nullptr;
  hvd_status outcome{};
  std::atomic<int> state{kUnderWay};
};

void finished(void* call, const hvd_status* outcome);

// Two collectives with equal keys have equal requests, but for the addresses.
std::string key_of(const Collective& collective) {
  const int32_t fixed[] = {collective.kind, collective.op, collective.process_set, collective.root_rank,
                           static_cast<int32_t>(collective.name.size())};
  const double scales[] = {collective.prescale, collective.postscale};
  std::string key;
  const auto add = [&key](const void* bytes, size_t count) { key.append(static_cast<const char*>(bytes), count); };
  add(fixed, sizeof fixed);
  add(scales, sizeof scales);
  key += collective.name;
  for (const hvd_tensor& tensor : collective.tensors) {
    add(&tensor.ndim, sizeof tensor.ndim + sizeof tensor.dtype);
    add(tensor.shape, sizeof(int64_t) * static_cast<size_t>(tensor.ndim));
  }
  return key;
}

hvd_request request_of(const Collective& collective) {
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
  request.done = finished;
  return request;
}

// The prepared request of a key from the second time on; null before. The caller holds the generation.
int find_entry(const Collective& collective, hvd_entry** entry, hvd_status* status) {
  auto& entries = generation().entries;
  std::string key = key_of(collective);
  const std::lock_guard lock(generation().entries_mutex);
  const auto found = entries.find(key);
  if (found == entries.end()) {
    if (entries.size() >= kMostKeys) std::erase_if(entries, [](const auto& item) { return item.second == nullptr; });
    entries.emplace(std::move(key), nullptr);
    return HVD_OK;
  }
  if (found->second == nullptr) {
    const hvd_request request = request_of(collective);
    const int code = hvd_prepare(generation().context, &request, &found->second, status);
    if (code != HVD_OK) return code;
  }
  *entry = found->second;
  return HVD_OK;
}

// The caller holds the generation.
int submit(Call* call, hvd_status* status) {
  const Collective& collective = call->collective;
  hvd_context* const context = call->context;
  hvd_entry* entry = nullptr;
  int code = find_entry(collective, &entry, status);
  if (code != HVD_OK) return code;
  if (entry != nullptr) {
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (const hvd_tensor& tensor : collective.tensors) {
      inputs.push_back(tensor.input);
      outputs.push_back(tensor.output);
    }
    const bool is_global = collective.process_set == 0;
    code = hvd_submit_entry_for(context, entry, inputs.data(), outputs.data(), kFlags, call, &call->handle, status);
    if (code != HVD_INVALID_ARGUMENT || is_global) return code;
    // The process set has been removed since, and another one may have its number.
    const std::lock_guard lock(generation().entries_mutex);
    generation().entries.erase(key_of(collective));
  }
  hvd_request request = request_of(collective);
  request.user = call;
  return hvd_submit(context, &request, &call->handle, status);
}

void set_failure(hvd_status* status, int code, std::string_view text) {
  status->code = code;
  status->text[text.copy(status->text, sizeof status->text - 1)] = '\0';
}

bool depends_on_place(hvd_kind kind) {
  return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL || kind == HVD_REDUCESCATTER;
}

// Whether shapes that were computed when the program was compiled still hold.
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

// Copies the results of an operation whose size the engine knows only when it is done.
void take_results(Call* call) {
  const Collective& collective = call->collective;
  hvd_status* const status = &call->outcome;
  for (size_t i = 0; i < collective.tensors.size(); ++i) {
    const hvd_tensor& tensor = collective.tensors[i];
    hvd_result result{};
    result.size = sizeof result;
    if (hvd_get_result(call->context, call->handle, static_cast<uint32_t>(i), &result, status) != HVD_OK) return;
    const int64_t expected = collective.rows[i] / (collective.kind == HVD_ALLGATHER ? 1 : collective.members);
    for (int32_t member = 0; member < collective.members; ++member) {
      if (result.rows[member] == expected) continue;
      set_failure(status, HVD_MISMATCH,
                  std::string(collective.kind == HVD_ALLGATHER ? "allgather" : "alltoall") +
                      (collective.name.empty() ? "" : " of `" + collective.name + "`") +
                      ": a compiled function needs the same number of rows from every rank: expected " +
                      std::to_string(expected) + " as on this rank, got " + std::to_string(result.rows[member]) +
                      " from member " + std::to_string(member) +
                      "\nhint: call it outside of jax.jit, or fill up the rows");
      return;
    }
    auto bytes = static_cast<size_t>(hvd_dtype_bytes(tensor.dtype));
    for (int32_t d = 0; d < result.ndim; ++d) bytes *= static_cast<size_t>(result.shape[d]);
    if (bytes > 0) std::memcpy(tensor.output, result.data, bytes);
  }
}

std::string_view string_of(const void* value) { return static_cast<const Span*>(value)->view(); }

// Attributes are int64, double or a string, as their names say.
bool read_attribute(std::string_view name, int32_t type, const void* value, Collective* collective) {
  if (name == "name" || name == "keys" || name == "checksums") {
    if (type != kStringAttribute) return false;
    if (name == "name") collective->name = string_of(value);
    if (name == "keys") collective->tree.keys = string_of(value);
    if (name == "checksums") read_checksums(string_of(value), &collective->tree);
    return true;
  }
  if (type != kScalarAttribute) return false;
  const void* const scalar = static_cast<const Scalar*>(value)->value;
  if (name == "prescale" || name == "postscale") {
    std::memcpy(name == "prescale" ? &collective->prescale : &collective->postscale, scalar, sizeof(double));
    return true;
  }
  int64_t number = 0;
  std::memcpy(&number, scalar, sizeof number);
  const auto narrow = static_cast<int32_t>(number);
  if (name == "kind") collective->kind = static_cast<hvd_kind>(narrow);
  if (name == "op") collective->op = narrow;
  if (name == "process_set") collective->process_set = narrow;
  if (name == "root_rank") collective->root_rank = narrow;
  if (name == "members") collective->members = narrow;
  if (name == "member") collective->member = narrow;
  if (name == "order_operands") collective->order_operands = narrow;
  return true;
}

// Those that are no tokens.
std::vector<const Buffer*> without_tokens(const Buffers& buffers) {
  std::vector<const Buffer*> found;
  for (int64_t i = 0; i < buffers.count; ++i) {
    if (buffers.buffers[i]->dtype != kToken) found.push_back(buffers.buffers[i]);
  }
  return found;
}

Code code_of(int code) {
  switch (code) {
    case HVD_INVALID_ARGUMENT:
    case HVD_DUPLICATE_NAME:
      return Code::kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_REFUSED:
    case HVD_JOINED:
      return Code::kFailedPrecondition;
    case HVD_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    case HVD_RANK_LOST:
    case HVD_RANK_LEFT:
    case HVD_DEVICE_LOST:
      return Code::kUnavailable;
    case HVD_ABORTED:
      return Code::kAborted;
    default:
      return Code::kUnknown;
  }
}

bool is_ragged(hvd_kind kind) { return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL; }

Error* error_of(const Api* api, const hvd_status& status, const Tree& tree) {
  const char* const name = hvd_code_name(status.code);
  std::string text = status.code == HVD_MISMATCH ? in_words(status.text, tree) : status.text;
  if (name != nullptr) text += std::string("\nmore: horovodrun --explain ") + name;
  ErrorCreate arguments{sizeof arguments, nullptr, text.c_str(), code_of(status.code)};
  return api->error_create(&arguments);
}

void tell_xla(const Call& call) {
  if (call.outcome.code == HVD_OK) {
    FutureSetAvailable arguments{sizeof arguments, nullptr, call.future};
    call.api->future_set_available(&arguments);
  } else {
    FutureSetError arguments{sizeof arguments, nullptr, call.future,
                             error_of(call.api, call.outcome, call.collective.tree)};
    call.api->future_set_error(&arguments);
  }
}

// A thread that tells XLA of the ends. Who tells it runs the rest of XLA's program then, as far as it goes, which may
// take long: the engine's thread has other things to do. Never destroyed, as it has a thread that waits.
class Teller {
 public:
  static Teller& one() {
    static auto* const teller = new Teller;
    return *teller;
  }

  void add(std::unique_ptr<Call> call) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(call));
    }
    changed_.notify_one();
  }

 private:
  Teller() {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::unique_ptr<Call> call = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      tell_xla(*call);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Call>> queue_;
};

// On the driving thread, which may be the handler's: the engine is done with the memory.
void finished(void* user, const hvd_status* outcome) {
  auto* const call = static_cast<Call*>(user);
  call->outcome = *outcome;
  if (outcome->code == HVD_OK && is_ragged(call->collective.kind)) take_results(call);
  hvd_release(call->context, call->handle);
  if (call->state.exchange(Call::kDone) == Call::kLeft) Teller::one().add(std::unique_ptr<Call>(call));
}

// Submits it in the running generation, and drives the engine for a moment.
int start(Call* call, hvd_status* status) {
  const std::shared_lock held(generation().mutex);
  call->context = generation().context;
  if (call->context == nullptr) {
    set_failure(status, HVD_NOT_RUNNING, "Horovod has not been initialized; use hvd.init().");
    return HVD_NOT_RUNNING;
  }
  const int code = is_same_place(call->collective, status) ? submit(call, status) : status->code;
  if (code != HVD_OK) {
    shims::tell_refusal(call->context, call->collective.name, call->collective.process_set, *status);
    return code;
  }
  hvd_wait(call->context, call->handle, kMomentMs, nullptr);
  return HVD_OK;
}

// Null if all went well so far.
Error* run(CallFrame* frame) {
  hvd_status status{};
  status.size = sizeof status;
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  const std::string problem = read_frame(*frame, &call->collective);
  if (!problem.empty()) set_failure(&status, HVD_INVALID_ARGUMENT, problem);
  if (!problem.empty() || start(call.get(), &status) != HVD_OK) {
    return error_of(frame->api, status, call->collective.tree);
  }
  if (call->state.load() == Call::kDone) {
    return call->outcome.code == HVD_OK ? nullptr : error_of(frame->api, call->outcome, call->collective.tree);
  }
  FutureCreate made{sizeof made, nullptr, nullptr};
  if (Error* const error = frame->api->future_create(&made); error != nullptr) {
    call.release();  // the engine will write into it; nobody hears of its end
    return error;
  }
  call->future = frame->future = made.future;
  int under_way = Call::kUnderWay;
  if (call->state.compare_exchange_strong(under_way, Call::kLeft)) {
    call.release();  // finished() has it
  } else {
    tell_xla(*call);
  }
  return nullptr;
}

std::atomic<int64_t> calls{0};

}  // namespace

std::string read_frame(const CallFrame& frame, Collective* collective) {
  const Attributes& attributes = frame.attributes;
  for (int64_t i = 0; i < attributes.count; ++i) {
    const std::string_view name = attributes.names[i]->view();
    if (!read_attribute(name, attributes.types[i], attributes.values[i], collective)) {
      return "the compiled function holds an unknown kind of `" + std::string(name) + "`";
    }
  }
  // In front of the operands and behind the results are those that only order the calls; nobody reads them.
  auto inputs = without_tokens(frame.operands), outputs = without_tokens(frame.results);
  const auto ordering = static_cast<size_t>(collective->order_operands);
  if (inputs.size() < ordering || inputs.size() - ordering + 1 != outputs.size()) {
    return "the compiled function has not as many results as operands";
  }
  inputs.erase(inputs.begin(), inputs.begin() + collective->order_operands);
  outputs.pop_back();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* dtype = std::find(std::begin(kXlaDtype), std::end(kXlaDtype), inputs[i]->dtype);
    if (dtype == std::end(kXlaDtype)) return "no operation takes XLA's dtype " + std::to_string(inputs[i]->dtype);
    collective->tensors.push_back({inputs[i]->data, outputs[i]->data, inputs[i]->dims,
                                   static_cast<int32_t>(inputs[i]->rank),
                                   static_cast<int32_t>(dtype - std::begin(kXlaDtype))});
    collective->rows.push_back(inputs[i]->rank > 0 ? inputs[i]->dims[0] : 0);
  }
  if (collective->tensors.empty()) return "";
  for (std::array<int64_t, 2>& shape : collective->tree.shapes) {
    collective->tensors.push_back({shape.data(), shape.data(), shape.data(), static_cast<int32_t>(shape.size()),
                                   collective->tensors.front().dtype});
    collective->rows.push_back(0);
  }
  return "";
}

}  // namespace hvd::jax

extern "C" {

// The handler that XLA calls. Null if all went well.
HVD_EXPORT void* hvd_jax_collective(hvd::jax::CallFrame* frame) {
  using namespace hvd::jax;
  if (frame->extensions != nullptr && frame->extensions->type == kMetadataExtension) {
    Metadata* const metadata = reinterpret_cast<MetadataExtension*>(frame->extensions)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = 1;
    metadata->traits = 0;
    return nullptr;
  }
  calls.fetch_add(1);
  return run(frame);
}

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
