// SPDX-License-Identifier: Apache-2.0
// A submission: one request on its way through the engine (steps 4 to 8), and the table of handles by which a caller
// refers to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "negotiation/member.h"
#include "negotiation/wire.h"
#include "platform/kept_memory.h"
#include "platform/status.h"

namespace hvd {

struct Launch;
struct ProcessSet;

// A request without its tensor pointers; what hvd_prepare returns. Immutable once made.
struct Prepared {
  std::string name;  // empty: unnamed
  Descriptor descriptor;
  std::string bytes;                  // the descriptor as it is compared and sent
  std::vector<TensorSpec> tensors;    // with the true dimension 0 of a ragged operation's input
  std::vector<int64_t> splits;        // alltoall: rows for each member
  std::vector<int64_t> output_bytes;  // of each tensor: of the caller's memory for a result of unknown size; or 0
  uint64_t total_bytes = 0;
  std::shared_ptr<ProcessSet> set;
  cuda::Device* device = nullptr;  // null: the tensors lie in host memory
  // Of a named request, from the first submission on; looked up anew once the member has forgotten it. The mutex
  // of Calls.
  mutable EntryRef entry;
  hvd_done_fn done = nullptr;
  void* user = nullptr;
};

// An output that was known only on the way. Of a new process set, its number, and of a join, the last rank, as the only
// row.
struct Gathered {
  ExchangedBytes data;
  std::byte* given = nullptr;  // in place of it: the caller's memory
  // In place of it: of tensors on a GPU that went through host memory, or that a GPU's communicator brought.
  cuda::Staging staged;
  cuda::DeviceMemory on_device;
  std::vector<int64_t> shape;
  std::vector<int64_t> rows;

  std::byte* memory() const {
    if (given != nullptr) return given;
    if (data != nullptr) return data.get();
    return staged.data() != nullptr ? staged.data() : on_device.data();
  }
};

// A call's tensors on a GPU. Its `inputs` and `outputs` are addresses of host memory, while it is staged there.
struct OnDevice {
  cuda::Stream stream;  // the caller's
  cuda::Event ready;    // the inputs have been computed
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::shared_ptr<Launch> launch;        // of its last batch; written before `is_launched`
  std::atomic<bool> is_launched{false};  // or has failed
};

struct Submission : Contribution {
  std::shared_ptr<const Prepared> prepared;  // null: a refusal
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::unique_ptr<OnDevice> on_device;  // null: in host memory
  void* user = nullptr;
  bool urgent = false;
  bool decided = false;  // the log has it; the mutex of Calls
  enum class Stage : uint8_t { kNone, kNegotiating, kQueued, kRunning, kDone } traced = Stage::kNone;

  Status status;                      // written before `done`
  std::atomic<uint64_t> ready_ns{0};  // when the last rank came; 0: it has not, or unknown
  std::vector<Gathered> results;      // likewise
  Status outcome;                     // likewise: why an operation that ran did not succeed, the same on all ranks
  std::atomic<bool> done{false};

  bool is_launched() const { return on_device != nullptr && on_device->is_launched.load(); }
  // The flag that its caller waits for first.
  const std::atomic<bool>& has_left() const { return on_device == nullptr ? done : on_device->is_launched; }
};

using SubmissionPtr = std::shared_ptr<Submission>;
// Every call that an engine gives to its member is a submission.
inline SubmissionPtr submission_of(ContributionPtr call) {
  return std::static_pointer_cast<Submission>(std::move(call));
}

// The start of an error of a call. `kind`: as the caller gave it, so it may be none.
std::string describe(int rank, const std::string& name, int32_t kind);
inline Status invalid(const std::string& text) { return {HVD_INVALID_ARGUMENT, text}; }
// In error texts: quoted, or what an unnamed call does.
std::string name_of(const Submission& call);
// The error of a call that ended because of `cause`.
Status failure_of(const Submission& call, Status cause);
// An error of this rank's GPU, with the rank: it says what has failed, and not where.
Status of_rank(int rank, Status status);

// The operations that are ready and not closed yet: the calls of the next batch, and since when the first of them waits
// for company (steps 5 and 6). Under the driver's token, except since_ns(), which any thread may read.
class OpenBatch {
 public:
  void add(SubmissionPtr call, uint64_t now_ns) {
    if (calls_.empty()) since_ns_.store(now_ns);
    bytes_ += call->total_bytes;
    calls_.push_back(std::move(call));
  }
  std::vector<SubmissionPtr> take() {
    bytes_ = 0;
    since_ns_.store(0);
    return std::exchange(calls_, {});
  }
  bool is_empty() const { return calls_.empty(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t since_ns() const { return since_ns_.load(); }  // 0: it is empty

 private:
  std::vector<SubmissionPtr> calls_;
  std::atomic<uint64_t> since_ns_{0};
  uint64_t bytes_ = 0;
};

class HandleTable {
 public:
  hvd_handle add(SubmissionPtr submission);
  SubmissionPtr find(hvd_handle handle) const;  // null for a stale or foreign handle
  void release(hvd_handle handle);

 private:
  struct Slot {
    uint32_t reuse = 1;
    SubmissionPtr submission;
  };
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace hvd
