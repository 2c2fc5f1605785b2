// SPDX-License-Identifier: Apache-2.0
// The one expression of every reduction (step 7), which depends on the members, their order and their hosts, and on
// nothing else, so that every communicator gives the same bits:
//
//   each host folds the values of its members in rank order; then the hosts' results are folded, hosts by lowest rank.
//
// Prescale multiplies each value first; postscale and divisor are one multiplication at the very end. Halves accumulate
// in float32 and round once at each level. If there is one host, or one member on each, there is one level. Integers
// and bool have one level always: their arithmetic is exact, or wraps, so levels could not show but in an Average.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "reduction/kernels.h"
#include "world/topology.h"

namespace hvd {

struct Levels {
  Reduction inside;   // a host
  Reduction between;  // the hosts' results
};
inline Levels levels_of(const Reduction& reduction) {
  return {{reduction.dtype, reduction.op, reduction.prescale, 1.0, 1},
          {reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor}};
}

// Folds the values of all members in one place. One thread at a time.
class MemberFold {
 public:
  MemberFold(const Kernels& kernels, Topology members);

  // inputs: by member. The output may be the same memory as an input.
  void operator()(const Reduction& reduction, std::span<const std::byte* const> inputs, int64_t count,
                  std::byte* output);

 private:
  const Kernels kernels_;
  const Topology members_;
  std::vector<std::byte> scratch_;  // by host, a block of its result
  std::vector<const std::byte*> of_host_, results_;
};

}  // namespace hvd
