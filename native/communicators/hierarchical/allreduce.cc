// SPDX-License-Identifier: Apache-2.0
#include "communicators/hierarchical/allreduce.h"

#include <algorithm>

namespace hvd {

namespace {

constexpr int64_t kAhead = 4;  // pieces under way before the first one comes back

}  // namespace

HierarchicalAllreduce::HierarchicalAllreduce(Inner inner, plan::BetweenHosts way, int carriers,
                                             std::span<const Slice> slices, const Reduction& reduction)
    : inner_(inner),
      way_(way),
      carriers_(carriers),
      levels_(levels_of(reduction)),
      list_(slices, element_size(reduction.dtype)),
      unit_(plan::unit_elements(list_.element_bytes())),
      piece_elements_(plan::piece_elements(list_.count(), list_.element_bytes(), way.shares, carriers)),
      pieces_(plan::pieces_of(list_.count(), piece_elements_)),
      parts_(static_cast<size_t>(inner.inside.size())) {}

Status HierarchicalAllreduce::run() {
  std::vector<Slice> carried;
  std::unique_ptr<PiecewiseAllreduce> between;
  if (inner_.between != nullptr) {
    for (int64_t k = 0; k < pieces_; ++k) {
      for (Slice slice : part(k, inner_.inside.member())) carried.push_back({slice.output, slice.output, slice.count});
    }
    between = inner_.between->allreduce_in_pieces(carried, levels_.between,
                                                  {piece_elements_ / carriers_, kAhead, way_.in_groups});
  }
  for (int64_t k = 0; k < pieces_ + kAhead; ++k) {
    if (k < pieces_) {
      HVD_RETURN_IF_ERROR(fold_inside(k));
      if (between != nullptr) HVD_RETURN_IF_ERROR(between->offer(k));
    }
    if (k < kAhead) continue;
    if (between != nullptr) HVD_RETURN_IF_ERROR(between->finish(k - kAhead));
    HVD_RETURN_IF_ERROR(share_inside(k - kAhead));
  }
  return {};
}

// Of a carrier, a piece of what it carries.
std::vector<Slice> HierarchicalAllreduce::part(int64_t piece, int carrier) const {
  const int64_t begin = piece * piece_elements_, count = std::min(piece_elements_, list_.count() - begin);
  const Share share = share_of(count, carriers_, carrier, unit_);
  return list_.range(begin + share.begin, share.count);
}

Status HierarchicalAllreduce::fold_inside(int64_t piece) {
  for (int carrier = 0; carrier < carriers_; ++carrier) {
    std::vector<Slice>& slices = parts_[static_cast<size_t>(carrier)];
    slices = part(piece, carrier);
    for (Slice& slice : slices) slice.output = carrier == inner_.inside.member() ? slice.output : nullptr;
  }
  return inner_.inside.reducescatter(parts_, levels_.inside);
}

Status HierarchicalAllreduce::share_inside(int64_t piece) {
  for (int carrier = 0; carrier < carriers_; ++carrier) {
    std::vector<Slice>& slices = parts_[static_cast<size_t>(carrier)];
    slices = part(piece, carrier);
    for (Slice& slice : slices) slice.input = slice.output;
  }
  return inner_.inside.share(parts_, list_.element_bytes());
}

}  // namespace hvd
