// SPDX-License-Identifier: Apache-2.0
// The user's side of the engine: the wait for a call, and its results.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/submitter.h"
#include "platform/clock.h"

namespace hvd {

static uint64_t deadline_in(int32_t timeout_ms) {
  return timeout_ms < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
}

Status Submitter::wait_for(const std::atomic<bool>& done, uint64_t deadline_ns) {
  if (done.load()) return {};
  if (calls_.is_calling_back()) {
    return {HVD_WOULD_DEADLOCK, "a completion callback cannot wait: it runs on the thread that makes progress"};
  }
  wakeup_.begin_waiting();
  // The entries that this rank has completed can be told now: it submits nothing more.
  if (!publisher_.ends_batches() && !map_.is_leader()) bells_.ring(0);
  wakeup_.wait(done, deadline_ns);
  wakeup_.end_waiting();
  wakeup_.hand_over();
  return done.load() ? Status() : Status(HVD_PENDING, "");
}

// wait_for, and how long it took. A flag that is set already needs no look at the clock.
Status Submitter::wait_in(const Submission& submission, const std::atomic<bool>& done, int32_t timeout_ms) {
  if (done.load()) return {};
  const uint64_t since_ns = now_ns();
  const bool is_traced = trace_.enter_wait(submission);
  Status outcome = wait_for(done, deadline_in(timeout_ms));
  if (is_traced) trace_.leave_wait();
  const bool is_pending = outcome.code() == HVD_PENDING;
  if (!outcome.ok() && !is_pending) return outcome;
  const uint64_t end_ns = now_ns();
  uint64_t ready_ns = submission.ready_ns.load(std::memory_order_relaxed);
  if (ready_ns == 0 && !is_pending) return outcome;
  ready_ns = ready_ns == 0 ? end_ns : std::clamp(ready_ns, since_ns, end_ns);
  arrivals_.note_blocked(ready_ns - since_ns, end_ns - ready_ns);
  return outcome;
}

Status Submitter::missing(hvd_handle handle, int32_t* ranks, uint32_t* nranks) const {
  const std::vector<int> missing = calls_.missing(handles_.find(handle));
  if (missing.size() > *nranks) return {HVD_INVALID_ARGUMENT, "ranks has no room for those of this host"};
  std::ranges::copy(missing, ranks);
  *nranks = static_cast<uint32_t>(missing.size());
  return {};
}

Status Submitter::poll(hvd_handle handle) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  return submission->done.load() ? submission->status : Status(HVD_PENDING, "");
}

Status Submitter::poll_launch(hvd_handle handle) {
  const SubmissionPtr submission = handles_.find(handle);
  const bool is_launched = submission != nullptr && submission->is_launched();
  return is_launched && !submission->done.load() ? Status() : poll(handle);
}

Status Submitter::wait(hvd_handle handle, int32_t timeout_ms) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  if (submission->done.load()) return submission->status;  // as of most small ones: without a look at the clock
  HVD_RETURN_IF_ERROR(wait_in(*submission, submission->done, timeout_ms));
  return submission->status;
}

Status Submitter::wait_on_stream(hvd_handle handle, cuda::Stream stream, int32_t timeout_ms) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr || submission->on_device == nullptr) return wait(handle, timeout_ms);
  const OnDevice& there = *submission->on_device;
  HVD_RETURN_IF_ERROR(wait_in(*submission, there.is_launched, timeout_ms));
  if (there.launch == nullptr) return submission->status;  // it failed before
  HVD_RETURN_IF_ERROR(
      checked_for_all(there.launch->device->wait(stream, there.launch->done), submission->prepared->name));
  return submission->done.load() ? submission->status : Status();
}

Status Submitter::settle(int32_t timeout_ms) {
  const Status waited = await_launched(timeout_ms);
  if (!waited.ok() && waited.code() != HVD_PENDING) return waited;
  return ending_.poisoned() ? ending_.cause() : waited;  // a kernel of the script may hang for ever
}

Status Submitter::await_launched(int32_t timeout_ms) {
  const uint64_t deadline_ns = deadline_in(timeout_ms);
  while (const SubmissionPtr last = launched_.last()) {
    HVD_RETURN_IF_ERROR(wait_for(last->done, deadline_ns));
    HVD_RETURN_IF_ERROR(last->status);
  }
  return {};
}

Status Submitter::find_result(hvd_handle handle, uint32_t index, SubmissionPtr* submission, Gathered** result) const {
  *submission = handles_.find(handle);
  if (*submission == nullptr) return invalid("unknown or released handle");
  if (!(*submission)->done.load() && !(*submission)->is_launched()) {
    return {HVD_PENDING, "the operation is not done"};
  }
  if (index >= (*submission)->results.size()) return invalid("the operation has no such result");
  *result = &(*submission)->results[index];
  return {};
}

Status Submitter::copy_result(hvd_handle handle, uint32_t index, void* to, cuda::Stream stream) {
  SubmissionPtr submission;
  Gathered* result = nullptr;
  HVD_RETURN_IF_ERROR(find_result(handle, index, &submission, &result));
  const Prepared& prepared = *submission->prepared;
  if (prepared.device == nullptr) return invalid("the operation's tensors lie in host memory");
  const TensorSpec spec{prepared.tensors[index].dtype, result->shape};
  const size_t bytes = static_cast<size_t>(spec.count()) * element_size(spec.dtype);
  if (bytes == 0) return {};
  if (to == nullptr) return invalid("to: expected a pointer, got NULL");
  HVD_RETURN_IF_ERROR(checked_for_all(prepared.device->copy(to, result->memory(), bytes, stream), prepared.name));
  result->on_device.use_on(stream);
  result->staged.use_on(stream);
  return {};
}

Status Submitter::device_of(const void* address, int32_t* device) const {
  HVD_RETURN_IF_ERROR(cuda::device_of(settings_.cuda_library, address, device));
  return *device < 0 ? invalid("the address lies in no GPU's memory") : Status();
}

Status Submitter::device_of_stream(cuda::Stream stream, int32_t* device) const {
  return cuda::device_of_stream(settings_.cuda_library, stream, device);
}

}  // namespace hvd
