// SPDX-License-Identifier: Apache-2.0
// TensorFlow's C interface as far as the shim uses it, without its headers: each function is looked up in the
// TensorFlow that the process has loaded, so one binary serves every release. Ownership and threads are TensorFlow's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace hvd::tensorflow {

// TF_Code
enum Code : int {
  kOk = 0,
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12
};

using CreateKernel = void* (*)(TF_OpKernelConstruction*);
using ComputeKernel = void (*)(void*, TF_OpKernelContext*);
using ComputeKernelAsync = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DeleteKernel = void (*)(void*);
using InferShapes = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// X(name, result, arguments)
#define HVD_TENSORFLOW_API(X)                                                                                        \
  X(NewStatus, TF_Status*, ())                                                                                       \
  X(DeleteStatus, void, (TF_Status*))                                                                                \
  X(SetStatus, void, (TF_Status*, int, const char*))                                                                 \
  X(GetCode, int, (const TF_Status*))                                                                                \
  X(Message, const char*, (const TF_Status*))                                                                        \
  X(NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char*))                                                  \
  X(OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char*))                                        \
  X(OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char*))                                       \
  X(OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char*))                                      \
  X(OpDefinitionBuilderSetIsStateful, void, (TF_OpDefinitionBuilder*, bool))                                         \
  X(OpDefinitionBuilderSetShapeInferenceFunction, void, (TF_OpDefinitionBuilder*, InferShapes))                      \
  X(RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                               \
  X(NewShapeHandle, TF_ShapeHandle*, ())                                                                             \
  X(DeleteShapeHandle, void, (TF_ShapeHandle*))                                                                      \
  X(ShapeInferenceContextNumInputs, int64_t, (TF_ShapeInferenceContext*))                                            \
  X(ShapeInferenceContextGetInput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))              \
  X(ShapeInferenceContextSetOutput, void, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
  X(ShapeInferenceContextRankKnown, int, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                               \
  X(ShapeInferenceContextVectorFromSize, TF_ShapeHandle*, (TF_ShapeInferenceContext*, size_t))                       \
  X(ShapeInferenceContextScalar, TF_ShapeHandle*, (TF_ShapeInferenceContext*))                                       \
  X(ShapeInferenceContextWithRankAtLeast, void,                                                                      \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, TF_ShapeHandle*, TF_Status*))                              \
  X(ShapeInferenceContextSubshape, void,                                                                             \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t, TF_ShapeHandle*, TF_Status*))                     \
  X(ShapeInferenceContextConcatenateShapes, void,                                                                    \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                      \
  X(NewKernelBuilder, TF_KernelBuilder*, (const char*, const char*, CreateKernel, ComputeKernel, DeleteKernel))      \
  X(NewAsyncKernelBuilder, TF_KernelBuilder*,                                                                        \
    (const char*, const char*, CreateKernel, ComputeKernelAsync, DeleteKernel))                                      \
  X(KernelBuilder_HostMemory, void, (TF_KernelBuilder*, const char*))                                                \
  X(RegisterKernelBuilder, void, (const char*, TF_KernelBuilder*, TF_Status*))                                       \
  X(OpKernelConstruction_GetAttrSize, void, (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*)) \
  X(OpKernelConstruction_GetAttrString, void, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))    \
  X(OpKernelConstruction_GetAttrInt64, void, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))          \
  X(OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                                      \
  X(NumInputs, int, (TF_OpKernelContext*))                                                                           \
  X(GetInput, void, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                             \
  X(AllocateOutput, TF_Tensor*, (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))            \
  X(OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))                                                \
  X(RunAsyncOpKernelDoneCallback, void, (TF_AsyncOpKernelDoneCallback*))                                             \
  X(DeleteTensor, void, (TF_Tensor*))                                                                                \
  X(TensorData, void*, (const TF_Tensor*))                                                                           \
  X(TensorByteSize, size_t, (const TF_Tensor*))                                                                      \
  X(TensorType, int, (const TF_Tensor*))                                                                             \
  X(NumDims, int, (const TF_Tensor*))                                                                                \
  X(Dim, int64_t, (const TF_Tensor*, int))

struct Api {
#define HVD_DECLARE(name, result, arguments) result(*name) arguments = nullptr;
  HVD_TENSORFLOW_API(HVD_DECLARE)
#undef HVD_DECLARE
};

// Filled by load_api() before anything else of the shim runs.
extern Api tf;

// Looks the functions up. Returns what is missing, empty if nothing is.
std::string load_api();

struct StatusDeleter {
  void operator()(TF_Status* status) const { tf.DeleteStatus(status); }
};
using StatusPtr = std::unique_ptr<TF_Status, StatusDeleter>;
inline StatusPtr new_status() { return StatusPtr(tf.NewStatus()); }

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { tf.DeleteTensor(tensor); }
};
using TensorPtr = std::unique_ptr<TF_Tensor, TensorDeleter>;

}  // namespace hvd::tensorflow
