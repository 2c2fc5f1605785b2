// SPDX-License-Identifier: Apache-2.0
// Batches that go through host memory.
#include <utility>

#include "execution/process_set.h"
#include "gpu/device_batch.h"

namespace hvd {

namespace {

constexpr size_t kAligned = 64;

size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

class Staged final : public DeviceBatch {
 public:
  using DeviceBatch::DeviceBatch;
  Status fetch(size_t stream);
  Status has_inputs(bool* ready) const override;
  Status run() override;

 private:
  // The batch's share on one GPU.
  struct Part {
    cuda::Device* device;
    const std::vector<DeviceTensor>& tensors;
    cuda::Stream stream = nullptr;
    cuda::Staging staging;
    cuda::Event fetched;
  };
  Status fetch(Part* part) const;
  static Status bring_back(const Part& part);

  std::vector<Part> parts_;
};

Status Staged::fetch(size_t stream) {
  for (const auto& [device, tensors] : closed_.tensors) {
    Part& part = parts_.emplace_back(Part{device, tensors});
    HVD_RETURN_IF_ERROR(device->stream(stream, &part.stream));
    HVD_RETURN_IF_ERROR(fetch(&part));
  }
  return {};
}

// Enqueues the copies of the inputs into memory of the host.
Status Staged::fetch(Part* part) const {
  const hvd_kind kind = closed_.batch.descriptor->kind;
  const bool is_in_place = kind != HVD_REDUCESCATTER && kind != HVD_SEND;
  size_t bytes = 0;
  for (const DeviceTensor& tensor : part->tensors) {
    bytes += aligned(tensor.input_bytes) + (is_in_place ? 0 : aligned(tensor.output_bytes));
  }
  HVD_RETURN_IF_ERROR(part->device->lend(bytes, part->stream, &part->staging));
  HVD_RETURN_IF_ERROR(wait_for_inputs(*part->device, part->tensors, part->stream));
  std::byte* at = part->staging.data();
  for (const DeviceTensor& tensor : part->tensors) {
    Submission& submission = *tensor.submission;
    std::byte* const input = at;
    at += aligned(tensor.input_bytes);
    submission.inputs[tensor.index] = input;
    submission.outputs[tensor.index] = is_in_place ? input : at;
    if (!is_in_place) at += aligned(tensor.output_bytes);
    if (tensor.input_bytes == 0) continue;
    HVD_RETURN_IF_ERROR(
        part->device->copy(input, submission.on_device->inputs[tensor.index], tensor.input_bytes, part->stream));
  }
  return part->device->record(part->stream, &part->fetched);
}

Status Staged::has_inputs(bool* ready) const {
  *ready = true;
  for (const Part& part : parts_) {
    HVD_RETURN_IF_ERROR(part.device->is_done(part.fetched, ready));
    if (!*ready) return {};
  }
  return {};
}

Status Staged::run() {
  const Submission& first = *closed_.calls[closed_.batch.entry];
  const auto allocate = [&first](size_t bytes, Gathered* result) -> Status {
    if (bytes == 0) return {};
    cuda::Device& device = *first.prepared->device;  // pinned: then no thread waits for the copy to the GPU
    cuda::Stream stream = nullptr;
    HVD_RETURN_IF_ERROR(device.stream(0, &stream));
    return device.lend(bytes, stream, &result->staged);
  };
  HVD_RETURN_IF_ERROR(closed_.run(execution_, {closed_.set().communicator.get(), allocate}));
  for (const Part& part : parts_) HVD_RETURN_IF_ERROR(bring_back(part));
  return {};
}

// Enqueues the copies of the results onto the GPU.
Status Staged::bring_back(const Part& part) {
  for (const DeviceTensor& tensor : part.tensors) {
    if (tensor.output_bytes == 0) continue;
    const Submission& submission = *tensor.submission;
    HVD_RETURN_IF_ERROR(part.device->copy(submission.on_device->outputs[tensor.index], submission.outputs[tensor.index],
                                          tensor.output_bytes, part.stream));
  }
  return launch(*part.device, part.stream, nullptr, part.tensors);
}

}  // namespace

Status make_staged(Execution& execution, ClosedBatch closed, size_t stream, std::unique_ptr<DeviceBatch>* out) {
  auto staged = std::make_unique<Staged>(execution, std::move(closed));
  HVD_RETURN_IF_ERROR(staged->fetch(stream));
  *out = std::move(staged);
  return {};
}

}  // namespace hvd
