// SPDX-License-Identifier: Apache-2.0
// The kernels for AVX-512 (step 7). Not avx512_bf16: its conversion flushes denormals. The target holds to the end of
// the file.
#if defined(__x86_64__)
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduction/kernels.h"
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq"))), \
                             apply_to = function)
#else
// g++ 12 takes its own headers' undefined vectors for uninitialized ones.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#endif
#define HVD_KERNEL_NAMESPACE avx512
#define HVD_KERNEL_TABLE kAvx512Kernels
#define HVD_VECTOR_BYTES 64
#include "reduction/kernel_body.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
