// SPDX-License-Identifier: Apache-2.0
// The kernels for any machine (step 7).
#define HVD_KERNEL_NAMESPACE plain
#define HVD_KERNEL_TABLE kPlainKernels
#define HVD_VECTOR_BYTES 16
#include "reduction/kernel_body.h"
