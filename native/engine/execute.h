// SPDX-License-Identifier: Apache-2.0
// Execution: runs one batch of a closed list of submissions, from their tensors to slices, through the communicator of
// their process set, and back to results (steps 6 and 7). Fused batches of reductions, and the operations that run
// alone; set changes and barriers are not its business.
//
// Owns the reduction kernels that Adasum needs beside a communicator. Under the driver's token; blocks as the
// communicator does. counts() may be read by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/process_set.h"
#include "engine/submission.h"
#include "fusion/batch.h"
#include "platform/status.h"
#include "reduction/kernels.h"

namespace hvd {

// A communicator whose tensors lie on a GPU.
struct Carrier {
  Communicator* communicator;
  cuda::Device* device;
  cuda::Stream stream;
};

// The reduction that a batch asks for.
Reduction reduction_of(const Batch& batch, int members);

class Execution {
 public:
  Execution(int rank, InstructionSet instruction_set) : rank_(rank), instruction_set_(instruction_set) {}

  // A failure is the communicator's, or one that no other rank knows of: the generation has to end. `carrier`: null, or
  // what moves the data in place of the process set's own communicator, on a GPU; then it is only enqueued.
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed, const Carrier* carrier = nullptr);

  struct Counts {
    std::atomic<uint64_t> batches{0}, tensors{0}, bytes{0};
    std::atomic<int64_t> largest_reduction{0};  // elements of the largest tensor that was averaged, summed, ...
  };
  const Counts& counts() const { return counts_; }

 private:
  Status run_allreduce(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run_broadcast(const Submission& submission);
  Status run_reducescatter(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run_allgather(Submission* submission);
  Status run_alltoall(Submission* submission);
  Communicator& data_of(const ProcessSet& set) const {
    return carrier_ == nullptr ? *set.communicator : *carrier_->communicator;
  }
  Status allocate(int64_t bytes, const Prepared& prepared, Gathered* result) const;
  void count_largest(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  void count_bytes(int64_t bytes) { counts_.bytes.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed); }

  const int rank_;
  const InstructionSet instruction_set_;
  const Carrier* carrier_ = nullptr;  // while a batch runs
  Counts counts_;
};

}  // namespace hvd
