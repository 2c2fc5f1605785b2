// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 with F16C (step 7). CMakeLists.txt has the flags that this file alone is compiled with.
#if defined(__x86_64__)
#define HVD_KERNEL_NAMESPACE avx2
#define HVD_KERNEL_TABLE kAvx2Kernels
#define HVD_VECTOR_BYTES 32
#include "reduction/kernel_body.h"
#endif
