// SPDX-License-Identifier: Apache-2.0
// Running: closed batches, the ends of their calls, and the communicators.
#include "engine/runner.h"

#include <algorithm>
#include <new>
#include <utility>

#include "fusion/batch.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/wait.h"

namespace hvd {

namespace {

constexpr int kMostHelpers = 7;  // more copy no faster: memory is the limit

// The cores that the rank may use, or those that its framework was told to, less the caller's own.
std::shared_ptr<Helpers> make_helpers(const EngineSettings& settings, const HostMap& map) {
  int threads = settings.helper_threads;
  if (threads < 0) {
    const auto ranks_here = static_cast<int>(map.ranks_here.size());
    int cores = std::clamp(online_cpus() / std::max(1, ranks_here), 1, allowed_cpus());
    if (settings.omp_threads > 0 && settings.omp_threads < static_cast<uint64_t>(cores))
      cores = static_cast<int>(settings.omp_threads);
    threads = std::min(cores - 1, kMostHelpers);
  }
  return threads == 0 ? nullptr : std::make_shared<Helpers>(threads);
}

}  // namespace

Runner::Runner(const EngineParts& parts, Calls& calls)
    : settings_(parts.settings),
      map_(parts.map),
      world_(parts.world),
      segment_(parts.segment),
      bells_(parts.bells),
      ending_(parts.ending),
      wakeup_(parts.wakeup),
      service_(parts.service),
      trace_(parts.trace),
      calls_(calls),
      helpers_(make_helpers(parts.settings, parts.map)),
      execution_(parts.map.rank, parts.settings.instruction_set),
      device_runner_(execution_, settings_, ending_.interrupt(), [this] { return parts_in(nullptr); }),
      gpu_watch_(settings_, parts.map.rank) {}

Status Runner::connect(std::vector<EngineOptions::Link>* links) {
  std::sort(links->begin(), links->end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  std::vector<std::vector<int>> sockets(static_cast<size_t>(map_.world_size()));
  int opener = -1, links_per_peer = 0;
  for (EngineOptions::Link& link : *links) {
    if (link.purpose == HVD_LINK_OPENER && opener < 0) {
      opener = std::exchange(link.fd, -1);
      links_per_peer = link.index;
    }
    if (link.purpose != HVD_LINK_DATA || link.peer < 0 || link.peer >= map_.world_size()) continue;
    sockets[static_cast<size_t>(link.peer)].push_back(std::exchange(link.fd, -1));
  }
  data_links_ = std::make_shared<DataLinks>(std::move(sockets), opener, links_per_peer);
  data_links_->lose_after(settings_.lost_timeout_ms);
  return world_->row->make({world_->ranks, world_->member, world_->topology}, parts_in(segment_.transport_area()),
                           &world_->communicator);
}

CommunicatorParts Runner::parts_in(std::byte* area) const {
  CommunicatorSettings settings;
  settings.isa = settings_.instruction_set;
  settings.group_hosts = static_cast<int>(settings_.host_group_size);
  settings.helpers = helpers_;
  return {area, data_links_, settings, ending_.interrupt()};
}

void Runner::open(SubmissionPtr submission) {
  if (submission == nullptr) {
    ending_.poison(
        HVD_INTERNAL, -1,
        "rank " + std::to_string(map_.rank) + " has joined and was told to run an operation that needs its data");
    return;
  }
  if (ending_.somebody_left()) {  // the rank that left may have submitted it, but will not take part
    calls_.complete(submission, failure_of(*submission, ending_.end_of_job()));
    return;
  }
  trace_.enter(submission.get(), Submission::Stage::kQueued);
  open_.add(std::move(submission), now_ns());
}

void Runner::close_batch() {
  if (open_.is_empty()) return;
  trace_.mark_cycle();
  execute(open_.take());
}

void Runner::execute(std::vector<SubmissionPtr> closed) {
  std::vector<const Descriptor*> descriptors;
  for (const SubmissionPtr& submission : closed) descriptors.push_back(&submission->prepared->descriptor);
  running_.batches = plan_batches(descriptors, settings_.fusion_threshold_bytes, settings_.groups_apart);
  running_.next = 0;
  running_.tensors_left.clear();
  for (const SubmissionPtr& submission : closed) {
    running_.tensors_left.push_back(submission->prepared->tensors.size());
  }
  running_.calls = std::move(closed);
  go_on();
}

void Runner::go_on() {
  const OnThread::Scope following(calls_.following());
  Status failure;
  while (failure.ok() && running_.next < running_.batches.size()) {
    const Batch& batch = running_.batches[running_.next];
    bool ready = true;
    failure = connect_pair(batch);
    if (failure.ok()) failure = await_inputs(batch, &ready);
    suspended_.store(failure.ok() && !ready);
    if (suspended_.load()) return;
    if (failure.ok()) failure = run_next(batch);
    ++running_.next;
    if (!failure.ok()) communicator_failed(failure, name_of(*running_.calls[batch.entry]));
  }
  for (size_t i = 0; i < running_.calls.size(); ++i) {
    const SubmissionPtr& call = running_.calls[i];
    if (has_run(i)) continue;
    calls_.complete(call, failure.ok() ? call->outcome : failure_of(*call, ending_.cause()));  // ok: of no tensors
  }
  running_.on_gpu.reset();
  running_.calls.clear();
}

// True if a call of tensors has left with its last batch.
bool Runner::has_run(size_t call) const {
  return running_.calls[call]->done.load() ||
         (running_.tensors_left[call] == 0 && running_.calls[call]->on_device != nullptr);
}

Status Runner::await_inputs(const Batch& batch, bool* ready) {
  if (batch.descriptor->place == HVD_ON_HOST) return {};
  std::unique_ptr<DeviceBatch>& on_gpu = running_.on_gpu;
  if (on_gpu == nullptr) HVD_RETURN_IF_ERROR(of_rank(map_.rank, device_runner_.begin(batch, running_.calls, &on_gpu)));
  HVD_RETURN_IF_ERROR(of_rank(map_.rank, on_gpu->has_inputs(ready)));
  return *ready ? Status() : gpu_watch_.look_at_inputs(on_gpu->begun_ns(), *running_.calls[batch.entry]->name);
}

Status Runner::run_next(const Batch& batch) {
  for (const BatchTensor& tensor : batch.tensors) {
    Submission& submission = *running_.calls[tensor.entry];
    if (submission.traced == Submission::Stage::kQueued) trace_.enter(&submission, Submission::Stage::kRunning);
  }
  HVD_RETURN_IF_ERROR(run(batch, running_.calls));
  for (const BatchTensor& tensor : batch.tensors) {
    const SubmissionPtr& submission = running_.calls[tensor.entry];
    if (--running_.tensors_left[tensor.entry] > 0) continue;
    if (submission->on_device == nullptr) {
      calls_.complete(submission, submission->outcome);
    } else {
      launched(submission);
    }
  }
  return {};
}

Status Runner::run(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  try {
    switch (batch.descriptor->kind) {
      case HVD_ADD_PROCESS_SET:
        return run_add_process_set(closed[batch.entry].get());
      case HVD_REMOVE_PROCESS_SET:
        return run_remove_process_set(closed[batch.entry].get());
      default:
        return batch.descriptor->place == HVD_ON_HOST
                   ? execution_.run(batch, closed)
                   : of_rank(map_.rank, std::exchange(running_.on_gpu, nullptr)->run());
    }
  } catch (const std::bad_alloc&) {
    return {HVD_OUT_OF_MEMORY, "rank " + std::to_string(map_.rank) + " has not enough memory for the result",
            map_.rank};
  }
}

// A data link broke inside a collective. Its peer may have died, or may have ended because another rank did: what the
// control links say in the next moments decides which rank is named.
void Runner::communicator_failed(const Status& status, const std::string& doing) {
  constexpr uint64_t kPatienceNs = 300000000;
  const uint64_t deadline = now_ns() + kPatienceNs;
  // A cause that is known, and seconds of silence, need no other's word. The connections are closed once the cause is
  // on its way (spread_abort), or the others would name this rank.
  if (ending_.poisoned() || (data_links_ != nullptr && data_links_->met_silence())) {
    ending_.poison(status.code(), status.failed_rank(), doing + ": " + status.text());
    spread_abort();
    return;
  }
  // A rank inside a collective reads no control link. Closing ours gets those out of it that would wait for this rank,
  // rank 0 above all, which passes the cause to all ranks.
  drop_host_communicators();
  // A failure met by this rank alone needs no confirmation. The end of another rank is reported by the monitor or over
  // the links of the host's leader; both may be a moment behind the communicator.
  while (status.code() == HVD_RANK_LOST && !ending_.poisoned() && now_ns() < deadline) {
    if (service_ == nullptr || service_->is_alone()) {
      sleep_ms(1);
    } else if (!service_->await_news(50)) {
      break;
    }
  }
  if (!ending_.poisoned()) ending_.poison(status.code(), status.failed_rank(), doing + ": " + status.text());
  spread_abort();  // GPUs may still work on the tensors of calls that are about to end
}

void Runner::spread_abort() {
  if (!ending_.begin_spreading()) return;
  if (service_ != nullptr) service_->spread_abort(ending_.cause());
  drop_communicators(false);
  bells_.ring_others();
}

void Runner::fail_all(const Status& cause) {
  std::vector<SubmissionPtr> failed = calls_.give_up_all();
  for (const SubmissionPtr& submission : open_.take()) {
    if (submission->entry == EntryRef{}) failed.push_back(submission);  // zeros of a rank that has joined
  }
  for (size_t i = 0; suspended_.load() && i < running_.calls.size(); ++i) {
    if (!has_run(i)) failed.push_back(running_.calls[i]);
  }
  suspended_.store(false);
  if (service_ != nullptr) service_->leader().pending().take();
  for (const SubmissionPtr& submission : failed) {
    calls_.complete(submission, failure_of(*submission, cause));
  }
}

void Runner::fail_launched(const Status& cause) {
  for (const SubmissionPtr& submission : launched_.take_all()) calls_.end(submission, cause);
}

// Its name is free for the next call.
void Runner::launched(const SubmissionPtr& submission) {
  const Member::Finished finished = calls_.leave(submission);
  launched_.add(submission);
  submission->on_device->is_launched.store(true);
  wakeup_.completed();
  calls_.say(finished);
}

// Without a pause between calls, it looks at most every 10 us: on an H200 a look takes 0.2 us, and up to 0.8 if another
// thread calls the driver.
bool Runner::look_at_launched() {
  constexpr uint64_t kPauseNs = 10'000;
  const uint64_t now = now_ns();
  if (now - looked_at_gpus_ns_ < kPauseNs && !ending_.poisoned() && !ending_.stopped()) return false;
  looked_at_gpus_ns_ = now;
  bool some = false;
  Status how;
  while (const SubmissionPtr submission = launched_.first_ended(&how)) {
    some = true;
    if (!how.ok() && !ending_.poisoned()) communicator_failed(of_rank(map_.rank, how), name_of(*submission));
    if (!how.ok()) spread_abort();  // the GPU may still work on the call's tensors
    launched_.drop(submission);     // not before: who settles finds either the call or the end of the job
    calls_.end(submission, how.ok() ? Status() : failure_of(*submission, ending_.cause()));
  }
  if (!ending_.poisoned()) ending_.poison_if_failed(of_rank(map_.rank, gpu_watch_.look(launched_)));
  return some;
}

void Runner::drop_communicators(bool in_order) {
  drop_host_communicators();
  device_runner_.drop(in_order);
}

void Runner::drop_host_communicators() {
  const std::lock_guard lock(communicator_mutex_);
  for (const auto& [number, set] : calls_.sets()) set->communicator.reset();
  for (const std::shared_ptr<ProcessSet>& pair : calls_.pairs()) pair->communicator.reset();
  data_links_.reset();
}

std::string Runner::describe_communicator() {
  const std::lock_guard lock(communicator_mutex_);
  return world_->communicator == nullptr ? "" : world_->communicator->describe();
}

}  // namespace hvd
