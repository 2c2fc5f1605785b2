// SPDX-License-Identifier: Apache-2.0
// Join (steps 4 and 5): a rank that has run out of data says so, gives zeros to the others' allreduces, and waits until
// all have joined. What else can be done meanwhile, and that nobody waits for it, is the coordinator's business.
//
// Guarded by the engine's mutex, and under the token where the log is followed.
#include <algorithm>

#include "engine/engine.h"
#include "negotiation/frames.h"

namespace hvd {

Status Engine::join(hvd_handle* handle) {
  auto submission = std::make_shared<Submission>();
  auto prepared = std::make_shared<Prepared>();
  prepared->name = "join";
  submission->prepared = std::move(prepared);
  submission->entry = join_;
  submission->sync = true;
  Announcement announcement;
  {
    const std::lock_guard lock(mutex_);
    HVD_RETURN_IF_ERROR(refuse_if_over().while_doing("rank " + std::to_string(rank_) + ", join"));
    join_->name = "join";
    join_->forgotten = true;  // it stands in no set
    join_->in_flight = submission;
    // What waits in this process for its turn has been submitted, as the user sees it.
    if (deferred_ == 0) announcement = send_join();
    in_flight_.fetch_add(1);
  }
  *handle = handles_.add(std::move(submission));
  announce(announcement);
  return {};
}

Engine::Announcement Engine::send_join() {
  JoinFrame join{rank_, {}};
  for (const auto& [number, set] : sets_) {
    for (const auto& [name, entry] : set->entries) {
      if (entry->counted_in.has_value()) join.counted[static_cast<uint32_t>(entry->id)] = *entry->counted_in;
    }
  }
  statistics_.slow_requests.fetch_add(1, std::memory_order_relaxed);
  segment_->rank(local_rank_).joined.store(1);
  to_leader_.send(FrameKind::kJoin, join_payload(join));
  return {-1, 0, true, true};
}

// Nothing is under way by now, in any set.
void Engine::apply_join(uint32_t last_rank) {
  SubmissionPtr joined;
  segment_->rank(local_rank_).joined.store(0);
  {
    const std::lock_guard lock(mutex_);
    joined = join_->in_flight;
    // The ranks have submitted different numbers of unnamed requests; from here on they count alike again.
    for (const auto& [number, set] : sets_) set->unnamed = 0;
  }
  if (joined == nullptr || last_rank >= static_cast<uint32_t>(world_size_)) {
    poison(HVD_INTERNAL, -1, "rank " + std::to_string(rank_) + " was told that all ranks have joined, and has not");
    return;
  }
  Gathered result;
  result.rows.push_back(last_rank);
  joined->results.push_back(std::move(result));
  complete(joined, {});
}

// What this rank gives to the entry that is ready: what it has submitted, or zeros, where it has joined.
SubmissionPtr Engine::ready_submission(uint32_t id) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Entry> entry = id < entry_of_id_.size() ? entry_of_id_[id] : nullptr;
  if (entry == nullptr) return nullptr;
  return entry->in_flight == nullptr && join_->in_flight != nullptr ? zeros_for(entry) : entry->in_flight;
}

SubmissionPtr Engine::zeros_for(const std::shared_ptr<Entry>& entry) {
  constexpr uint64_t kLine = 64;
  auto prepared = std::make_shared<Prepared>();
  if (!Descriptor::decode(entry->definition, &prepared->descriptor)) return nullptr;
  if (prepared->descriptor.kind != HVD_ALLREDUCE) return nullptr;
  prepared->name = entry->name;
  prepared->tensors = prepared->descriptor.tensors;
  prepared->set = sets_.at(entry->set->number);
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
  memory.data = std::make_unique<std::byte[]>(bytes + 1);
  for (const uint64_t offset : offsets) {
    submission->inputs.push_back(memory.data.get() + offset);
    submission->outputs.push_back(memory.data.get() + offset);
  }
  submission->prepared = std::move(prepared);
  submission->entry = entry;
  in_flight_.fetch_add(1);
  return submission;
}

// By each leader, before all can submit again: arrivals are counted again.
void Engine::back_to_the_fast_way() {
  for (uint32_t id = 0; id < text_read_at_.size(); ++id) {
    auto tally = segment_->tally(id, spans_hosts());
    if (tally.recalled()) tally.reset(false);
  }
}

}  // namespace hvd
