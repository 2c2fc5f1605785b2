// SPDX-License-Identifier: Apache-2.0
// Element types and what a reduction is, as the kernels and transports see it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horovod/horovod.h"

namespace hvd {

using DataType = hvd_dtype;
using ReduceOp = hvd_op;

constexpr bool is_floating(DataType dtype) {
  return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
}

constexpr bool is_bitwise(ReduceOp op) { return op == HVD_BITAND || op == HVD_BITOR || op == HVD_BITXOR; }

constexpr size_t element_size(DataType dtype) {
  switch (dtype) {
    case HVD_UINT8:
    case HVD_INT8:
    case HVD_BOOL:
      return 1;
    case HVD_INT16:
    case HVD_UINT16:
    case HVD_FLOAT16:
    case HVD_BFLOAT16:
      return 2;
    case HVD_INT32:
    case HVD_UINT32:
    case HVD_FLOAT32:
      return 4;
    case HVD_INT64:
    case HVD_UINT64:
    case HVD_FLOAT64:
      return 8;
  }
  return 0;
}

// result = postscale * fold(prescale * x_0, prescale * x_1, ...) / divisor, the fold in member order.
//
// Floating point: halves accumulate in float32 and are rounded once; the last factor is (postscale / divisor), computed
// in double, converted once to the accumulation type and multiplied once; a factor of exactly 1 is not applied; never
// FMA. Integers: Average is the exact sum divided by `divisor`, truncated toward zero; Sum and Product wrap; a scale
// that is not 1 multiplies in double and truncates toward zero, saturating. Bool: Min and BitAnd are and, Max and BitOr
// are or, BitXor is xor, anything else is refused before it gets here; so are bitwise operations of floating point, and
// scaled ones. Min and Max propagate NaN and order -0 below +0.
struct Reduction {
  DataType dtype = HVD_FLOAT32;
  ReduceOp op =
      HVD_SUM;  // never HVD_AVERAGE: that is HVD_SUM with a divisor; HVD_ADASUM is not a fold: collectives/adasum.h
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t divisor = 1;
};

}  // namespace hvd
