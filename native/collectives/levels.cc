// SPDX-License-Identifier: Apache-2.0
// The fold over hosts of folds inside hosts, block by block (step 7).
#include "collectives/levels.h"

#include <algorithm>
#include <utility>

namespace hvd {

namespace {

constexpr size_t kBlockBytes = 4096;  // of one host's result: what a few hosts need stays in the nearest cache

}  // namespace

MemberFold::MemberFold(const Kernels& kernels, Topology members, int groups)
    : kernels_(kernels), members_(std::move(members)), hosts_(members_.hosts(), groups) {
  if (members_.is_flat() && groups == 1) return;
  scratch_.resize(static_cast<size_t>(members_.hosts() + groups) * kBlockBytes);
}

Grid MemberFold::grid(const Reduction& reduction) const {
  const bool has_levels = is_floating(reduction.dtype) || reduction.divisor == 1;
  return {members_.size(), has_levels && members_.hosts() == members_.size() ? hosts_.groups() : 1};
}

void MemberFold::all(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output) {
  if ((members_.is_flat() && hosts_.groups() == 1) || !is_floating(reduction.dtype)) {
    kernels_.fold(reduction, inputs, count, {output});
    return;
  }
  const auto element_bytes = static_cast<int64_t>(element_size(reduction.dtype));
  const int64_t block = static_cast<int64_t>(kBlockBytes) / element_bytes;
  for (int64_t begin = 0; begin < count; begin += block) {
    fold_block(reduction, inputs, begin * element_bytes, std::min(block, count - begin), output);
  }
}

// Of `count` elements, `offset` bytes from the first.
void MemberFold::fold_block(const Reduction& reduction, Inputs inputs, int64_t offset, int64_t count,
                            std::byte* output) {
  const auto hosts = static_cast<size_t>(members_.hosts());
  const auto block = [this](size_t place) { return scratch_.data() + place * kBlockBytes; };
  Levels levels = levels_of(reduction);
  results_.clear();
  for (size_t host = 0; host < hosts; ++host) {
    of_host_.clear();
    for (const int member : members_.ranks_of(static_cast<int>(host))) {
      of_host_.push_back(inputs[static_cast<size_t>(member)] + offset);
    }
    if (!members_.is_flat()) kernels_.fold(levels.inside, of_host_, count, {block(host)});
    results_.push_back(members_.is_flat() ? of_host_.front() : block(host));
  }
  if (hosts_.groups() > 1) {
    if (!members_.is_flat()) levels = levels_of(levels.between);
    for (int group = 0; group < hosts_.groups(); ++group) {
      const Inputs of_group = Inputs(results_).subspan(static_cast<size_t>(hosts_.row_begin(group)),
                                                       static_cast<size_t>(hosts_.row_size(group)));
      kernels_.fold(levels.inside, of_group, count, {block(hosts + static_cast<size_t>(group))});
    }
    results_.clear();
    for (size_t group = 0; group < static_cast<size_t>(hosts_.groups()); ++group) {
      results_.push_back(block(hosts + group));
    }
  }
  kernels_.fold(levels.between, results_, count, {output + offset});
}

void MemberFold::row(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output) {
  kernels_.fold(levels_of(reduction).inside, inputs, count, {output});
}

void MemberFold::column(const Reduction& reduction, Inputs inputs, int64_t count, std::byte* output) {
  kernels_.fold(levels_of(reduction).between, inputs, count, {output});
}

}  // namespace hvd
