// SPDX-License-Identifier: Apache-2.0
#include "execution/execute.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "collectives/adasum.h"
#include "platform/kept_memory.h"

namespace hvd {

Reduction reduction_of(const Batch& batch, int members) {
  const Descriptor& descriptor = *batch.descriptor;
  Reduction reduction{batch.dtype, descriptor.op, descriptor.prescale, descriptor.postscale, 1};
  if (descriptor.op == HVD_AVERAGE) {
    reduction.op = HVD_SUM;
    reduction.divisor = members;
  } else if (descriptor.op == HVD_ADASUM && members == 1) {
    reduction.op = HVD_SUM;
  }
  return reduction;
}

namespace {

int64_t row_bytes_of(const TensorSpec& tensor) {
  int64_t bytes = static_cast<int64_t>(element_size(tensor.dtype));
  for (size_t d = 1; d < tensor.shape.size(); ++d) bytes *= tensor.shape[d];
  return bytes;
}

// Adds up what another rank says that it gives. False where no memory could hold it: that would overrun this rank's.
bool add_rows(int64_t rows, int64_t row_bytes, int64_t* all_rows, int64_t* bytes, int64_t* all_bytes) {
  return rows >= 0 && !__builtin_mul_overflow(rows, row_bytes, bytes) &&
         !__builtin_add_overflow(*all_bytes, *bytes, all_bytes) && !__builtin_add_overflow(*all_rows, rows, all_rows);
}

Status impossible_rows(int rank, int64_t rows, int64_t row_bytes) {
  return {HVD_RANK_LOST,
          "rank " + std::to_string(rank) + " says that it gives " + std::to_string(rows) + " rows of " +
              std::to_string(row_bytes) + " bytes",
          rank};
}

}  // namespace

Status Execution::allocate(int64_t bytes, const Carrier& carrier, Submission* submission, size_t tensor,
                           Gathered* result) const {
  const int64_t given = submission->prepared->output_bytes[tensor];
  if (given > 0 && given == bytes && submission->on_device == nullptr) {
    result->given = static_cast<std::byte*>(submission->outputs[tensor]);
    return {};
  }
  if (given > 0 && given != bytes && submission->outcome.ok()) {  // the other ranks go on, so this one takes part
    const Prepared& prepared = *submission->prepared;
    submission->outcome =
        invalid(describe(rank_, prepared.name, prepared.descriptor.kind) + ": expected an output of " +
                std::to_string(bytes) + " bytes, got " + std::to_string(given) + " bytes");
  }
  if (carrier.allocate != nullptr) HVD_RETURN_IF_ERROR(carrier.allocate(static_cast<size_t>(bytes), result));
  if (result->memory() != nullptr) return {};
  result->data.reset(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
  if (result->data != nullptr) return {};
  return {HVD_OUT_OF_MEMORY,
          "rank " + std::to_string(rank_) + " does not have the memory for the result: " + std::to_string(bytes) +
              " bytes\nhint: give the job more memory, or gather less at once",
          rank_};
}

void Execution::count_largest(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  int64_t largest = counts_.largest_reduction.load(std::memory_order_relaxed);
  for (const BatchTensor& tensor : batch.tensors) {
    largest = std::max(largest, closed[tensor.entry]->prepared->tensors[tensor.tensor].count());
  }
  counts_.largest_reduction.store(largest, std::memory_order_relaxed);  // batches run one after the other
}

Status Execution::run(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  return run(batch, closed, {closed[batch.entry]->prepared->set->communicator.get(), nullptr});
}

Status Execution::run(const Batch& batch, const std::vector<SubmissionPtr>& closed, const Carrier& carrier) {
  counts_.batches.fetch_add(1, std::memory_order_relaxed);
  if (reduces(batch.descriptor->kind)) count_largest(batch, closed);
  counts_.tensors.fetch_add(batch.tensors.size(), std::memory_order_relaxed);
  switch (batch.descriptor->kind) {
    case HVD_ALLREDUCE:
      return run_allreduce(batch, closed, *carrier.communicator);
    case HVD_REDUCESCATTER:
      return run_reducescatter(batch, closed, *carrier.communicator);
    case HVD_BROADCAST:
      return run_broadcast(*closed[batch.entry], *carrier.communicator);
    case HVD_SEND:
      return run_message(closed[batch.entry].get(), *carrier.communicator);
    case HVD_ALLGATHER:
      return run_allgather(closed[batch.entry].get(), carrier);
    case HVD_ALLTOALL:
      return run_alltoall(closed[batch.entry].get(), carrier);
    default:
      break;  // that all have submitted it is all there is to it
  }
  return {};
}

Status Execution::run_allreduce(const Batch& batch, const std::vector<SubmissionPtr>& closed, Communicator& by) {
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
  count_bytes(elements * static_cast<int64_t>(element_size(batch.dtype)));
  const ProcessSet& set = *closed[batch.entry]->prepared->set;
  const Reduction reduction = reduction_of(batch, set.size());
  if (reduction.op != HVD_ADASUM) return by.allreduce(slices, reduction);
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(instruction_set_, &kernels));
  return adasum(*set.communicator, kernels, slices, reduction);
}

// The rows of each tensor are dealt to the members in order.
Status Execution::run_reducescatter(const Batch& batch, const std::vector<SubmissionPtr>& closed, Communicator& by) {
  const ProcessSet& set = *closed[batch.entry]->prepared->set;
  std::vector<std::vector<Slice>> parts(static_cast<size_t>(set.size()));
  int64_t elements = 0;
  for (const BatchTensor& tensor : batch.tensors) {
    const Submission& submission = *closed[tensor.entry];
    const TensorSpec& spec = submission.prepared->tensors[tensor.tensor];
    const int64_t count = spec.count();
    if (count == 0) continue;
    const int64_t row_elements = count / spec.shape[0];
    const std::byte* input = static_cast<const std::byte*>(submission.inputs[tensor.tensor]);
    for (int m = 0; m < set.size(); ++m) {
      const int64_t part = rows_of_member(spec.shape[0], set.size(), m) * row_elements;
      std::byte* const output = m == set.member ? static_cast<std::byte*>(submission.outputs[tensor.tensor]) : nullptr;
      if (part > 0) parts[static_cast<size_t>(m)].push_back({input, output, part});
      input += part * static_cast<int64_t>(element_size(spec.dtype));
    }
    elements += count;
  }
  if (elements == 0) return {};
  count_bytes(elements * static_cast<int64_t>(element_size(batch.dtype)));
  return by.reducescatter(parts, reduction_of(batch, set.size()));
}

Status Execution::run_broadcast(const Submission& submission, Communicator& by) {
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
  count_bytes(bytes);
  const ProcessSet& set = *submission.prepared->set;
  return by.broadcast(slices, 1, set.member_of(submission.prepared->descriptor.root_rank));
}

// Each of the two members has one end of the tensor.
Status Execution::run_message(Submission* submission, Communicator& by) {
  const TensorSpec& tensor = submission->prepared->tensors[0];
  const ProcessSet& set = *submission->prepared->set;
  const int root = submission->prepared->descriptor.root_rank;
  const int64_t length = tensor.count() * static_cast<int64_t>(element_size(tensor.dtype));
  Gathered result;
  result.rows.push_back(root);
  submission->results.push_back(std::move(result));
  if (length == 0) return {};
  auto* const own = static_cast<std::byte*>(root == rank_ ? const_cast<void*>(submission->inputs[0])  // NOLINT
                                                          : submission->outputs[0]);
  const Slice slice{own, own, length};
  count_bytes(length);
  return by.broadcast({&slice, 1}, 1, set.member_of(root));
}

// Rows first, since they may differ by rank; then each tensor of the group.
Status Execution::run_allgather(Submission* submission, const Carrier& carrier) {
  const std::vector<TensorSpec>& tensors = submission->prepared->tensors;
  const ProcessSet& set = *submission->prepared->set;
  const size_t members = static_cast<size_t>(set.size());
  constexpr size_t kTensorsAtOnce = 4096;  // an exchange carries at most 64 KiB a member
  std::vector<int64_t> rows(tensors.size() * members);
  for (size_t start = 0; start < tensors.size(); start += kTensorsAtOnce) {
    const size_t length = std::min(kTensorsAtOnce, tensors.size() - start);
    Exchanged<int64_t> mine(length), all(length * members);
    for (size_t i = 0; i < length; ++i) mine[i] = tensors[start + i].shape[0];
    HVD_RETURN_IF_ERROR(set.communicator->exchange(mine.data(), length * sizeof(int64_t), all.data()));
    for (size_t member = 0; member < members; ++member) {
      for (size_t i = 0; i < length; ++i) rows[(start + i) * members + member] = all[member * length + i];
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    Gathered result;
    result.rows.assign(rows.begin() + static_cast<ptrdiff_t>(i * members),
                       rows.begin() + static_cast<ptrdiff_t>((i + 1) * members));
    result.shape = tensors[i].shape;
    const int64_t row_bytes = row_bytes_of(tensors[i]);
    std::vector<int64_t> bytes_of_member(members);
    int64_t total_bytes = 0;
    result.shape[0] = 0;
    for (size_t member = 0; member < members; ++member) {
      // The other ranks' word: what no memory could hold would overrun this rank's.
      const int64_t rows_there = result.rows[member];
      if (!add_rows(rows_there, row_bytes, &result.shape[0], &bytes_of_member[member], &total_bytes)) {
        return impossible_rows(set.ranks[member], rows_there, row_bytes);
      }
    }
    HVD_RETURN_IF_ERROR(allocate(total_bytes, carrier, submission, i, &result));
    if (total_bytes > 0) {
      HVD_RETURN_IF_ERROR(carrier.communicator->allgather(submission->inputs[i], bytes_of_member, result.memory()));
      count_bytes(total_bytes);
    }
    submission->results.push_back(std::move(result));
  }
  return {};
}

// Exchanges all members' splits first, so that each member knows how much goes between any two of them.
Status Execution::run_alltoall(Submission* submission, const Carrier& carrier) {
  const TensorSpec& tensor = submission->prepared->tensors[0];
  const ProcessSet& set = *submission->prepared->set;
  const size_t members = static_cast<size_t>(set.size());
  Exchanged<int64_t> rows(members * members);
  std::vector<int64_t> bytes(members * members);
  HVD_RETURN_IF_ERROR(
      set.communicator->exchange(submission->prepared->splits.data(), members * sizeof(int64_t), rows.data()));
  const int64_t row_bytes = row_bytes_of(tensor);
  Gathered result;
  result.shape = tensor.shape;
  result.shape[0] = 0;
  int64_t received_bytes = 0;
  for (size_t from = 0; from < members; ++from) {
    int64_t sent_rows = 0, sent_bytes = 0, ignored = 0;
    for (size_t to = 0; to < members; ++to) {
      const size_t pair = from * members + to;
      if (!add_rows(rows[pair], row_bytes, &sent_rows, &bytes[pair], &sent_bytes)) {
        return impossible_rows(set.ranks[from], rows[pair], row_bytes);
      }
    }
    result.rows.push_back(rows[from * members + static_cast<size_t>(set.member)]);
    if (!add_rows(result.rows.back(), row_bytes, &result.shape[0], &ignored, &received_bytes)) {
      return impossible_rows(set.ranks[from], result.rows.back(), row_bytes);
    }
  }
  HVD_RETURN_IF_ERROR(allocate(received_bytes, carrier, submission, 0, &result));
  HVD_RETURN_IF_ERROR(carrier.communicator->alltoall(submission->inputs[0], bytes, result.memory()));
  count_bytes(received_bytes);
  submission->results.push_back(std::move(result));
  return {};
}

}  // namespace hvd
