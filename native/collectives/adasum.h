// SPDX-License-Identifier: Apache-2.0
// Adasum (step 7): sums what the members' vectors do not have in common and averages what they have, tensor by tensor
// (S. Maleki et al., Scaling Distributed Training with Adaptive Summation, 2020):
//
//   adasum(a, b) = a (1 - a.b / 2|a|^2) + b (1 - a.b / 2|b|^2), a vector of zeros counts for nothing;
//   of the members' vectors: pairs of neighbours first, then pairs of pairs, so there must be a power of two.
//   Neighbours are neighbours by rank, on whichever hosts they are: hosts change no bit of it.
//
// Every member gets a *share* of each tensor from all, which it combines by itself; of each level only the dot products
// go around. So the bytes are those of an allreduce, on any transport. Products are accumulated in float64, halves are
// kept in float32 until the end, each level rounds once. The shares of a tensor depend on its own length alone, so
// neither fusion nor the transport changes a bit.
//
// Blocks until every member takes part. Allocates about three times the batch.
#pragma once

#include <span>

#include "collectives/communicator.h"
#include "reduction/kernels.h"

namespace hvd {

constexpr bool has_adasum(DataType dtype) { return is_floating(dtype); }

// A slice is a tensor. postscale * adasum(prescale * x_0, ...).
Status adasum(Communicator& communicator, const Kernels& kernels, std::span<const Slice> tensors,
              const Reduction& reduction);

}  // namespace hvd
