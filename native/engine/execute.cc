// SPDX-License-Identifier: Apache-2.0
// Running a closed batch: from submissions to slices, through the transport, back to results (steps 6 to 8).
#include <cstring>
#include <new>

#include "engine/engine.h"
#include "fusion/batch.h"
#include "negotiation/names.h"

namespace hvd {

namespace {

Reduction reduction_of(const Batch& batch, int members) {
  const Descriptor& descriptor = *batch.descriptor;
  Reduction reduction{batch.dtype, descriptor.op, descriptor.prescale, descriptor.postscale, 1};
  if (descriptor.op == HVD_AVERAGE) {
    reduction.op = HVD_SUM;
    reduction.divisor = members;
  }
  return reduction;
}

int64_t row_bytes_of(const TensorSpec& tensor) {
  int64_t bytes = static_cast<int64_t>(element_size(tensor.dtype));
  for (size_t d = 1; d < tensor.shape.size(); ++d) bytes *= tensor.shape[d];
  return bytes;
}

}  // namespace

void Engine::execute(std::vector<SubmissionPtr> closed) {
  std::vector<const Descriptor*> descriptors;
  for (const SubmissionPtr& submission : closed) descriptors.push_back(&submission->prepared->descriptor);
  const std::vector<Batch> batches = plan_batches(descriptors, options_.settings.fusion_threshold_bytes);
  std::vector<size_t> tensors_left;
  for (const SubmissionPtr& submission : closed) tensors_left.push_back(submission->prepared->tensors.size());

  Status failure;
  for (const Batch& batch : batches) {
    if (!failure.ok()) break;
    Submission* first = batch.tensors.empty() ? nullptr : closed[batch.tensors[0].entry].get();
    statistics_.batches.fetch_add(1, std::memory_order_relaxed);
    statistics_.tensors.fetch_add(batch.tensors.size(), std::memory_order_relaxed);
    failure = run(batch, closed);
    if (!failure.ok()) {
      transport_failed(failure, std::string(name_of(batch.descriptor->kind)) + " of " + quote_name(first->entry->name));
      break;
    }
    for (const BatchTensor& tensor : batch.tensors) {
      if (--tensors_left[tensor.entry] == 0) complete(closed[tensor.entry], {});
    }
  }
  for (size_t i = 0; i < closed.size(); ++i) {
    if (closed[i]->done.load()) continue;
    if (failure.ok()) {
      complete(closed[i], {});  // a barrier has no tensors
    } else {
      complete(closed[i], Status(segment_->cause()).while_doing(quote_name(closed[i]->entry->name) + " failed"));
    }
  }
}

Status Engine::run(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  try {
    switch (batch.descriptor->kind) {
      case HVD_ALLREDUCE:
        return run_allreduce(batch, closed);
      case HVD_REDUCESCATTER:
        return run_reducescatter(batch, closed);
      case HVD_BROADCAST:
        return run_broadcast(*closed[batch.tensors[0].entry]);
      case HVD_ALLGATHER:
        return run_allgather(closed[batch.tensors[0].entry].get());
      case HVD_ALLTOALL:
        return run_alltoall(closed[batch.tensors[0].entry].get());
      case HVD_BARRIER:
        break;  // that all have submitted it is all there is to it
    }
  } catch (const std::bad_alloc&) {
    return {HVD_OUT_OF_MEMORY, "rank " + std::to_string(rank_) + " has not enough memory for the result", rank_};
  }
  return {};
}

Status Engine::run_allreduce(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  std::vector<Slice> slices;
  slices.reserve(batch.tensors.size());
  int64_t elements = 0;
  for (const BatchTensor& tensor : batch.tensors) {
    const Submission& submission = *closed[tensor.entry];
    const int64_t count = submission.prepared->tensors[tensor.tensor].count();
    if (count == 0) continue;
    slices.push_back({static_cast<const std::byte*>(submission.inputs[tensor.tensor]),
                      static_cast<std::byte*>(submission.outputs[tensor.tensor]), count});
    elements += count;
  }
  if (elements == 0) return {};
  statistics_.bytes.fetch_add(static_cast<uint64_t>(elements) * element_size(batch.dtype), std::memory_order_relaxed);
  return transport_->allreduce(slices, reduction_of(batch, world_size_));
}

// The rows of each tensor are dealt to the members in order.
Status Engine::run_reducescatter(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  std::vector<std::vector<Slice>> parts(static_cast<size_t>(world_size_));
  int64_t elements = 0;
  for (const BatchTensor& tensor : batch.tensors) {
    const Submission& submission = *closed[tensor.entry];
    const TensorSpec& spec = submission.prepared->tensors[tensor.tensor];
    const int64_t count = spec.count();
    if (count == 0) continue;
    const int64_t row_elements = count / spec.shape[0];
    const std::byte* input = static_cast<const std::byte*>(submission.inputs[tensor.tensor]);
    for (int m = 0; m < world_size_; ++m) {
      const int64_t part = rows_of_member(spec.shape[0], world_size_, m) * row_elements;
      std::byte* const output = m == rank_ ? static_cast<std::byte*>(submission.outputs[tensor.tensor]) : nullptr;
      if (part > 0) parts[static_cast<size_t>(m)].push_back({input, output, part});
      input += part * static_cast<int64_t>(element_size(spec.dtype));
    }
    elements += count;
  }
  if (elements == 0) return {};
  statistics_.bytes.fetch_add(static_cast<uint64_t>(elements) * element_size(batch.dtype), std::memory_order_relaxed);
  return transport_->reducescatter(parts, reduction_of(batch, world_size_));
}

Status Engine::run_broadcast(const Submission& submission) {
  std::vector<Slice> slices;
  int64_t bytes = 0;
  for (size_t i = 0; i < submission.inputs.size(); ++i) {
    const TensorSpec& tensor = submission.prepared->tensors[i];
    const int64_t length = tensor.count() * static_cast<int64_t>(element_size(tensor.dtype));
    if (length == 0) continue;
    slices.push_back(
        {static_cast<const std::byte*>(submission.inputs[i]), static_cast<std::byte*>(submission.outputs[i]), length});
    bytes += length;
  }
  if (bytes == 0) return {};
  statistics_.bytes.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  return transport_->broadcast(slices, 1, submission.prepared->descriptor.root_rank);
}

// Rows first, since they may differ by rank; then each tensor of the group.
Status Engine::run_allgather(Submission* submission) {
  const std::vector<TensorSpec>& tensors = submission->prepared->tensors;
  const size_t world = static_cast<size_t>(world_size_);
  constexpr size_t kTensorsAtOnce = 4096;  // an exchange carries at most 64 KiB a member
  std::vector<int64_t> rows(tensors.size() * world);
  for (size_t start = 0; start < tensors.size(); start += kTensorsAtOnce) {
    const size_t length = std::min(kTensorsAtOnce, tensors.size() - start);
    std::vector<int64_t> mine(length);
    std::vector<int64_t> all(length * world);
    for (size_t i = 0; i < length; ++i) mine[i] = tensors[start + i].shape[0];
    HVD_RETURN_IF_ERROR(transport_->exchange(mine.data(), length * sizeof(int64_t), all.data()));
    for (size_t member = 0; member < world; ++member) {
      for (size_t i = 0; i < length; ++i) rows[(start + i) * world + member] = all[member * length + i];
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Gathered result;
    result.rows.assign(rows.begin() + static_cast<ptrdiff_t>(i * world),
                       rows.begin() + static_cast<ptrdiff_t>((i + 1) * world));
    result.shape = tensors[i].shape;
    const int64_t row_bytes = row_bytes_of(tensors[i]);
    std::vector<int64_t> bytes_of_member(world);
    int64_t total_bytes = 0;
    result.shape[0] = 0;
    for (size_t member = 0; member < world; ++member) {
      // The other ranks' word: what no memory could hold would overrun this rank's.
      const int64_t rows_there = result.rows[member];
      if (rows_there < 0 || __builtin_mul_overflow(rows_there, row_bytes, &bytes_of_member[member]) ||
          __builtin_add_overflow(total_bytes, bytes_of_member[member], &total_bytes) ||
          __builtin_add_overflow(result.shape[0], rows_there, &result.shape[0])) {
        return {HVD_RANK_LOST,
                "rank " + std::to_string(member) + " says that it gives " + std::to_string(rows_there) + " rows of " +
                    std::to_string(row_bytes) + " bytes",
                static_cast<int>(member)};
      }
    }
    result.data = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(total_bytes));
    if (total_bytes > 0) {
      HVD_RETURN_IF_ERROR(transport_->allgather(submission->inputs[i], bytes_of_member, result.data.get()));
      statistics_.bytes.fetch_add(static_cast<uint64_t>(total_bytes), std::memory_order_relaxed);
    }
    submission->results.push_back(std::move(result));
  }
  return {};
}

// Everybody's splits first; then all know how much goes between any two members.
Status Engine::run_alltoall(Submission* submission) {
  const TensorSpec& tensor = submission->prepared->tensors[0];
  const size_t world = static_cast<size_t>(world_size_);
  std::vector<int64_t> bytes(world * world);
  HVD_RETURN_IF_ERROR(transport_->exchange(submission->prepared->splits.data(), world * sizeof(int64_t), bytes.data()));
  Gathered result;
  result.shape = tensor.shape;
  result.shape[0] = 0;
  for (size_t member = 0; member < world; ++member) {
    result.rows.push_back(bytes[member * world + static_cast<size_t>(rank_)]);
    result.shape[0] += result.rows.back();
  }
  const int64_t row_bytes = row_bytes_of(tensor);
  for (int64_t& part : bytes) part *= row_bytes;
  const auto received_bytes = static_cast<size_t>(result.shape[0] * row_bytes);
  result.data = std::make_unique_for_overwrite<std::byte[]>(received_bytes);
  HVD_RETURN_IF_ERROR(transport_->alltoall(submission->inputs[0], bytes, result.data.get()));
  statistics_.bytes.fetch_add(received_bytes, std::memory_order_relaxed);
  submission->results.push_back(std::move(result));
  return {};
}

}  // namespace hvd
