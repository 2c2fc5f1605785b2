// SPDX-License-Identifier: Apache-2.0
// Execution: runs one batch of a closed list of submissions, from their tensors to slices, through the communicator of
// their process set, and back to results (steps 6 and 7). Fused batches of reductions, and the operations that run
// alone; set changes and barriers are not its business.
//
// Owns the reduction kernels that Adasum needs beside a communicator. Under the driver's token; blocks as the
// communicator does. counts() may be read by any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "execution/process_set.h"
#include "execution/submission.h"
#include "fusion/batch.h"
#include "platform/status.h"
#include "reduction/kernels.h"

namespace hvd {

// Moves a batch's data.
struct Carrier {
  Communicator* communicator;
  // The memory of a result whose size the other ranks decide, if the caller gave none. Null, or if it gives none: the
  // heap's.
  std::function<Status(size_t bytes, Gathered* result)> allocate;
};

// The reduction that a batch asks for.
Reduction reduction_of(const Batch& batch, int members);

class Execution {
 public:
  Execution(int rank, InstructionSet instruction_set) : rank_(rank), instruction_set_(instruction_set) {}

  // By the communicator of the process set, or by another carrier, which may only enqueue it on a GPU. A failure is the
  // carrier's, or one that no other rank knows of: the generation has to end.
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed, const Carrier& carrier);

  struct Counts {
    std::atomic<uint64_t> batches{0}, tensors{0}, bytes{0};
    std::atomic<int64_t> largest_reduction{0};  // elements of the largest tensor that was averaged, summed, ...
  };
  const Counts& counts() const { return counts_; }

 private:
  Status run_allreduce(const Batch& batch, const std::vector<SubmissionPtr>& closed, Communicator& by);
  Status run_broadcast(const Submission& submission, Communicator& by);
  Status run_message(Submission* submission, Communicator& by);
  Status run_reducescatter(const Batch& batch, const std::vector<SubmissionPtr>& closed, Communicator& by);
  Status run_allgather(Submission* submission, const Carrier& carrier);
  Status run_alltoall(Submission* submission, const Carrier& carrier);
  Status allocate(int64_t bytes, const Carrier& carrier, Submission* submission, size_t tensor, Gathered* result) const;
  void count_largest(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  void count_bytes(int64_t bytes) { counts_.bytes.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed); }

  const int rank_;
  const InstructionSet instruction_set_;
  Counts counts_;
};

}  // namespace hvd
