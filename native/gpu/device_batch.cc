// SPDX-License-Identifier: Apache-2.0
#include "gpu/device_batch.h"

#include <set>
#include <utility>

#include "execution/process_set.h"
#include "gpu/launched_calls.h"
#include "platform/clock.h"

namespace hvd {

static size_t bytes_of(const TensorSpec& tensor) {
  return static_cast<size_t>(tensor.count()) * element_size(tensor.dtype);
}

// Of a message, the sender has the input and the receiver the output.
static bool is_sender(const Prepared& prepared) {
  return prepared.set->ranks[static_cast<size_t>(prepared.set->member)] == prepared.descriptor.root_rank;
}

static size_t input_bytes_of(const Prepared& prepared, const TensorSpec& tensor) {
  return prepared.descriptor.kind == HVD_SEND && !is_sender(prepared) ? 0 : bytes_of(tensor);
}

static size_t output_bytes_of(const Prepared& prepared, const TensorSpec& tensor) {
  switch (prepared.descriptor.kind) {
    case HVD_ALLREDUCE:
    case HVD_BROADCAST:
      return bytes_of(tensor);
    case HVD_SEND:
      return is_sender(prepared) ? 0 : bytes_of(tensor);
    case HVD_REDUCESCATTER: {
      const ProcessSet& set = *prepared.set;
      const auto mine = static_cast<size_t>(rows_of_member(tensor.shape[0], set.size(), set.member));
      return tensor.shape[0] == 0 ? 0 : bytes_of(tensor) / static_cast<size_t>(tensor.shape[0]) * mine;
    }
    default:
      return 0;
  }
}

ClosedBatch::ClosedBatch(const Batch& batch, const std::vector<SubmissionPtr>& calls) : batch(batch), calls(calls) {
  for (const BatchTensor& each : batch.tensors) {
    Submission& submission = *calls[each.entry];
    if (submission.on_device == nullptr) continue;
    const TensorSpec& spec = submission.prepared->tensors[each.tensor];
    tensors[submission.prepared->device].push_back({&submission, each.tensor,
                                                    input_bytes_of(*submission.prepared, spec),
                                                    output_bytes_of(*submission.prepared, spec)});
  }
}

DeviceBatch::DeviceBatch(Execution& execution, ClosedBatch closed)
    : execution_(execution), closed_(std::move(closed)), begun_ns_(now_ns()) {}

Status DeviceBatch::wait_for_inputs(cuda::Device& device, const std::vector<DeviceTensor>& tensors,
                                    cuda::Stream stream) {
  std::map<cuda::Stream, const cuda::Event*> ready;  // of each stream the latest, which comes after the others
  for (const DeviceTensor& tensor : tensors) {
    const OnDevice& there = *tensor.submission->on_device;
    const cuda::Event*& latest = ready[there.stream];
    if (latest == nullptr || latest->order() < there.ready.order()) latest = &there.ready;
  }
  for (const auto& [_, event] : ready) HVD_RETURN_IF_ERROR(device.wait(stream, *event));
  return {};
}

Status DeviceBatch::launch(cuda::Device& device, cuda::Stream stream, std::shared_ptr<const DeviceCommunicator> carrier,
                           const std::vector<DeviceTensor>& tensors) {
  auto launch = std::make_shared<Launch>();
  launch->device = &device;
  launch->stream = stream;
  if (carrier != nullptr) launch->carriers.push_back(std::move(carrier));
  std::set<const Launch*> before;
  for (const DeviceTensor& tensor : tensors) {
    const std::shared_ptr<Launch>& earlier = tensor.submission->on_device->launch;
    if (earlier == nullptr || !before.insert(earlier.get()).second) continue;
    if (earlier->stream != stream) HVD_RETURN_IF_ERROR(device.wait(stream, earlier->done));
    launch->carriers.insert(launch->carriers.end(), earlier->carriers.begin(), earlier->carriers.end());
  }
  HVD_RETURN_IF_ERROR(device.record(stream, &launch->done));
  for (const DeviceTensor& tensor : tensors) tensor.submission->on_device->launch = launch;
  return {};
}

}  // namespace hvd
