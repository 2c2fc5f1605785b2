// SPDX-License-Identifier: Apache-2.0
// The floating-point environment in which results are computed: round to nearest, denormals kept, on every thread.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd {

class DefaultFloatEnvironment {
 public:
#if defined(__x86_64__)
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnvironment() = default;
#endif
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;
};

}  // namespace hvd
