// SPDX-License-Identifier: Apache-2.0
// The operations as TensorFlow knows them: their signatures, shapes and attributes, registered when this library is
// opened (by tf.load_op_library, once TensorFlow is there).
//
//   HorovodAllreduce, ...   called directly: stateful, so TensorFlow neither prunes, folds, merges nor reorders them
//   HorovodReduceGradient   a gradient: stateless, so that TensorFlow runs it as soon as its input is there, whatever
//                           the order in the program. Its `anchor` is an output of a stateful operation: without one a
//                           gradient that does not depend on anything would be folded into a constant.
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string>

#include "shims/tensorflow/kernel.h"

namespace hvd::tensorflow {

namespace {

#define HVD_DTYPES "{uint8, int8, uint16, int16, uint32, int32, uint64, int64, half, bfloat16, float, double, bool}"

// Attributes

std::string string_attribute(TF_OpKernelConstruction* construction, const char* name, TF_Status* status) {
  int32_t list_size = 0, size = 0;
  tf.OpKernelConstruction_GetAttrSize(construction, name, &list_size, &size, status);
  if (tf.GetCode(status) != kOk || size <= 0) return "";
  std::string value(static_cast<size_t>(size), '\0');
  tf.OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  return value;
}

int64_t integer_attribute(TF_OpKernelConstruction* construction, const char* name, TF_Status* status) {
  int64_t value = 0;
  tf.OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  return value;
}

// TensorFlow's own attributes of a float are too short for a factor of float64 tensors.
double factor_attribute(TF_OpKernelConstruction* construction, const char* name, TF_Status* status) {
  const std::string text = string_attribute(construction, name, status);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (tf.GetCode(status) == kOk && (text.empty() || *end != '\0')) {
    tf.SetStatus(status, kInvalidArgument, "a scale factor cannot be read");
  }
  return value;
}

template <hvd_kind kind, bool is_gradient, bool on_gpu>
void* create(TF_OpKernelConstruction* construction) {
  const StatusPtr status = new_status();
  Collective collective;
  collective.kind = kind;
  collective.on_gpu = on_gpu;
  collective.name = string_attribute(construction, "tensor_name", status.get());
  collective.process_set = static_cast<int32_t>(integer_attribute(construction, "process_set", status.get()));
  if (kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER) {
    collective.op = static_cast<int32_t>(integer_attribute(construction, "reduce_op", status.get()));
    collective.prescale = factor_attribute(construction, "prescale", status.get());
    collective.postscale = factor_attribute(construction, "postscale", status.get());
  }
  if (kind == HVD_BROADCAST) {
    collective.root_rank = static_cast<int32_t>(integer_attribute(construction, "root_rank", status.get()));
  }
  if (is_gradient) {
    collective.is_gradient = true;
    collective.first_tensor = 1;
    const int64_t gradients = integer_attribute(construction, "gradients_of_step", status.get());
    collective.step = find_step(string_attribute(construction, "step", status.get()), static_cast<uint64_t>(gradients));
  }
  if (tf.GetCode(status.get()) != kOk) {
    tf.OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return new Kernel(std::move(collective));
}

// Shapes. Outputs are as the inputs, but for the first dimension where it is known only when the operation is done.

template <int first>
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = tf.NewShapeHandle();
  const int inputs = static_cast<int>(tf.ShapeInferenceContextNumInputs(context));
  for (int i = first; i < inputs && tf.GetCode(status) == kOk; ++i) {
    tf.ShapeInferenceContextGetInput(context, i, shape, status);
    if (tf.GetCode(status) == kOk) tf.ShapeInferenceContextSetOutput(context, i - first, shape, status);
  }
  tf.DeleteShapeHandle(shape);
}

void other_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  TF_ShapeHandle* shape = tf.NewShapeHandle();
  TF_ShapeHandle* rows = tf.ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1));
  tf.ShapeInferenceContextGetInput(context, index, shape, status);
  if (tf.GetCode(status) == kOk) tf.ShapeInferenceContextWithRankAtLeast(context, shape, 1, shape, status);
  if (tf.GetCode(status) == kOk && tf.ShapeInferenceContextRankKnown(context, shape) != 0) {
    tf.ShapeInferenceContextSubshape(context, shape, 1, INT64_MAX, shape, status);
    if (tf.GetCode(status) == kOk) {
      tf.ShapeInferenceContextConcatenateShapes(context, rows, shape, shape, status);
    }
  }
  if (tf.GetCode(status) == kOk) tf.ShapeInferenceContextSetOutput(context, index, shape, status);
  tf.DeleteShapeHandle(rows);
  tf.DeleteShapeHandle(shape);
}

template <int not_tensors>
void all_other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int tensors = static_cast<int>(tf.ShapeInferenceContextNumInputs(context)) - not_tensors;
  for (int i = 0; i < tensors && tf.GetCode(status) == kOk; ++i) other_rows(context, i, status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = tf.ShapeInferenceContextScalar(context);
  tf.ShapeInferenceContextSetOutput(context, 0, shape, status);
  tf.DeleteShapeHandle(shape);
}

void nothing(TF_ShapeInferenceContext*, TF_Status*) {}

// Rank and size as an operation, so that a graph may be built before the job's size is known.

void* create_place(TF_OpKernelConstruction* construction) {
  const StatusPtr status = new_status();
  auto* wanted = new PlaceQuery{string_attribute(construction, "what", status.get()),
                                static_cast<int32_t>(integer_attribute(construction, "process_set", status.get()))};
  if (tf.GetCode(status.get()) != kOk) tf.OpKernelConstruction_Failure(construction, status.get());
  return wanted;
}

void delete_place(void* kernel) { delete static_cast<PlaceQuery*>(kernel); }

// Registration

struct Signature {
  const char* name;
  std::initializer_list<const char*> inputs, outputs, attributes;
  InferShapes shapes;
  bool is_stateful;
  CreateKernel create, create_on_gpu;
  ComputeKernelAsync compute_async;
  ComputeKernel compute;
  DeleteKernel destroy;
};

// "tensors: T" has the name "tensors".
std::string argument_name(const char* argument) { return {argument, std::strcspn(argument, ":")}; }

// Throws why not, in words.
void expect_registered(const char* what, TF_Status* status) {
  if (tf.GetCode(status) != kOk) throw std::string(what) + " cannot be registered: " + tf.Message(status);
}

bool is_tensor(const char* argument) { return std::strcmp(argument + std::strcspn(argument, ":"), ": T") == 0; }

void add_kernel(const Signature& signature, const char* device, bool in_host_memory) {
  const bool on_gpu = std::strcmp(device, "GPU") == 0;
  const CreateKernel create = on_gpu ? signature.create_on_gpu : signature.create;
  TF_KernelBuilder* kernel =
      signature.compute_async != nullptr
          ? tf.NewAsyncKernelBuilder(signature.name, device, create, signature.compute_async, signature.destroy)
          : tf.NewKernelBuilder(signature.name, device, create, signature.compute, signature.destroy);
  for (const auto& arguments : {signature.inputs, signature.outputs}) {
    for (const char* argument : arguments) {
      if (on_gpu && (in_host_memory || !is_tensor(argument))) {
        tf.KernelBuilder_HostMemory(kernel, argument_name(argument).c_str());
      }
    }
  }
  const StatusPtr status = new_status();
  tf.RegisterKernelBuilder((std::string(signature.name) + device).c_str(), kernel, status.get());
  expect_registered(signature.name, status.get());
}

void add(const Signature& signature) {
  TF_OpDefinitionBuilder* builder = tf.NewOpDefinitionBuilder(signature.name);
  for (const char* input : signature.inputs) tf.OpDefinitionBuilderAddInput(builder, input);
  for (const char* output : signature.outputs) tf.OpDefinitionBuilderAddOutput(builder, output);
  for (const char* attribute : signature.attributes) tf.OpDefinitionBuilderAddAttr(builder, attribute);
  // TensorFlow ignores the flag: to call it at all is what marks the operation.
  if (signature.is_stateful) tf.OpDefinitionBuilderSetIsStateful(builder, true);
  tf.OpDefinitionBuilderSetShapeInferenceFunction(builder, signature.shapes);
  const StatusPtr status = new_status();
  tf.RegisterOpDefinition(builder, status.get());
  expect_registered(signature.name, status.get());
  add_kernel(signature, "CPU", true);
}

void add_on_gpu(const Signature& signature) { add_kernel(signature, "GPU", eigen_device.load() == nullptr); }

template <hvd_kind kind, bool is_gradient = false>
Signature collective(const char* name, std::initializer_list<const char*> inputs,
                     std::initializer_list<const char*> outputs, std::initializer_list<const char*> attributes,
                     InferShapes shapes) {
  return {name,
          inputs,
          outputs,
          attributes,
          shapes,
          !is_gradient,
          create<kind, is_gradient, false>,
          create<kind, is_gradient, true>,
          compute_collective,
          nullptr,
          delete_collective};
}

#define HVD_NAME "tensor_name: string = ''", "process_set: int = 0"
#define HVD_REDUCTION HVD_NAME, "reduce_op: int", "prescale: string = '1'", "postscale: string = '1'"
#define HVD_TYPES "T: list(" HVD_DTYPES ") >= 1"

void for_each_operation(void (*visit)(const Signature&)) {
  visit(collective<HVD_ALLREDUCE>("HorovodAllreduce", {"tensors: T"}, {"reduced: T"}, {HVD_TYPES, HVD_REDUCTION},
                                  same_shapes<0>));
  visit(collective<HVD_ALLREDUCE, true>("HorovodReduceGradient", {"anchor: int32", "tensors: T"}, {"reduced: T"},
                                        {HVD_TYPES, HVD_REDUCTION, "step: string", "gradients_of_step: int"},
                                        same_shapes<1>));
  visit(collective<HVD_REDUCESCATTER>("HorovodReducescatter", {"tensors: T"}, {"rows: T"}, {HVD_TYPES, HVD_REDUCTION},
                                      all_other_rows<0>));
  visit(collective<HVD_ALLGATHER>("HorovodAllgather", {"tensors: T"}, {"gathered: T", "rows: int64"},
                                  {HVD_TYPES, HVD_NAME}, all_other_rows<0>));
  visit(collective<HVD_ALLTOALL>("HorovodAlltoall", {"tensor: T", "splits: int64"},
                                 {"received: T", "received_splits: int32"}, {"T: " HVD_DTYPES, HVD_NAME},
                                 all_other_rows<1>));
  visit(collective<HVD_BROADCAST>("HorovodBroadcast", {"tensors: T"}, {"copies: T"},
                                  {HVD_TYPES, HVD_NAME, "root_rank: int"}, same_shapes<0>));
  visit(collective<HVD_BARRIER>("HorovodBarrier", {}, {}, {HVD_NAME}, nothing));
  visit({"HorovodPlace",
         {},
         {"place: int32"},
         {"what: string", "process_set: int = 0"},
         scalar,
         true,
         create_place,
         create_place,
         nullptr,
         compute_place,
         delete_place});
}

// Why it did not succeed; empty if it did.
std::string registered(void (*visit)(const Signature&)) {
  try {
    for_each_operation(visit);
  } catch (const std::string& why) {
    return why;
  }
  return "";
}

// At the time that tf.load_op_library opens this library. Why the operations are not there; empty if they are.
std::string registration_error = [] {
  std::string missing = load_api();
  return missing.empty() ? registered(add) : missing;
}();

}  // namespace

}  // namespace hvd::tensorflow

extern "C" {

HVD_EXPORT const char* hvd_tensorflow_error(void) { return hvd::tensorflow::registration_error.c_str(); }

// Once, before hvd_tensorflow_error: the kernels for GPUs. `eigen_device`: see gpu_stream.h; null: TensorFlow copies
// their tensors to host memory and back. `may_stay`: whether another setting would leave them on the GPU.
HVD_EXPORT void hvd_tensorflow_take_gpus(hvd::tensorflow::EigenDevice eigen_device, int may_stay) {
  if (!hvd::tensorflow::registration_error.empty()) return;
  hvd::tensorflow::eigen_device = eigen_device;
  hvd::tensorflow::may_stay_on_gpu = may_stay != 0;
  hvd::tensorflow::registration_error = hvd::tensorflow::registered(hvd::tensorflow::add_on_gpu);
}

// The generation that operations belong to from here on. Null: they fail, and those in flight end with hvd_stop, which
// is to follow.
HVD_EXPORT void hvd_tensorflow_attach(hvd_context* context, int32_t local_rank, int32_t local_size) {
  if (context != nullptr) {
    hvd::tensorflow::local_rank = local_rank;
    hvd::tensorflow::local_size = local_size;
  }
  hvd::tensorflow::generation.attach(context);
}

}  // extern "C"
