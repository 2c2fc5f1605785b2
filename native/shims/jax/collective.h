// SPDX-License-Identifier: Apache-2.0
// A collective inside of what XLA compiles: how XLA's call is read, and how it is answered (step 4 of a gradient's way,
// for JAX). The order in which a rank starts its calls is XLA's business (src/horovod/jax/compiled.py).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "horovod/horovod.h"
#include "shims/collective.h"
#include "shims/jax/ffi.h"
#include "shims/jax/tree.h"

namespace hvd::jax {

// The compiled program's description of a call, and the tensors of this call.
struct Collective : shims::Collective {
  // The number of members that the program was compiled for, and this rank's place among them.
  int32_t members = 1, member = 0;
  int32_t order_operands = 0;       // 1: the first operand is a value of the call before
  Tree tree;                        // of gradients
  std::vector<hvd_tensor> tensors;  // their shapes are XLA's memory, which is gone when the handler has returned
  std::vector<int64_t> rows;        // the first dimension of each, 0 if it has none
};

// Fills in what the frame holds. Returns why it cannot; empty if it could.
std::string read_frame(const CallFrame& frame, Collective* collective);

// True if every member gave as many rows as this one: only then does the result have the size that XLA expects.
bool rows_are_equal(const Collective& collective, size_t tensor, const hvd_result& result, hvd_status* status);

// XLA asks before it calls. False: this is a call.
bool answer_question(const CallFrame& frame);
// `tree`: of the call's gradients.
Error* error_of(const Api* api, const hvd_status& status, const Tree& tree);

}  // namespace hvd::jax
