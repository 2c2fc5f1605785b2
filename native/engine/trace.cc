// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <iterator>
#include <string_view>

namespace hvd {

void Trace::record(Submission* submission, Submission::Stage next) {
  using Stage = Submission::Stage;
  static constexpr const char* kOperations[] = {"ALLREDUCE", "ALLGATHER",     "BROADCAST",       "BARRIER",
                                                "ALLTOALL",  "REDUCESCATTER", "ADD_PROCESS_SET", "REMOVE_PROCESS_SET",
                                                "SEND",      "RECEIVE"};
  static_assert(std::size(kOperations) == HVD_RECEIVE + 1, "a name for each hvd_kind");
  if (submission->prepared == nullptr) return;
  const Stage before = submission->traced;
  if (next != Stage::kNegotiating && before == Stage::kNone) return;  // submitted before the timeline was on
  const Descriptor& descriptor = submission->prepared->descriptor;
  const char* operation = kOperations[descriptor.kind];
  const std::string& tensor = *submission->name;
  const auto event = [&](Timeline::Phase phase, const char* label, const char* what, std::string_view detail = {}) {
    timeline_.record(phase, label, what, tensor, detail);
  };
  if (before == Stage::kNegotiating) event(Timeline::Phase::kEnd, "NEGOTIATE_", operation);
  if (before == Stage::kQueued) event(Timeline::Phase::kEnd, "QUEUE", "");
  if (before == Stage::kRunning) event(Timeline::Phase::kEnd, label_, operation);
  if (next == Stage::kNegotiating) event(Timeline::Phase::kBegin, "NEGOTIATE_", operation);
  if (next == Stage::kQueued) {
    event(Timeline::Phase::kBegin, "", operation);
    event(Timeline::Phase::kBegin, "QUEUE", "");
  }
  if (next == Stage::kRunning) event(Timeline::Phase::kBegin, label_, operation);
  if (next == Stage::kDone && before >= Stage::kQueued) {
    std::string detail;
    if (!descriptor.tensors.empty()) {
      const TensorSpec& first = submission->prepared->tensors.front();
      detail = std::string(name_of(first.dtype)) + " " + describe_shape(first.shape);
      if (descriptor.tensors.size() > 1) detail += " and " + std::to_string(descriptor.tensors.size() - 1) + " more";
    }
    event(Timeline::Phase::kEnd, "", operation, detail);
  }
  submission->traced = next;
}

std::string Trace::row_of_thread() {
  const std::lock_guard lock(mutex_);
  const auto found = threads_.try_emplace(std::this_thread::get_id(), threads_.size() + 1).first;
  return "script, thread " + std::to_string(found->second);
}

}  // namespace hvd
