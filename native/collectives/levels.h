// SPDX-License-Identifier: Apache-2.0
// The one expression of every reduction (step 7), which depends on the members, their order and their hosts, and on
// nothing else, so that every communicator gives the same bits:
//
//   each host folds the values of its members in rank order; then the hosts' results are folded, hosts by lowest rank.
//   Many hosts are in groups of neighbours (plan.h): each group folds its hosts' results, then those of the groups are
//   folded, in order.
//
// Prescale multiplies each value first; postscale and divisor are one multiplication at the very end. Halves accumulate
// in float32 and round once at each level. If there is one host, or one member on each, hosts are not a level; nor are
// groups if there is one. Integers and bool have one level always: their arithmetic is exact, or wraps, so levels could
// not show but in an Average.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "collectives/grid.h"
#include "reduction/kernels.h"
#include "world/topology.h"

namespace hvd {

struct Levels {
  Reduction inside;   // a host, or a group of hosts
  Reduction between;  // the results of these
};
inline Levels levels_of(const Reduction& reduction) {
  return {{reduction.dtype, reduction.op, reduction.prescale, 1.0, 1},
          {reduction.dtype, reduction.op, 1.0, reduction.postscale, reduction.divisor}};
}

// Folds the values of members: of all in one place, or of a grid's rows and then of its columns. One thread at a time.
class MemberFold {
 public:
  // `groups`: of the hosts.
  MemberFold(const Kernels& kernels, Topology members, int groups);

  // The rows and columns that may be folded one after the other. One row: all values have to be in one place.
  Grid grid(const Reduction& reduction) const;

  // inputs: by member, or by member of the row or column. The output may be the same memory as an input.
  using Inputs = std::span<const std::byte* const>;
  void all(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output);
  void row(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output);
  void column(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output);

 private:
  void fold_block(const Reduction& reduction, Inputs inputs, int64_t offset, int64_t count, std::byte* output);

  const Kernels kernels_;
  const Topology members_;
  const Grid hosts_;
  std::vector<std::byte> scratch_;  // by host, then by group, a block of its result
  std::vector<const std::byte*> of_host_, results_;
};

}  // namespace hvd
