// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 (step 7). Not avx512_bf16: its conversion flushes denormals. CMakeLists.txt has the flags
// that this file alone is compiled with.
#if defined(__x86_64__)
#if !defined(__clang__)
// g++ 12 takes its own headers' undefined vectors for uninitialized ones.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define HVD_KERNEL_NAMESPACE avx512
#define HVD_KERNEL_TABLE kAvx512Kernels
#define HVD_VECTOR_BYTES 64
#include "reduction/kernel_body.h"
#endif
