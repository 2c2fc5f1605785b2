// SPDX-License-Identifier: Apache-2.0
#include "engine/submission.h"

namespace hvd {

hvd_handle HandleTable::add(SubmissionPtr submission) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  slots_[index].submission = std::move(submission);
  return static_cast<uint64_t>(slots_[index].reuse) << 32 | (index + 1);
}

SubmissionPtr HandleTable::find(hvd_handle handle) const {
  const std::lock_guard lock(mutex_);
  const uint64_t index = (handle & 0xffffffff) - 1;
  if (index >= slots_.size() || slots_[index].reuse != handle >> 32) return nullptr;
  return slots_[index].submission;
}

void HandleTable::release(hvd_handle handle) {
  SubmissionPtr last;  // may own large results: freed after the lock
  const std::lock_guard lock(mutex_);
  const uint64_t index = (handle & 0xffffffff) - 1;
  if (index >= slots_.size() || slots_[index].reuse != handle >> 32 || slots_[index].submission == nullptr) return;
  last = std::move(slots_[index].submission);
  ++slots_[index].reuse;
  free_.push_back(static_cast<uint32_t>(index));
}

}  // namespace hvd
