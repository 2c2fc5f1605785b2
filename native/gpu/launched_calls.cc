// SPDX-License-Identifier: Apache-2.0
#include "gpu/launched_calls.h"

#include <algorithm>
#include <utility>

#include "platform/clock.h"

namespace hvd {

void LaunchedCalls::add(SubmissionPtr call) {
  if (call->prepared->done != nullptr) ++with_callbacks_;
  const std::lock_guard lock(mutex_);
  since_ns_.try_emplace(call->on_device->launch->stream, now_ns());
  calls_.push_back(std::move(call));
  ++count_;
}

SubmissionPtr LaunchedCalls::first_ended(Status* how) const {
  *how = {};
  if (count_.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  std::vector<cuda::Stream> busy;
  for (const SubmissionPtr& call : calls_) {
    Launch& launch = *call->on_device->launch;
    if (launch.has_ended) return call;
    if (std::ranges::find(busy, launch.stream) != busy.end()) continue;  // what comes before it has not ended
    bool done = false;
    *how = launch.device->is_done(launch.done, &done);
    for (const auto& carrier : launch.carriers) {
      if (how->ok()) *how = carrier->health();
    }
    launch.has_ended = done && how->ok();
    if (done || !how->ok()) return call;
    busy.push_back(launch.stream);
  }
  return nullptr;
}

void LaunchedCalls::drop(const SubmissionPtr& call) {
  const std::lock_guard lock(mutex_);
  if (call->prepared->done != nullptr) --with_callbacks_;
  const cuda::Stream stream = call->on_device->launch->stream;
  calls_.erase(std::ranges::find(calls_, call));
  since_ns_.erase(stream);
  const auto is_on_it = [stream](const SubmissionPtr& other) { return other->on_device->launch->stream == stream; };
  if (std::ranges::any_of(calls_, is_on_it)) since_ns_[stream] = now_ns();
  --count_;
}

std::vector<SubmissionPtr> LaunchedCalls::take_all() {
  const std::lock_guard lock(mutex_);
  std::vector<SubmissionPtr> all(calls_.begin(), calls_.end());
  calls_.clear();
  since_ns_.clear();
  count_ = with_callbacks_ = 0;
  return all;
}

Status LaunchedCalls::find_stuck(uint64_t limit_ns, Stuck* out) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [stream, since_ns] : since_ns_) {
    if (now_ns() - since_ns < limit_ns || (out->call != nullptr && out->since_ns <= since_ns)) continue;
    const auto is_on_it = [at = stream](const SubmissionPtr& call) { return call->on_device->launch->stream == at; };
    const auto found = std::ranges::find_if(calls_, is_on_it);
    const std::shared_ptr<Launch>& first = (*found)->on_device->launch;
    if (first->carriers.empty()) continue;
    bool has_inputs = true;
    for (const SubmissionPtr& call : calls_) {
      if (call->on_device->launch != first || !has_inputs) continue;
      HVD_RETURN_IF_ERROR(first->device->is_done(call->on_device->ready, &has_inputs));
    }
    *out = {*found, since_ns, has_inputs};
  }
  return {};
}

SubmissionPtr LaunchedCalls::last() const {
  const std::lock_guard lock(mutex_);
  return calls_.empty() ? nullptr : calls_.back();
}

int64_t LaunchedCalls::look_again_in_ns(bool suspended, bool waited_for) const {
  constexpr int64_t kOftenNs = 50'000, kSometimesNs = 1'000'000;
  if (!suspended && count_.load(std::memory_order_relaxed) == 0) return -1;
  return suspended || waited_for || with_callbacks_.load(std::memory_order_relaxed) > 0 ? kOftenNs : kSometimesNs;
}

}  // namespace hvd
