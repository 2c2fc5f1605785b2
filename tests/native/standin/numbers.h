// SPDX-License-Identifier: Apache-2.0
// NCCL's types and operations on numbers, as the stand-in computes them.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels.h"

namespace standin {

enum : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4, kFirstMade = 5 };

inline size_t bytes_of(int type) {
  switch (type) {
    case 0:
    case 1:
      return 1;
    case 2:
    case 3:
    case 7:
      return 4;
    case 4:
    case 5:
    case 8:
      return 8;
    case 6:
    case 9:
      return 2;
    default:
      return 0;
  }
}

inline double as_number(int type, const std::byte* at) {
  switch (type) {
    case 0:
      return load<int8_t>(at);
    case 1:
      return load<uint8_t>(at);
    case 2:
      return load<int32_t>(at);
    case 3:
      return load<uint32_t>(at);
    case 5:
      return static_cast<double>(load<uint64_t>(at));
    case 6:
      return static_cast<double>(load<_Float16>(at));
    case 7:
      return load<float>(at);
    case 8:
      return load<double>(at);
    default:
      return widened(load<uint16_t>(at));
  }
}

inline void store_number(int type, std::byte* at, double value) {
  switch (type) {
    case 0:
      return store(at, static_cast<int8_t>(value));
    case 1:
      return store(at, static_cast<uint8_t>(value));
    case 2:
      return store(at, static_cast<int32_t>(value));
    case 3:
      return store(at, static_cast<uint32_t>(value));
    case 5:
      return store(at, static_cast<uint64_t>(value));
    case 6:
      return store(at, static_cast<_Float16>(value));
    case 7:
      return store(at, static_cast<float>(value));
    case 8:
      return store(at, value);
    default:
      return store(at, narrowed(static_cast<float>(value)));
  }
}

// As CUDA's fmax does: a number and no NaN, if one of the two is a number; +0 is more than -0.
template <class Number>
Number larger(Number a, Number b) {
  if (a == b) return std::signbit(a) ? b : a;
  return std::fmax(a, b);
}

template <class Number>
Number reduce_two(int op, Number a, Number b) {
  switch (op) {
    case kProduct:
      return a * b;
    case kMax:
      return larger(a, b);
    case kMin:
      return -larger(-a, -b);
    default:
      return a + b;
  }
}

}  // namespace standin
