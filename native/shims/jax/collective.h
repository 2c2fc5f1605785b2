// SPDX-License-Identifier: Apache-2.0
// A collective inside of what XLA compiles: from XLA's call to a request of the engine and back (step 4 of a gradient's
// way, for JAX).
//
// XLA's thread submits and drives the engine until the operation is done, as a thread that waits in Python does. That
// cannot deadlock: the tokens of JAX's ordered effects put all calls of a program, and of the programs that a thread
// dispatches, into one order, so a rank is inside of one at a time and all ranks come in the same order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horovod/horovod.h"
#include "shims/jax/ffi.h"

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
  int32_t order_operands = 0;  // 1: the first operand is a value of the call before
  std::vector<hvd_tensor> tensors;
};

// Fills in what the frame holds. Returns why it cannot; empty if it could.
std::string read_frame(const CallFrame& frame, Collective* collective);

// Runs it in the running generation; blocks until it is done.
hvd_status run(const Collective& collective);

}  // namespace hvd::jax
