// SPDX-License-Identifier: Apache-2.0
#include "fusion/batch.h"

namespace hvd {
namespace {

struct Open {  // a batch that may still grow
  size_t index;
  uint64_t bytes;
};

bool fuse(const Batch& batch, const Descriptor& descriptor, DataType dtype) {
  return batch.dtype == dtype && batch.descriptor->place == descriptor.place &&
         batch.descriptor->kind == descriptor.kind && batch.descriptor->op == descriptor.op &&
         batch.descriptor->process_set == descriptor.process_set && batch.descriptor->prescale == descriptor.prescale &&
         batch.descriptor->postscale == descriptor.postscale;
}

}  // namespace

std::vector<Batch> plan_batches(std::span<const Descriptor* const> entries, uint64_t threshold_bytes,
                                bool groups_apart) {
  std::vector<Batch> batches;
  std::vector<Open> open;
  for (uint32_t e = 0; e < entries.size(); ++e) {
    const Descriptor& descriptor = *entries[e];
    if (!reduces(descriptor.kind)) {
      Batch alone{&descriptor, HVD_UINT8, {}, e};
      for (uint32_t t = 0; t < descriptor.tensors.size(); ++t) alone.tensors.push_back({e, t});
      batches.push_back(std::move(alone));
      continue;
    }
    for (uint32_t t = 0; t < descriptor.tensors.size(); ++t) {
      const TensorSpec& tensor = descriptor.tensors[t];
      const uint64_t bytes = static_cast<uint64_t>(tensor.count()) * element_size(tensor.dtype);
      Open* target = nullptr;
      for (Open& candidate : open) {
        const Batch& batch = batches[candidate.index];
        const bool of_groups = descriptor.tensors.size() > 1 || batch.descriptor->tensors.size() > 1;
        if (groups_apart && of_groups && batch.entry != e) continue;
        if (fuse(batch, descriptor, tensor.dtype)) target = &candidate;
      }
      if (target != nullptr && target->bytes + bytes <= threshold_bytes) {
        batches[target->index].tensors.push_back({e, t});
        target->bytes += bytes;
        continue;
      }
      batches.push_back({&descriptor, tensor.dtype, {{e, t}}, e});
      if (target != nullptr) {
        *target = {batches.size() - 1, bytes};
      } else {
        open.push_back({batches.size() - 1, bytes});
      }
    }
  }
  return batches;
}

}  // namespace hvd
