// SPDX-License-Identifier: Apache-2.0
// Element kernels: fold n inputs in order, scale once, store to one or two places. Same bits on every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduction/types.h"

namespace hvd {

enum class InstructionSet : uint8_t { kPlain, kAvx2, kAvx512, kBest };

}  // namespace hvd
