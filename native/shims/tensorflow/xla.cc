// SPDX-License-Identifier: Apache-2.0
// Reductions inside of what XLA compiles (jit_compile=True): a custom call that takes all tensors of a step.
//
// The call blocks XLA's thread. For tensors in host memory it drives the engine until the operation is done. On a GPU
// it waits until the operation is launched, and has XLA's stream wait for the rest; if the operation fails later, the
// next call gets the error. Each call of a graph takes a result of the one before as one more operand: XLA orders calls
// by their data only, so without it ranks could start them in different orders, and wait for each other forever.
//
// TensorFlow's C interface covers neither XLA's registry nor its error object. Both are checked before they are used.
#include <dlfcn.h>

#include <atomic>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shims/tensorflow/kernel.h"
#include "shims/watch.h"

namespace hvd::tensorflow {

namespace {

constexpr char kTarget[] = "horovod_grouped_allreduce";
constexpr int kWaitSliceMs = 1000;

// A grouped request whose tensors are known when it is traced, but for their addresses.
struct Plan {
  shims::Collective collective;
  std::vector<std::vector<int64_t>> shapes;
  std::vector<hvd_tensor> tensors;  // refer to the shapes
  size_t more_operands = 0;         // behind the tensors, which only keep the calls in order
  shims::EntryCache entries;
};

// The plans by what compiled functions hold of them (tensorflow/xla.py), which is all but the addresses: a function may
// have been saved by another process. Never destroyed: compiled code may outlive the library's statics.
std::mutex plans_mutex;
auto* const kPlans = new std::map<std::string, std::unique_ptr<Plan>, std::less<>>;
std::atomic<int64_t> calls{0};

// Reads numbers with a space behind each.
class Numbers {
 public:
  explicit Numbers(std::string_view text) : text_(text) {}

  template <class Number>
  bool read(Number* number) {
    const char* const end = text_.data() + text_.size();
    const auto [stopped, error] = std::from_chars(text_.data(), end, *number);
    if (error != std::errc() || stopped == end || *stopped != ' ') return false;
    text_.remove_prefix(static_cast<size_t>(stopped + 1 - text_.data()));
    return true;
  }

  std::string_view rest() const { return text_; }

 private:
  std::string_view text_;
};

// Null if the text has another form.
std::unique_ptr<Plan> plan_of(std::string_view text) {
  auto plan = std::make_unique<Plan>();
  Numbers numbers(text);
  shims::Collective& collective = plan->collective;
  size_t tensors = 0;
  if (!numbers.read(&plan->more_operands) || !numbers.read(&collective.op) || !numbers.read(&collective.process_set) ||
      !numbers.read(&collective.prescale) || !numbers.read(&collective.postscale) || !numbers.read(&tensors)) {
    return nullptr;
  }
  std::vector<int32_t> dtypes;
  for (size_t i = 0; i < tensors; ++i) {
    size_t dimensions = 0;
    if (!numbers.read(&dtypes.emplace_back()) || !numbers.read(&dimensions)) return nullptr;
    std::vector<int64_t>& shape = plan->shapes.emplace_back();
    for (size_t d = 0; d < dimensions; ++d) {
      if (!numbers.read(&shape.emplace_back())) return nullptr;
    }
  }
  for (size_t i = 0; i < tensors; ++i) {
    const std::vector<int64_t>& shape = plan->shapes[i];
    plan->tensors.push_back({nullptr, nullptr, shape.data(), static_cast<int32_t>(shape.size()), dtypes[i]});
  }
  collective.name = numbers.rest();
  return plan;
}

// TensorFlow is built with libstdc++, this library perhaps with another one. So these are the layouts of libstdc++, as
// the mangled name of Register says, and not our own std::string, std::optional and std::string_view.
struct TheirString {
  const char* data;
  size_t length;
  union {
    char local[16];
    size_t capacity;
  };
};
struct TheirStatus {  // std::optional<std::string>: empty if all went well
  TheirString message;
  bool failed;
};
struct TheirMessage {  // std::optional<std::string_view>
  size_t length;
  const char* data;
  bool present;
};
static_assert(sizeof(TheirString) == 32 && sizeof(TheirStatus) == 40 && sizeof(TheirMessage) == 24);

TheirMessage (*message_of_status)(const void*) = nullptr;
void* (*their_new)(size_t) = nullptr;  // what their string frees, their operator new must have given
void (*their_delete)(void*) = nullptr;

TheirString borrowed(std::string_view text) { return {text.data(), text.size(), {.capacity = text.size()}}; }

void fail(void* status, std::string_view text) {
  auto* const data = static_cast<char*>(their_new(text.size() + 1));
  text.copy(data, text.size());
  data[text.size()] = '\0';
  *static_cast<TheirStatus*>(status) = {borrowed({data, text.size()}), true};
}

struct Buffers {
  std::span<const void* const> inputs;
  std::span<void* const> outputs;
  bool on_gpu = false;
  void* stream = nullptr;  // XLA's; on a GPU only
};

// The caller holds generation.mutex shared.
int submit(Plan* plan, const Buffers& buffers, hvd_handle* handle, hvd_status* status) {
  std::vector<hvd_tensor> tensors = plan->tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].input = buffers.inputs[i];
    tensors[i].output = buffers.outputs[i];
  }
  hvd_request request = shims::request_of(plan->collective, tensors);
  request.flags = HVD_SYNC;
  int code = HVD_OK;
  if (buffers.on_gpu) {
    request.place = HVD_ON_CUDA;
    code = shims::find_device(generation.context, tensors, buffers.stream, &request.device, status);
  }
  if (code == HVD_OK) code = plan->entries.submit(&generation, request, buffers.stream, handle, status);
  if (code != HVD_OK) shims::tell_refusal(generation.context, plan->collective.name, request.process_set, *status);
  return code;
}

hvd_status run(Plan* plan, const Buffers& buffers) {
  hvd_status status = shims::new_status();
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  {
    const std::shared_lock held(generation.mutex);
    context = generation.context;
    if (context == nullptr) {
      shims::set_failure(&status, HVD_NOT_RUNNING, generation.absence());
      return status;
    }
    if (submit(plan, buffers, &handle, &status) != HVD_OK) return status;
    hvd_hold(context);
  }
  // The generation may end now, and Python may free its context.
  int code = HVD_PENDING;
  while (code == HVD_PENDING) {
    code = buffers.on_gpu ? hvd_wait_on_stream(context, handle, buffers.stream, kWaitSliceMs, &status)
                          : hvd_wait(context, handle, kWaitSliceMs, &status);
  }
  shims::watch_end(plan->collective.name.c_str(), code == HVD_OK);
  hvd_release(context, handle);
  hvd_free(context);
  return status;
}

// The plan of a call, by what the function holds. Null: it cannot be read, and the call has failed.
Plan* find_plan(const char* opaque, size_t length, void* xla_status) {
  calls.fetch_add(1);
  const std::string_view text(opaque, length);
  const std::lock_guard lock(plans_mutex);
  if (const auto found = kPlans->find(text); found != kPlans->end()) return found->second.get();
  if (auto plan = plan_of(text); plan != nullptr) return kPlans->emplace(text, std::move(plan)).first->second.get();
  fail(xla_status,
       "another version of Horovod has saved this compiled function\nhint: trace and save it with this version");
  return nullptr;
}

void run_for_xla(Plan* plan, const Buffers& buffers, void* xla_status) {
  const hvd_status status = run(plan, buffers);
  if (status.code != HVD_OK) fail(xla_status, shims::text_of(status, status.text));
}

// API_VERSION_STATUS_RETURNING_UNIFIED on the host. `out` is the result's address, or a table of several.
void call_on_host(void* out, const void** inputs, const char* opaque, size_t length, void* xla_status) {
  Plan* const plan = find_plan(opaque, length, xla_status);
  if (plan == nullptr) return;
  const size_t tensors = plan->tensors.size();
  void** const outputs = tensors == 1 ? &out : static_cast<void**>(out);
  run_for_xla(plan, {.inputs = {inputs, tensors}, .outputs = {outputs, tensors}}, xla_status);
}

// The same on CUDA. `buffers` has the operands' addresses, and then the results'.
void call_on_cuda(void* stream, void** buffers, const char* opaque, size_t length, void* xla_status) {
  Plan* const plan = find_plan(opaque, length, xla_status);
  if (plan == nullptr) return;
  const size_t tensors = plan->tensors.size();
  void** const outputs = buffers + tensors + plan->more_operands;
  run_for_xla(plan, {.inputs = {buffers, tensors}, .outputs = {outputs, tensors}, .on_gpu = true, .stream = stream},
              xla_status);
}

// True if fail() writes an error in the right place: XLA itself must read back the text.
bool status_is_understood() {
  TheirStatus probe{};
  if (message_of_status(&probe).present) return false;
  fail(&probe, "probe");
  const TheirMessage seen = message_of_status(&probe);
  const bool understood = seen.present && std::string_view(seen.data, seen.length) == "probe";
  their_delete(const_cast<char*>(probe.message.data));
  return understood;
}

template <class Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

bool register_target() {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  void* (*global)() = nullptr;
  void (*add)(void*, const TheirString&, void*, const TheirString&) = nullptr;
  // The operators are those of the libraries that TensorFlow's own needs.
  if (!find(library, "_ZN3xla24CustomCallTargetRegistry6GlobalEv", &global) ||
      !find(library,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_",
            &add) ||
      !find(library, "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_", &message_of_status) ||
      !find(library, "_Znwm", &their_new) || !find(library, "_ZdlPv", &their_delete) || !status_is_understood()) {
    return false;
  }
  add(global(), borrowed(kTarget), reinterpret_cast<void*>(call_on_host), borrowed("Host"));
  add(global(), borrowed(kTarget), reinterpret_cast<void*>(call_on_cuda), borrowed("CUDA"));
  return true;
}

}  // namespace

}  // namespace hvd::tensorflow

extern "C" {

// True if steps that XLA compiles can contain a reduction in this TensorFlow.
HVD_EXPORT int hvd_tensorflow_xla_available(void) {
  static const bool available = hvd::tensorflow::register_target();
  return available ? 1 : 0;
}

// How often compiled steps have reduced.
HVD_EXPORT int64_t hvd_tensorflow_xla_calls(void) { return hvd::tensorflow::calls.load(); }

}  // extern "C"
