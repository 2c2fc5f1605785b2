// SPDX-License-Identifier: Apache-2.0
// Join (steps 4 and 5): a rank that has run out of data says so, gives zeros to the others' allreduces, and waits until
// all have joined. The coordinator decides which operations still run meanwhile, and that none of them waits for it.
#include "engine/calls.h"

namespace hvd {

Status Calls::enter_join(const SubmissionPtr& join, Member::Announcement* announcement) {
  const std::lock_guard lock(mutex_);
  HVD_RETURN_IF_ERROR(refuse_if_over().while_doing("rank " + std::to_string(map_.rank) + ", join"));
  *announcement = member_.join(join);
  in_flight_.fetch_add(1);
  set_blocked(false);
  return {};
}

void Calls::say_join() {
  Member::Announcement join;
  {
    const std::lock_guard lock(mutex_);
    join = member_.say_join();
  }
  announce(join);
}

void Calls::all_have_joined(const SubmissionPtr& join, uint32_t last_rank) {
  Gathered result;
  result.rows.push_back(last_rank);
  join->results.push_back(std::move(result));
  complete(join, {});
}

SubmissionPtr Calls::zeros_for(const Member::Applied& ready) {
  constexpr uint64_t kLine = 64;
  auto prepared = std::make_shared<Prepared>();
  if (!Descriptor::decode(ready.descriptor, &prepared->descriptor)) return nullptr;
  if (prepared->descriptor.kind != HVD_ALLREDUCE) return nullptr;
  prepared->name = *ready.name;
  prepared->tensors = prepared->descriptor.tensors;
  {
    const std::lock_guard lock(mutex_);
    prepared->set = sets_.at(ready.set);
  }
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;
  for (const TensorSpec& tensor : prepared->tensors) {
    const uint64_t length = static_cast<uint64_t>(tensor.count()) * element_size(tensor.dtype);
    offsets.push_back(bytes);
    bytes += (length + kLine - 1) / kLine * kLine;
    prepared->total_bytes += length;
  }
  auto submission = std::make_shared<Submission>();
  Gathered& memory = submission->results.emplace_back();
  memory.data.reset(new std::byte[bytes + 1]());
  for (const uint64_t offset : offsets) {
    submission->inputs.push_back(memory.data.get() + offset);
    submission->outputs.push_back(memory.data.get() + offset);
  }
  submission->name = ready.name;
  submission->total_bytes = prepared->total_bytes;
  submission->prepared = std::move(prepared);
  in_flight_.fetch_add(1);
  return submission;
}

}  // namespace hvd
