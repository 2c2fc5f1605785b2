// SPDX-License-Identifier: Apache-2.0
// A collective inside of what XLA compiles: from XLA's call to a request of the engine and back (step 4 of a gradient's
// way, for JAX).
//
// The handler submits, drives the engine for a moment, and returns, if need be before the operation is done: XLA hears
// of the end through a future then. So no number of XLA's threads is too small, and what does not depend on the result
// goes on. The order in which a rank starts its calls is XLA's business
// (src/horovod/jax/compiled.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horovod/horovod.h"
#include "shims/jax/ffi.h"
#include "shims/jax/tree.h"

namespace hvd::jax {

// What the compiled program says of a call, and the tensors of this one.
struct Collective {
  hvd_kind kind = HVD_ALLREDUCE;
  std::string name;  // empty: matched by order
  int32_t op = HVD_SUM;
  int32_t process_set = 0;
  int32_t root_rank = -1;
  double prescale = 1.0, postscale = 1.0;
  // Those for whom it was compiled, and this rank's place among them.
  int32_t members = 1, member = 0;
  int32_t order_operands = 0;       // 1: the first operand is a value of the call before
  Tree tree;                        // of gradients
  std::vector<hvd_tensor> tensors;  // their shapes are XLA's memory, which is gone when the handler has returned
  std::vector<int64_t> rows;        // the first dimension of each, 0 if it has none
};

// Fills in what the frame holds. Returns why it cannot; empty if it could.
std::string read_frame(const CallFrame& frame, Collective* collective);

}  // namespace hvd::jax
