// SPDX-License-Identifier: Apache-2.0
// Submitter: the user's side of the engine (steps 4 and 8). It checks requests, enters them as calls, waits for them,
// and hands out their results. It knows nothing of how a call is run.
//
// Owns the handles; borrows the rest. Any thread. Those block that have a time limit; the others do only for room in
// the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "engine/calls.h"
#include "engine/parts.h"
#include "execution/submission.h"
#include "gpu/launched_calls.h"

namespace hvd {

class Submitter {
 public:
  Submitter(const EngineParts& parts, Calls& calls, const LaunchedCalls& launched);

  // Checks a request and fixes all but its tensor pointers.
  Status prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out);
  Status submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
                uint32_t flags, hvd_handle* handle, void* user = nullptr,  // null: the prepared one
                cuda::Stream stream = nullptr);                            // of tensors on a GPU
  Status refuse(const char* name, int32_t process_set, const std::string& why);
  Status add_process_set(const int32_t* ranks, uint32_t nranks, hvd_handle* handle);
  Status remove_process_set(int32_t process_set, hvd_handle* handle);
  Status place_in_set(int32_t process_set, int32_t* members, int32_t* member);
  Status join(hvd_handle* handle);

  // HVD_PENDING where the time is up, a signal arrived, or (poll) it is not done.
  Status wait(hvd_handle handle, int32_t timeout_ms);
  void declare_blocked(std::span<const hvd_handle> handles) { calls_.declare_blocked(handles_, handles); }
  Status missing(hvd_handle handle, int32_t* ranks, uint32_t* nranks) const;  // hvd_missing
  Status device_of(const void* address, int32_t* device) const;
  Status device_of_stream(cuda::Stream stream, int32_t* device) const;
  Status poll(hvd_handle handle);
  Status poll_launch(hvd_handle handle);
  Status wait_on_stream(hvd_handle handle, cuda::Stream stream, int32_t timeout_ms);
  Status settle(int32_t timeout_ms);  // also HVD_OK if nothing runs, but not after an error that ended the generation
  Status await_launched(int32_t timeout_ms);
  // A result whose size was not known before; HVD_PENDING if it is not there yet. Lives as long as the submission.
  Status find_result(hvd_handle handle, uint32_t index, SubmissionPtr* submission, Gathered** result) const;
  // Onto the GPU that the inputs lie on, in the order of the stream.
  Status copy_result(hvd_handle handle, uint32_t index, void* to, cuda::Stream stream);
  SubmissionPtr find(hvd_handle handle) const { return handles_.find(handle); }
  void release(hvd_handle handle) { handles_.release(handle); }

 private:
  void address(const hvd_request& request, Prepared* prepared);
  Status find_set_for_use(int32_t number, const std::string& what, std::shared_ptr<ProcessSet>* out);
  Status submit_set_change(Descriptor descriptor, const char* name, hvd_handle* handle);
  Status checked_for_all(Status status, const std::string& name);
  Status wait_for(const std::atomic<bool>& done, uint64_t deadline_ns);
  Status wait_in(const Submission& submission, const std::atomic<bool>& done, int32_t timeout_ms);

  const EngineSettings& settings_;
  const HostMap& map_;
  const std::shared_ptr<ProcessSet> world_;
  Bells& bells_;
  Ending& ending_;
  Wakeup& wakeup_;
  Publisher& publisher_;
  Calls& calls_;
  const LaunchedCalls& launched_;
  Trace& trace_;
  Arrivals& arrivals_;
  HandleTable handles_;
};

}  // namespace hvd
