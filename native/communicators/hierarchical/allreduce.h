// SPDX-License-Identifier: Apache-2.0
// Large allreduces over several hosts with several members on some of them (step 7). The first members of each host are
// *carriers*, on every host as many. The batch is cut into *pieces*, a piece into one part for each carrier. Piece by
// piece:
//
//   1. inside a host, carrier i gets the fold of part i (reducescatter).
//   2. the i-th carriers of all hosts reduce their parts over the hosts (allreduce, a part of a piece is its piece).
//   3. inside a host, carrier i gives part i to all (share).
//
// Step 3 follows some pieces behind step 1, so that the links carry data all the time. So each byte is copied inside a
// host once on the way out and once on the way back, and leaves the host as often as it must.
//
// One object is one operation. Borrows everything; blocks and fails as the inner communicators do. `inside` folds in
// place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collectives/levels.h"
#include "collectives/plan.h"
#include "collectives/slices.h"
#include "world/topology.h"

namespace hvd {

class HierarchicalAllreduce {
 public:
  struct Inner {
    Communicator& inside;
    Communicator* between;  // the carriers with this one's number; null if this member is none
  };
  HierarchicalAllreduce(Inner inner, plan::BetweenHosts way, int carriers, std::span<const Slice> slices,
                        const Reduction& reduction);
  Status run();

 private:
  Status fold_inside(int64_t piece);
  Status share_inside(int64_t piece);
  std::vector<Slice> part(int64_t piece, int carrier) const;

  const Inner inner_;
  const plan::BetweenHosts way_;
  const int carriers_;
  const Levels levels_;
  const SliceList list_;
  const int64_t unit_, piece_elements_, pieces_;
  std::vector<std::vector<Slice>> parts_;  // by member of this host
};

}  // namespace hvd
