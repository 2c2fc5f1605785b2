// SPDX-License-Identifier: Apache-2.0
#include "shims/tensorflow/kernel.h"

#include <algorithm>
#include <cstring>

#include "shims/tensorflow/done_callback.h"
#include "shims/watch.h"

namespace hvd::tensorflow {

shims::Generation generation;
std::atomic<int32_t> local_rank{0}, local_size{1};
std::atomic<EigenDevice> eigen_device{nullptr};
std::atomic<bool> may_stay_on_gpu{false};

namespace {

constexpr int kDtypes = 13;
// TF_DataType by hvd_dtype.
constexpr int kTensorFlowDtype[kDtypes] = {4, 6, 5, 3, 9, 19, 14, 1, 2, 10, 17, 22, 23};
constexpr int kTensorFlowInt32 = 3, kTensorFlowInt64 = 9;

// -1 if the engine has no such dtype.
int dtype_of(const TF_Tensor* tensor) {
  const int type = tf.TensorType(tensor);
  const auto* found = std::find(kTensorFlowDtype, kTensorFlowDtype + kDtypes, type);
  return found == kTensorFlowDtype + kDtypes ? -1 : static_cast<int>(found - kTensorFlowDtype);
}

std::vector<int64_t> shape_of(const TF_Tensor* tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(tf.NumDims(tensor)));
  for (size_t d = 0; d < shape.size(); ++d) shape[d] = tf.Dim(tensor, static_cast<int>(d));
  return shape;
}

Code code_of(int code) {
  switch (code) {
    case HVD_INVALID_ARGUMENT:
    case HVD_DUPLICATE_NAME:
      return kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_REFUSED:
    case HVD_JOINED:
    case HVD_UNAVAILABLE:
      return kFailedPrecondition;
    case HVD_OUT_OF_MEMORY:
      return kResourceExhausted;
    default:
      return kUnknown;
  }
}

// One call of a kernel, from its submission until `done` has run.
struct Invocation {
  Kernel* kernel = nullptr;
  TF_OpKernelContext* context = nullptr;
  hvd_context* engine = nullptr;
  hvd_handle handle = 0;
  DoneCallback done;
  std::vector<TensorPtr> inputs, outputs;
  std::vector<std::vector<int64_t>> shapes;  // of the inputs
  std::vector<int64_t> splits;
  int32_t members = 1, member = 0;  // of the process set, and this rank's place in it
  bool on_gpu = false;              // are the tensors
  void* stream = nullptr;

  void end() { done.run(); }
};

TensorPtr allocate(TF_OpKernelContext* context, int index, int type, const std::vector<int64_t>& shape, size_t bytes,
                   TF_Status* status) {
  return TensorPtr(
      tf.AllocateOutput(context, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status));
}

bool take_inputs(Invocation* invocation, TF_Status* status) {
  const Collective& collective = invocation->kernel->collective();
  const bool has_splits = collective.kind == HVD_ALLTOALL;
  const int end = tf.NumInputs(invocation->context) - (has_splits ? 1 : 0);
  for (int i = collective.first_tensor; i < end; ++i) {
    TF_Tensor* input = nullptr;
    tf.GetInput(invocation->context, i, &input, status);
    if (tf.GetCode(status) != kOk) return false;
    invocation->inputs.emplace_back(input);
    invocation->shapes.push_back(shape_of(input));
  }
  if (!has_splits) return true;
  TF_Tensor* taken = nullptr;
  tf.GetInput(invocation->context, end, &taken, status);
  if (tf.GetCode(status) != kOk) return false;
  const TensorPtr splits(taken);
  const auto* values = static_cast<const int64_t*>(tf.TensorData(taken));
  invocation->splits.assign(values, values + tf.TensorByteSize(taken) / sizeof(int64_t));
  return true;
}

// The outputs whose size is known now; the others follow when they are done.
bool make_outputs(Invocation* invocation, TF_Status* status) {
  const Collective& collective = invocation->kernel->collective();
  if (shims::is_ragged(collective.kind)) return true;
  const int32_t members = collective.kind == HVD_REDUCESCATTER ? invocation->members : 1;
  for (size_t i = 0; i < invocation->inputs.size(); ++i) {
    std::vector<int64_t> shape = invocation->shapes[i];
    size_t bytes = tf.TensorByteSize(invocation->inputs[i].get());
    if (members > 1 && invocation->member >= 0 && !shape.empty() && shape[0] > 0) {
      const size_t row_bytes = bytes / static_cast<size_t>(shape[0]);
      shape[0] = hvd_rows_of_member(shape[0], members, invocation->member);
      bytes = row_bytes * static_cast<size_t>(shape[0]);
    }
    invocation->outputs.push_back(allocate(invocation->context, static_cast<int>(i),
                                           tf.TensorType(invocation->inputs[i].get()), shape, bytes, status));
    if (tf.GetCode(status) != kOk) return false;
  }
  return true;
}

void finished(void* user, const hvd_status* outcome);

// Says on which GPU the tensors of a request lie, and finds the stream that computes them.
int place_on_gpu(Invocation* invocation, hvd_request* request, hvd_status* status) {
  request->place = HVD_ON_CUDA;
  if (!find_stream(eigen_device.load(), invocation->context, &invocation->stream)) {
    return shims::set_failure(status, HVD_UNAVAILABLE,
                              "it is not known where this TensorFlow release keeps the stream of a GPU\n"
                              "hint: HOROVOD_TENSORFLOW_GPU=host takes the tensors through host memory");
  }
  return shims::find_device(invocation->engine, {request->tensors, request->ntensors}, invocation->stream,
                            &request->device, status);
}

// Once, on rank 0, if users can do something about it.
void tell_of_host_memory(hvd_context* engine) {
  static std::atomic<bool> told{false};
  if (!may_stay_on_gpu.load() || told.load()) return;
  int32_t members = 0, member = -1;
  if (hvd_process_set_place(engine, 0, &members, &member, nullptr) != HVD_OK) return;
  if (told.exchange(true) || member != 0 || members == 1) return;
  hvd_warn(engine,
           "TensorFlow copies its GPUs' tensors to host memory for Horovod, which is slow\n"
           "hint: HOROVOD_TENSORFLOW_GPU=device leaves them there (not yet run on a GPU)");
}

bool submit(Invocation* invocation) {
  const Collective& collective = invocation->kernel->collective();
  std::vector<hvd_tensor> tensors(invocation->inputs.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<int64_t>& shape = invocation->shapes[i];
    tensors[i] = {tf.TensorData(invocation->inputs[i].get()),
                  invocation->outputs.empty() ? nullptr : tf.TensorData(invocation->outputs[i].get()), shape.data(),
                  static_cast<int32_t>(shape.size()), dtype_of(invocation->inputs[i].get())};
  }
  hvd_request request = shims::request_of(collective, tensors);
  request.done = finished;
  request.user = invocation;
  if (!invocation->splits.empty()) {
    request.splits = invocation->splits.data();
    request.nsplits = static_cast<uint32_t>(invocation->splits.size());
  }
  // The program waits for the result of a direct call, and for the last gradient of a step.
  if (!collective.is_gradient || (collective.step != nullptr && collective.step->ends_now()))
    request.flags = HVD_URGENT;

  hvd_status status = shims::new_status();
  int code = invocation->on_gpu ? place_on_gpu(invocation, &request, &status) : HVD_OK;
  // Once submitted, the invocation may be gone.
  if (code == HVD_OK) {
    code = invocation->kernel->entries().submit(&generation, request, invocation->stream, &invocation->handle, &status);
  }
  if (code == HVD_OK) return true;
  shims::tell_refusal(invocation->engine, collective.name, collective.process_set, status);
  fail(invocation->context, status);
  return false;
}

bool take_results(Invocation* invocation, TF_Status* status) {
  const Collective& collective = invocation->kernel->collective();
  const int tensors = static_cast<int>(invocation->inputs.size());
  const int32_t members = invocation->members;
  hvd_status why = shims::new_status();
  const bool is_alltoall = collective.kind == HVD_ALLTOALL;
  // Rows by tensor and member; TensorFlow has the received splits of an alltoall as int32.
  std::vector<int64_t> rows_shape = {members};
  if (!is_alltoall) rows_shape.insert(rows_shape.begin(), tensors);
  const size_t rows_bytes = static_cast<size_t>(members) * (is_alltoall ? sizeof(int32_t) : sizeof(int64_t) * tensors);
  const TensorPtr rows = allocate(invocation->context, tensors, is_alltoall ? kTensorFlowInt32 : kTensorFlowInt64,
                                  rows_shape, rows_bytes, status);
  if (tf.GetCode(status) != kOk) return false;
  for (int i = 0; i < tensors; ++i) {
    hvd_result result{};
    result.size = sizeof result;
    if (hvd_get_result(invocation->engine, invocation->handle, static_cast<uint32_t>(i), &result, &why) != HVD_OK) {
      tf.SetStatus(status, kUnknown, why.text);
      return false;
    }
    const TF_Tensor* input = invocation->inputs[static_cast<size_t>(i)].get();
    const std::vector<int64_t> shape(result.shape, result.shape + result.ndim);
    auto bytes = static_cast<size_t>(hvd_dtype_bytes(dtype_of(input)));
    for (const int64_t length : shape) bytes *= static_cast<size_t>(length);
    const TensorPtr output = allocate(invocation->context, i, tf.TensorType(input), shape, bytes, status);
    if (tf.GetCode(status) != kOk) return false;
    void* const to = tf.TensorData(output.get());
    if (invocation->on_gpu) {
      if (hvd_copy_result(invocation->engine, invocation->handle, static_cast<uint32_t>(i), to, invocation->stream,
                          &why) != HVD_OK) {
        tf.SetStatus(status, kUnknown, why.text);
        return false;
      }
    } else if (bytes > 0) {
      std::memcpy(to, result.data, bytes);
    }
    for (int32_t m = 0; m < members; ++m) {
      if (is_alltoall) {
        if (result.rows[m] > INT32_MAX) {
          tf.SetStatus(status, kUnimplemented,
                       ("alltoall: " + std::to_string(result.rows[m]) + " rows came from member " + std::to_string(m) +
                        ", and TensorFlow's received splits are int32\nhint: send at most 2147483647 rows to a member")
                           .c_str());
          return false;
        }
        static_cast<int32_t*>(tf.TensorData(rows.get()))[m] = static_cast<int32_t>(result.rows[m]);
      } else {
        static_cast<int64_t*>(tf.TensorData(rows.get()))[i * members + m] = result.rows[m];
      }
    }
  }
  return true;
}

// On the driving thread: the engine is done with the memory.
void finished(void* user, const hvd_status* outcome) {
  const std::unique_ptr<Invocation> invocation(static_cast<Invocation*>(user));
  if (outcome->code != HVD_OK) {
    fail(invocation->context, *outcome);
  } else if (shims::is_ragged(invocation->kernel->collective().kind)) {
    const StatusPtr status = new_status();
    if (!take_results(invocation.get(), status.get())) tf.OpKernelContext_Failure(invocation->context, status.get());
  }
  shims::watch_end(invocation->kernel->collective().name.c_str(), outcome->code == HVD_OK);
  hvd_release(invocation->engine, invocation->handle);
  invocation->inputs.clear();
  invocation->outputs.clear();
  invocation->end();
}

// True once it is submitted; its end comes with finished() then, which may have run already.
bool start(Invocation* invocation) {
  const std::shared_lock held(generation.mutex);
  if (generation.context == nullptr) {
    fail(invocation->context, kFailedPrecondition, generation.absence());
    return false;
  }
  const Collective& collective = invocation->kernel->collective();
  invocation->engine = generation.context;
  // Now: in the end the process set may have been removed. If there is none, the submission will say so.
  hvd_process_set_place(invocation->engine, collective.process_set, &invocation->members, &invocation->member, nullptr);
  const StatusPtr status = new_status();
  const bool has_inputs = take_inputs(invocation, status.get());
  const bool is_placed = collective.on_gpu && !invocation->inputs.empty();
  invocation->on_gpu = is_placed && eigen_device.load() != nullptr;
  if (is_placed && !invocation->on_gpu) tell_of_host_memory(invocation->engine);
  if (!has_inputs || !make_outputs(invocation, status.get())) {
    shims::refuse(invocation->engine, collective.name, collective.process_set, tf.Message(status.get()));
    tf.OpKernelContext_Failure(invocation->context, status.get());
    return false;
  }
  return submit(invocation);
}

}  // namespace

Kernel::~Kernel() {
  const std::shared_lock held(generation.mutex);
  entries_.clear();
}

void compute_collective(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto invocation = std::make_unique<Invocation>();
  invocation->kernel = static_cast<Kernel*>(kernel);
  invocation->context = context;
  if (!invocation->done.copy(done)) {
    fail(context, kUnimplemented,
         "Horovod does not know how this TensorFlow release hands over the end of an asynchronous operation");
    tf.RunAsyncOpKernelDoneCallback(done);
    return;
  }
  Invocation* const started = invocation.release();
  if (start(started)) return;
  const std::unique_ptr<Invocation> failed(started);
  failed->inputs.clear();
  failed->outputs.clear();
  failed->end();
}

void compute_place(void* kernel, TF_OpKernelContext* context) {
  const auto& query = *static_cast<const PlaceQuery*>(kernel);
  int32_t value = 0;
  {
    const std::shared_lock held(generation.mutex);
    if (generation.context == nullptr) return fail(context, kFailedPrecondition, generation.absence());
    int32_t members = 0, member = 0;
    hvd_status why = shims::new_status();
    if (hvd_process_set_place(generation.context, query.process_set, &members, &member, &why) != HVD_OK) {
      return fail(context, why);
    }
    if (query.what == "size") value = members;
    if (query.what == "rank") value = member;
    if (query.what == "included") value = member >= 0 ? 1 : 0;
    if (query.what == "local_rank") value = local_rank;
    if (query.what == "local_size") value = local_size;
  }
  const StatusPtr status = new_status();
  const TensorPtr output = allocate(context, 0, kTensorFlowInt32, {}, sizeof value, status.get());
  if (tf.GetCode(status.get()) != kOk) return tf.OpKernelContext_Failure(context, status.get());
  std::memcpy(tf.TensorData(output.get()), &value, sizeof value);
}

void delete_collective(void* kernel) { delete static_cast<Kernel*>(kernel); }

void fail(TF_OpKernelContext* context, Code code, const char* text) {
  const StatusPtr status = new_status();
  tf.SetStatus(status.get(), code, text);
  tf.OpKernelContext_Failure(context, status.get());
}

void fail(TF_OpKernelContext* context, const hvd_status& status) {
  fail(context, code_of(status.code), shims::text_of(status, status.text).c_str());
}

}  // namespace hvd::tensorflow
