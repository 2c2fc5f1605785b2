// SPDX-License-Identifier: Apache-2.0
// Reductions inside of what XLA compiles (jit_compile=True): a custom call that takes all tensors of a step.
//
// XLA runs what it has compiled on one thread, so the call blocks, and drives the engine meanwhile. There is one for
// all gradients: several that block could wait for each other in different orders on different ranks. What XLA's
// registry and the place for an error look like is no part of TensorFlow's C interface; both are probed before they are
// used.
#include <dlfcn.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "shims/refusal.h"
#include "shims/tensorflow/kernel.h"

namespace hvd::tensorflow {

namespace {

constexpr char kTarget[] = "horovod_grouped_allreduce";
constexpr int kWaitSliceMs = 1000;

// A grouped request whose tensors are known when it is traced, but for their addresses.
struct Plan {
  std::string name;
  hvd_request request;
  std::vector<hvd_tensor> tensors;
  std::vector<std::vector<int64_t>> shapes;
};

std::mutex plans_mutex;
auto* const kPlans = new std::map<int64_t, Plan>;  // never destroyed: compiled code may outlive the library's statics
std::atomic<int64_t> calls{0};

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

hvd_status run(const Plan& plan, void** outputs, const void** inputs) {
  hvd_status status{};
  status.size = sizeof status;
  hvd_request request = plan.request;
  std::vector<hvd_tensor> tensors = plan.tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].shape = plan.shapes[i].data();
    tensors[i].input = inputs[i];
    tensors[i].output = outputs[i];
  }
  request.tensors = tensors.data();
  request.name = plan.name.c_str();
  request.flags = HVD_SYNC;
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  {
    const std::shared_lock held(generation.mutex);
    context = generation.context;
    if (context == nullptr) {
      status.code = HVD_NOT_RUNNING;
      std::string_view("Horovod has not been initialized; use hvd.init().").copy(status.text, sizeof status.text - 1);
      return status;
    }
    if (hvd_submit(context, &request, &handle, &status) != HVD_OK) {
      shims::tell_refusal(context, plan.name, request.process_set, status);
      return status;
    }
    hvd_hold(context);
  }
  // The generation may end now, and Python may free its context.
  while (hvd_wait(context, handle, kWaitSliceMs, &status) == HVD_PENDING) {
  }
  hvd_release(context, handle);
  hvd_free(context);
  return status;
}

// API_VERSION_STATUS_RETURNING_UNIFIED on the host: `opaque` is the plan's number.
void custom_call(void* out, const void** inputs, const char* opaque, size_t length, void* xla_status) {
  calls.fetch_add(1);
  const Plan* plan = nullptr;
  {
    const std::lock_guard lock(plans_mutex);
    const auto found = kPlans->find(std::stoll(std::string(opaque, length)));
    if (found != kPlans->end()) plan = &found->second;
  }
  if (plan == nullptr) return fail(xla_status, "a compiled step asks for an unknown reduction");
  // One result comes as it is, several as a table.
  void** outputs = plan->tensors.size() == 1 ? &out : static_cast<void**>(out);
  const hvd_status status = run(*plan, outputs, inputs);
  if (status.code != HVD_OK) fail(xla_status, text_of(status));
}

// Whether the error's place is what fail() takes it for: XLA itself must read what was written.
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
  add(global(), borrowed(kTarget), reinterpret_cast<void*>(custom_call), borrowed("Host"));
  return true;
}

}  // namespace

}  // namespace hvd::tensorflow

extern "C" {

// Whether steps that XLA compiles for the host can hold a reduction in this TensorFlow.
HVD_EXPORT int hvd_tensorflow_xla_available(void) {
  static const bool available = hvd::tensorflow::register_target();
  return available ? 1 : 0;
}

// The number of a reduction that a traced step will ask for. The request's addresses are not used.
HVD_EXPORT int64_t hvd_tensorflow_xla_plan(const hvd_request* request) {
  hvd::tensorflow::Plan plan;
  plan.name = request->name;
  plan.request = *request;
  plan.tensors.assign(request->tensors, request->tensors + request->ntensors);
  for (const hvd_tensor& tensor : plan.tensors) plan.shapes.emplace_back(tensor.shape, tensor.shape + tensor.ndim);
  const std::lock_guard lock(hvd::tensorflow::plans_mutex);
  const auto number = static_cast<int64_t>(hvd::tensorflow::kPlans->size());
  hvd::tensorflow::kPlans->emplace(number, std::move(plan));
  return number;
}

// How often compiled steps have reduced.
HVD_EXPORT int64_t hvd_tensorflow_xla_calls(void) { return hvd::tensorflow::calls.load(); }

}  // extern "C"
