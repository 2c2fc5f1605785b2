// SPDX-License-Identifier: Apache-2.0
// DeviceBatches: runs a batch whose tensors lie on a GPU (steps 6 and 7). A batch is launched here, and ends later: an
// event of a stream of ours tells when.
//
// Staged: the inputs go to pinned host memory, the communicator of the process set runs there as for a script's own
// tensors, and the results go back. So any operation and dtype has the bits that it has in host memory, and ranks may
// share a GPU. Results whose size the other ranks decide stay in pinned memory until their caller has them copied.
//
// By NCCL, if all members have it and it knows the operation: what the tensors need is enqueued on a stream of ours,
// the next one in turn (HOROVOD_NUM_NCCL_STREAMS). The inputs need not have been computed then.
//
// Under the driver's token. Never blocks for the GPU: only as the communicator does.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "communicators/nccl/communicator.h"
#include "device/device.h"
#include "engine/execute.h"
#include "engine/process_set.h"
#include "engine/submission.h"
#include "fusion/batch.h"
#include "platform/interrupt.h"
#include "platform/status.h"
#include "settings/settings.h"

namespace hvd {

// The calls that are launched, in that order, until the GPU is done with them. Changed under the token; what says const
// may be called by any thread.
class LaunchedCalls {
 public:
  void add(SubmissionPtr call);
  // A call that has ended, and how; null: none has. Of each stream, the first one ends first. It stays until it is
  // dropped: handle its error before you drop it.
  SubmissionPtr first_ended(Status* how) const;
  void drop(const SubmissionPtr& call);
  std::vector<SubmissionPtr> take_all();
  SubmissionPtr last() const;  // null: there is none
  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // The call that has to end next on a stream, if none has ended there for longer than the limit, and NCCL carries it.
  struct Stuck {
    SubmissionPtr call;  // null: there is none
    uint64_t since_ns = 0;
    bool has_inputs = false;  // all that run with it have
  };
  Status find_stuck(uint64_t limit_ns, Stuck* out) const;
  // When it is time to look again; negative: there is nothing to look at. `suspended`: a batch waits for inputs.
  // `waited_for`: a caller waits for an operation.
  int64_t look_again_in_ns(bool suspended, bool waited_for) const;

 private:
  mutable std::mutex mutex_;
  std::deque<SubmissionPtr> calls_;
  std::map<cuda::Stream, uint64_t> since_ns_;  // when the GPU got to the first one of each, or ended one before it
  std::atomic<int> count_{0}, with_callbacks_{0};
};

class DeviceBatches {
 public:
  // `parts`: what a communicator among some ranks is made from.
  DeviceBatches(Execution& execution, const EngineSettings& settings, Interrupt interrupt,
                std::function<CommunicatorParts()> parts)
      : execution_(execution), settings_(settings), interrupt_(interrupt), communicator_parts_(std::move(parts)) {}

  // Called again until its inputs are there, which the GPU may still be computing.
  Status fetch(const Batch& batch, const std::vector<SubmissionPtr>& closed, bool* ready);
  uint64_t fetching_since_ns() const { return fetching_since_ns_; }
  // Then. On success, the submissions of the batch have its launch.
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed);

  struct Counts {
    std::atomic<uint64_t> by_nccl{0}, in_levels{0}, staged{0};  // batches; the first counts the second, too
  };
  const Counts& counts() const { return counts_; }  // any thread

  // For how long a call of NCCL has not returned; 0: none is under way. Any thread.
  // How long the oldest call has not returned; 0: there is none.
  uint64_t inside_nccl_ns() const { return inside_nccl_->for_ns(); }
  uint64_t aborting_nccl_ns() const { return in_aborts_->for_ns(); }
  // By a thread of its own, since the one with the token is inside a call of NCCL. Any thread.
  void abort_nccl_elsewhere();

 private:
  struct Tensor {
    Submission* submission;
    size_t index, input_bytes, output_bytes;  // the latter of results whose size is known
    std::byte *input, *output;                // in the staging memory
  };
  // The batch's share on one GPU of this process.
  struct Part {
    std::vector<Tensor> tensors;
    cuda::Stream stream = nullptr;
    cuda::Staging staging;
    cuda::Event fetched;
  };
  using Parts = std::map<cuda::Device*, Part>;
  static Parts parts_of(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  // Chooses the NCCL communicator of the batch; null if NCCL does not run it. The same choice on all members.
  Status choose(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status look_for_inputs(bool* ready) const;
  Status meet(ProcessSet* set, ProcessSet::OnGpu::Way* way, GpuWay wanted);
  Status meet_on(const ProcessSet& set, size_t stream, bool in_levels,
                 std::shared_ptr<nccl::NcclCommunicator>* carrier);
  Status join(const ProcessSet& set, const nccl::Parts& parts, bool in_levels,
              std::shared_ptr<nccl::NcclCommunicator>* out);
  Status run_by_nccl(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status give_zeros(const std::vector<SubmissionPtr>& closed, const Batch& batch, cuda::Device& device,
                    std::vector<cuda::DeviceMemory>* zeros);
  // The end of what has been enqueued on the stream is that of its tensors.
  static Status launch(cuda::Device& device, cuda::Stream stream, std::shared_ptr<const nccl::NcclCommunicator> carrier,
                       const std::vector<Tensor>& tensors);
  static Status wait_for_inputs(cuda::Device& device, const Part& part, cuda::Stream stream);
  Status begin(cuda::Device& device, Part* part);
  Status bring_back(cuda::Device& device, const Part& part);

  Execution& execution_;
  const EngineSettings& settings_;
  const Interrupt interrupt_;
  const std::function<CommunicatorParts()> communicator_parts_;
  bool is_fetching_ = false;
  uint64_t fetching_since_ns_ = 0;
  std::shared_ptr<nccl::NcclCommunicator> carrier_;  // of the batch that is being fetched; null: it is staged
  bool in_levels_ = false;                           // it is the carrier on two levels
  cuda::Stream stream_ = nullptr;                    // on which it enqueues
  Parts parts_;
  Counts counts_;
  const std::shared_ptr<nccl::Inside> inside_nccl_ = std::make_shared<nccl::Inside>();
  const std::shared_ptr<nccl::Inside> in_aborts_ = std::make_shared<nccl::Inside>();
  std::mutex carriers_mutex_;
  std::vector<std::weak_ptr<nccl::NcclCommunicator>> carriers_;
};

}  // namespace hvd
