// SPDX-License-Identifier: Apache-2.0
// DeviceBatch: one batch whose tensors are on a GPU (steps 6 and 7). It is launched here, and ends later: an event of a
// stream of ours tells when.
//
// Staged: the inputs go to pinned host memory, the communicator of the process set runs there as for a script's own
// tensors, and the results go back. So any operation and dtype has the bits that it has in host memory, and ranks may
// share a GPU. Results whose size the other ranks decide stay in pinned memory until their caller has them copied.
//
// Enqueued: a DeviceCommunicator enqueues what the tensors need. The inputs need not have been computed then.
//
// Staging is not a DeviceCommunicator: between its copies, the thread that drives does other things.
//
// Under the driver's token. Never blocks for the GPU: only as the communicator does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "communicators/device_communicator.h"
#include "device/device.h"
#include "execution/execute.h"
#include "execution/submission.h"
#include "fusion/batch.h"
#include "platform/status.h"

namespace hvd {

struct DeviceTensor {
  Submission* submission;
  size_t index, input_bytes, output_bytes;  // the latter of results whose size is known
};
// Of each GPU of this process.
using DeviceTensors = std::map<cuda::Device*, std::vector<DeviceTensor>>;

// A batch and the calls that it points into, which both outlive it.
struct ClosedBatch {
  ClosedBatch(const Batch& batch, const std::vector<SubmissionPtr>& calls);
  Status run(Execution& execution, const Carrier& carrier) const { return execution.run(batch, calls, carrier); }
  const ProcessSet& set() const { return *calls[batch.entry]->prepared->set; }

  const Batch& batch;
  const std::vector<SubmissionPtr>& calls;
  DeviceTensors tensors;  // but the zeros of a rank that has joined
};

class DeviceBatch {
 public:
  DeviceBatch(Execution& execution, ClosedBatch closed);
  virtual ~DeviceBatch() = default;

  // False: the GPU still computes inputs that run() needs.
  virtual Status has_inputs(bool* ready) const = 0;
  // Once. On success, the submissions of the batch have its launch.
  virtual Status run() = 0;
  uint64_t begun_ns() const { return begun_ns_; }

 protected:
  static Status wait_for_inputs(cuda::Device& device, const std::vector<DeviceTensor>& tensors, cuda::Stream stream);
  // The end of what has been enqueued on the stream is that of its tensors. `carrier`: null if it is staged.
  static Status launch(cuda::Device& device, cuda::Stream stream, std::shared_ptr<const DeviceCommunicator> carrier,
                       const std::vector<DeviceTensor>& tensors);

  Execution& execution_;
  const ClosedBatch closed_;

 private:
  const uint64_t begun_ns_;
};

// The copies of its inputs go to the stream of this number.
Status make_staged(Execution& execution, ClosedBatch closed, size_t stream, std::unique_ptr<DeviceBatch>* out);

struct DeviceCarrier {
  std::shared_ptr<DeviceCommunicator> communicator;
  cuda::Device* device = nullptr;
  cuda::Stream stream = nullptr;
  bool blocks = false;  // until its inputs are there
};
std::unique_ptr<DeviceBatch> make_enqueued(Execution& execution, ClosedBatch closed, DeviceCarrier carrier);

}  // namespace hvd
