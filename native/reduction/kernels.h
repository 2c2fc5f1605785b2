// SPDX-License-Identifier: Apache-2.0
// Element kernels (step 7): fold n inputs in order, scale once, store to one or two places. Same bits on every
// instruction set.
//
// Kernels own nothing, never block and may be used from any thread. They assume that floating-point state is the
// default one (round to nearest, denormals kept): see platform/float_state.h. A NaN result is always the one canonical
// quiet NaN, so that even payloads do not depend on the instruction set; only a fold of a single unscaled input is a
// plain copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/status.h"
#include "reduction/types.h"

namespace hvd {

enum class InstructionSet : uint8_t { kPlain, kAvx2, kAvx512, kBest };

const char* instruction_set_name(InstructionSet isa);
bool machine_has(InstructionSet isa);

// Where a fold stores. `stream`: past the caches, by non-temporal stores; they are visible to other cores when the call
// returns.
struct FoldOutput {
  std::byte* data = nullptr;
  bool stream = false;
};

struct FoldArguments {  // what crosses into an instruction set's own file
  const std::byte* const* inputs;
  int ninputs;
  int64_t count;
  FoldOutput outputs[2];
  Reduction reduction;
};

struct KernelTable {
  void (*fold)(const FoldArguments& arguments);
  void (*copy)(std::byte* to, const std::byte* from, size_t bytes, bool stream);
  void (*widen)(DataType dtype, const std::byte* from, int64_t count, float* to);
  void (*narrow)(DataType dtype, const float* from, int64_t count, std::byte* to);
};

class Kernels {
 public:
  // HVD_UNAVAILABLE where this machine lacks `isa`; kBest never fails.
  static Status create(InstructionSet isa, Kernels* out);
  Kernels();  // kBest

  // output = postscale * fold(prescale * inputs[0], prescale * inputs[1], ...) / divisor (see Reduction). An output may
  // be the same memory as an input, but they do not overlap otherwise; `second` may be absent.
  void fold(const Reduction& reduction, std::span<const std::byte* const> inputs, int64_t count, FoldOutput first,
            FoldOutput second = {}) const;
  void copy(std::byte* to, const std::byte* from, size_t bytes, bool stream) const {
    if (to != from && bytes > 0) table_->copy(to, from, bytes, stream);
  }
  // Between a half and its accumulation type. narrow() may write over its input.
  void widen(DataType half, const std::byte* from, int64_t count, float* to) const {
    table_->widen(half, from, count, to);
  }
  void narrow(DataType half, const float* from, int64_t count, std::byte* to) const {
    table_->narrow(half, from, count, to);
  }
  InstructionSet instruction_set() const { return isa_; }

 private:
  const KernelTable* table_;
  InstructionSet isa_;
};

}  // namespace hvd
