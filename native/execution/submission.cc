// SPDX-License-Identifier: Apache-2.0
#include "execution/submission.h"

#include "negotiation/names.h"

namespace hvd {

std::string describe(int rank, const std::string& name, int32_t kind) {
  const std::string unnamed = std::string("unnamed ") + name_of(static_cast<hvd_kind>(kind));
  return "rank " + std::to_string(rank) + ", " + (name.empty() ? unnamed : quote_name(name));
}

std::string name_of(const Submission& call) { return quote_name(*call.name, call.descriptor); }

Status failure_of(const Submission& call, Status cause) {
  const std::string name = name_of(call);
  return cause.text().starts_with(name + ": ") ? cause : std::move(cause).while_doing(name + " failed");
}

Status of_rank(int rank, Status status) {
  const hvd_code code = status.code();
  const bool is_own = code == HVD_INTERNAL || code == HVD_OUT_OF_MEMORY || code == HVD_DEVICE_LOST;
  if (!(is_own || code == HVD_RANK_LOST) || status.failed_rank() >= 0) return status;
  return {code, "rank " + std::to_string(rank) + ": " + status.text(), is_own ? rank : -1};
}

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
