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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shims/tensorflow/generation.h"
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

using StatusMessage = std::optional<std::string_view> (*)(const void*);
StatusMessage message_of_status = nullptr;

// XLA's status is a struct of an optional text, empty if all went well.
void fail(void* status, const std::string& text) {
  auto* message = static_cast<std::optional<std::string>*>(status);
  message->emplace(text);
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
    const std::shared_lock held(generation_mutex);
    context = generation.context;
    if (context == nullptr) {
      status.code = HVD_NOT_RUNNING;
      std::string_view("Horovod has not been initialized; use hvd.init().").copy(status.text, sizeof status.text - 1);
      return status;
    }
    if (hvd_submit(context, &request, &handle, &status) != HVD_OK) return status;
  }
  while (hvd_wait(context, handle, kWaitSliceMs, &status) == HVD_PENDING) {
  }
  hvd_release(context, handle);
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
  std::optional<std::string> probe;
  if (message_of_status(&probe).has_value()) return false;
  fail(&probe, "probe");
  const std::optional<std::string_view> seen = message_of_status(&probe);
  return seen.has_value() && *seen == "probe";
}

bool register_target() {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto global = reinterpret_cast<void* (*)()>(dlsym(library, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  const auto add = reinterpret_cast<void (*)(void*, const std::string&, void*, const std::string&)>(
      dlsym(library,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"));
  message_of_status =
      reinterpret_cast<StatusMessage>(dlsym(library, "_ZN3xla26CustomCallStatusGetMessageEPK20XlaCustomCallStatus_"));
  if (global == nullptr || add == nullptr || message_of_status == nullptr || !status_is_understood()) return false;
  add(global(), kTarget, reinterpret_cast<void*>(custom_call), "Host");
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
