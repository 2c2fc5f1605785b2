// SPDX-License-Identifier: Apache-2.0
// The stream on which TensorFlow's GPU computes. Its C interface does not tell it for CUDA, so it is found as
// TensorFlow's own kernels find it: OpKernelContext::eigen_device<Eigen::GpuDevice>(), which TensorFlow exports, gives
// an Eigen::GpuDevice. Its first word is the address of a StreamInterface, whose third virtual function returns a
// reference to the stream. That this is what stands there is checked, not trusted: it must be a function of
// TensorFlow's own libraries.
#pragma once

#include "shims/tensorflow/api.h"

namespace hvd::tensorflow {

// OpKernelContext::eigen_device<Eigen::GpuDevice>() const, whose result is a reference.
using EigenDevice = const void* (*)(const TF_OpKernelContext*);

// The CUstream of a kernel's call on a GPU; false if it cannot be found.
bool find_stream(EigenDevice eigen_device, const TF_OpKernelContext* context, void** stream);

}  // namespace hvd::tensorflow
