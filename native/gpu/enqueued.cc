// SPDX-License-Identifier: Apache-2.0
// Batches that a DeviceCommunicator enqueues.
#include <algorithm>
#include <utility>

#include "execution/process_set.h"
#include "gpu/device_batch.h"

namespace hvd {

namespace {

class Enqueued final : public DeviceBatch {
 public:
  Enqueued(Execution& execution, ClosedBatch closed, DeviceCarrier carrier)
      : DeviceBatch(execution, std::move(closed)), carrier_(std::move(carrier)) {}
  Status has_inputs(bool* ready) const override;
  Status run() override;

 private:
  Status give_zeros(std::vector<cuda::DeviceMemory>* zeros) const;

  const DeviceCarrier carrier_;
};

Status Enqueued::has_inputs(bool* ready) const {
  *ready = true;
  if (!carrier_.blocks) return {};
  for (const auto& [device, tensors] : closed_.tensors) {
    for (const DeviceTensor& tensor : tensors) {
      HVD_RETURN_IF_ERROR(device->is_done(tensor.submission->on_device->ready, ready));
      if (!*ready) return {};
    }
  }
  return {};
}

Status Enqueued::run() {
  for (const auto& [device, tensors] : closed_.tensors) {
    if (device != carrier_.device) {
      return {HVD_INVALID_ARGUMENT, "a process gives NCCL tensors of one GPU, got GPU " +
                                        std::to_string(carrier_.device->ordinal()) + " and GPU " +
                                        std::to_string(device->ordinal()) +
                                        "\nhint: give each rank a GPU of its own, by "
                                        "torch.cuda.set_device(hvd.local_rank()) or as `horovodrun "
                                        "--explain gpu` shows"};
    }
    HVD_RETURN_IF_ERROR(wait_for_inputs(*device, tensors, carrier_.stream));
    for (const DeviceTensor& tensor : tensors) {
      Submission& submission = *tensor.submission;
      submission.inputs[tensor.index] = submission.on_device->inputs[tensor.index];
      submission.outputs[tensor.index] = submission.on_device->outputs[tensor.index];
    }
  }
  std::vector<cuda::DeviceMemory> zeros;
  HVD_RETURN_IF_ERROR(give_zeros(&zeros));
  const auto allocate = [this](size_t bytes, Gathered* result) {
    return carrier_.device->allocate(std::max<size_t>(bytes, 1), carrier_.stream, &result->on_device);
  };
  HVD_RETURN_IF_ERROR(closed_.run(execution_, {carrier_.communicator.get(), allocate}));
  for (const auto& [device, tensors] : closed_.tensors) {
    HVD_RETURN_IF_ERROR(launch(*device, carrier_.stream, carrier_.communicator, tensors));
  }
  return {};
}

// Of a rank that has joined: its zeros are in host memory.
Status Enqueued::give_zeros(std::vector<cuda::DeviceMemory>* zeros) const {
  for (const BatchTensor& each : closed_.batch.tensors) {
    Submission& submission = *closed_.calls[each.entry];
    const TensorSpec& spec = submission.prepared->tensors[each.tensor];
    const size_t bytes = static_cast<size_t>(spec.count()) * element_size(spec.dtype);
    if (submission.on_device != nullptr || bytes == 0) continue;
    cuda::DeviceMemory& memory = zeros->emplace_back();
    HVD_RETURN_IF_ERROR(carrier_.device->allocate(bytes, carrier_.stream, &memory));
    HVD_RETURN_IF_ERROR(carrier_.device->zero(memory.data(), bytes, carrier_.stream));
    submission.inputs[each.tensor] = submission.outputs[each.tensor] = memory.data();
  }
  return {};
}

}  // namespace

std::unique_ptr<DeviceBatch> make_enqueued(Execution& execution, ClosedBatch closed, DeviceCarrier carrier) {
  return std::make_unique<Enqueued>(execution, std::move(closed), std::move(carrier));
}

}  // namespace hvd
