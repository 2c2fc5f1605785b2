// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX2 with F16C (step 7). The target holds to the end of the file, so that instantiations fall under
// it.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduction/kernels.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#define HVD_KERNEL_NAMESPACE avx2
#define HVD_KERNEL_TABLE kAvx2Kernels
#define HVD_VECTOR_BYTES 32
#include "reduction/kernel_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
