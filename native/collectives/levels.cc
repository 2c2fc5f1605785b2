// SPDX-License-Identifier: Apache-2.0
// The fold over hosts of folds inside hosts, block by block (step 7).
#include "collectives/levels.h"

#include <algorithm>
#include <utility>

namespace hvd {

namespace {

constexpr size_t kBlockBytes = 4096;  // of one host's result: what a few hosts need stays in the nearest cache

}  // namespace

MemberFold::MemberFold(const Kernels& kernels, Topology members) : kernels_(kernels), members_(std::move(members)) {
  if (members_.is_flat()) return;
  const auto hosts = static_cast<size_t>(members_.hosts());
  scratch_.resize(hosts * kBlockBytes);
  for (size_t host = 0; host < hosts; ++host) results_.push_back(scratch_.data() + host * kBlockBytes);
}

void MemberFold::operator()(const Reduction& reduction, std::span<const std::byte* const> inputs, int64_t count,
                            std::byte* output) {
  if (members_.is_flat() || !is_floating(reduction.dtype)) {
    kernels_.fold(reduction, inputs, count, {output});
    return;
  }
  const Levels levels = levels_of(reduction);
  const auto element_bytes = static_cast<int64_t>(element_size(reduction.dtype));
  const int64_t block = static_cast<int64_t>(kBlockBytes) / element_bytes;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t length = std::min(block, count - begin);
    for (int host = 0; host < members_.hosts(); ++host) {
      of_host_.clear();
      for (const int member : members_.ranks_of(host)) {
        of_host_.push_back(inputs[static_cast<size_t>(member)] + begin * element_bytes);
      }
      kernels_.fold(levels.inside, of_host_, length, {scratch_.data() + static_cast<size_t>(host) * kBlockBytes});
    }
    kernels_.fold(levels.between, results_, length, {output + begin * element_bytes});
  }
}

}  // namespace hvd
