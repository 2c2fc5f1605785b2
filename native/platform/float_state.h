// SPDX-License-Identifier: Apache-2.0
// FloatState: the thread's floating-point state is the default one (round to nearest, denormals kept, exceptions
// masked) while this object lives. A caller's thread may flush denormals; a result must not depend on who happened to
// drive the engine.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hvd {

class FloatState {
 public:
#if defined(__x86_64__)
  FloatState() : saved_(_mm_getcsr()) {
    if ((saved_ & ~kSticky) != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatState() {
    if ((saved_ & ~kSticky) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr uint32_t kDefault = 0x1f80, kSticky = 0x3f;
  uint32_t saved_;
#elif defined(__aarch64__)
  FloatState() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FloatState() {
    if (saved_ != 0) asm volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  uint64_t saved_ = 0;
#else
  FloatState() {}
#endif

 public:
  FloatState(const FloatState&) = delete;
  FloatState& operator=(const FloatState&) = delete;
};

}  // namespace hvd
