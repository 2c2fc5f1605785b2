// SPDX-License-Identifier: Apache-2.0
#include "engine/device_batches.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "communicators/nccl/communicator.h"
#include "engine/process_set.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

namespace {

constexpr size_t kAligned = 64;

size_t aligned(size_t bytes) { return (bytes + kAligned - 1) / kAligned * kAligned; }

size_t bytes_of(const TensorSpec& tensor) { return static_cast<size_t>(tensor.count()) * element_size(tensor.dtype); }

size_t output_bytes_of(const Prepared& prepared, const TensorSpec& tensor) {
  switch (prepared.descriptor.kind) {
    case HVD_ALLREDUCE:
    case HVD_BROADCAST:
      return bytes_of(tensor);
    case HVD_REDUCESCATTER: {
      const ProcessSet& set = *prepared.set;
      const auto mine = static_cast<size_t>(rows_of_member(tensor.shape[0], set.size(), set.member));
      return tensor.shape[0] == 0 ? 0 : bytes_of(tensor) / static_cast<size_t>(tensor.shape[0]) * mine;
    }
    default:
      return 0;
  }
}

}  // namespace

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

DeviceBatches::Parts DeviceBatches::parts_of(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  Parts parts;
  for (const BatchTensor& each : batch.tensors) {
    Submission& submission = *closed[each.entry];
    if (submission.on_device == nullptr) continue;  // zeros of a rank that has joined
    const TensorSpec& spec = submission.prepared->tensors[each.tensor];
    parts[submission.prepared->device].tensors.push_back(
        {&submission, each.tensor, bytes_of(spec), output_bytes_of(*submission.prepared, spec), nullptr, nullptr});
  }
  return parts;
}

Status DeviceBatches::fetch(const Batch& batch, const std::vector<SubmissionPtr>& closed, bool* ready) {
  if (!is_fetching_) {
    parts_ = parts_of(batch, closed);
    is_fetching_ = true;
    fetching_since_ns_ = now_ns();
    HVD_RETURN_IF_ERROR(choose(batch, closed));
    for (auto& [device, part] : parts_) {
      if (carrier_ == nullptr) HVD_RETURN_IF_ERROR(begin(*device, &part));
    }
  }
  if (carrier_ != nullptr) {
    const bool blocks = in_levels_ && settings_.gpu_levels == nccl::Levels::kHierarchical;
    return blocks ? look_for_inputs(ready) : Status();
  }
  for (const auto& [device, part] : parts_) {
    HVD_RETURN_IF_ERROR(device->is_done(part.fetched, ready));
    if (!*ready) return {};
  }
  return {};
}

Status DeviceBatches::run(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  is_fetching_ = false;
  ++(carrier_ != nullptr ? counts_.by_nccl : counts_.staged);
  if (in_levels_) ++counts_.in_levels;
  if (carrier_ != nullptr) return run_by_nccl(batch, closed);
  const Parts parts = std::exchange(parts_, {});
  HVD_RETURN_IF_ERROR(execution_.run(batch, closed));
  for (const auto& [device, part] : parts) HVD_RETURN_IF_ERROR(bring_back(*device, part));
  return {};
}

// The inputs of what will be launched by a carrier that waits for the GPU.
Status DeviceBatches::look_for_inputs(bool* ready) const {
  for (const auto& [device, part] : parts_) {
    for (const Tensor& tensor : part.tensors) {
      HVD_RETURN_IF_ERROR(device->is_done(tensor.submission->on_device->ready, ready));
      if (!*ready) return {};
    }
  }
  return {};
}

Status DeviceBatches::choose(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  carrier_ = nullptr;
  in_levels_ = false;
  const hvd_kind kind = batch.descriptor->kind;
  const GpuWay way = settings_.gpu_way[kind];
  ProcessSet& set = *closed[batch.entry]->prepared->set;
  const Reduction reduction = reduces(kind) ? reduction_of(batch, set.size()) : Reduction{};
  if (way == GpuWay::kHost || (reduces(kind) && !nccl::can_reduce(reduction, kind))) return {};
  const bool in_levels = settings_.gpu_levels != nccl::Levels::kNone && kind == HVD_ALLREDUCE &&
                         nccl::has_levels(set.topology) && nccl::can_reduce_in_levels(reduction);
  ProcessSet::OnGpu::Way& found = in_levels ? set.gpu.in_levels : set.gpu.whole;
  if (!found.tried) {
    if (!parts_.empty() && !set.gpu.whole.tried && !set.gpu.in_levels.tried) set.gpu.device = parts_.begin()->first;
    HVD_RETURN_IF_ERROR(meet(&set, &found, way));
  }
  if (!found.carriers.empty()) {
    const size_t turn = found.batches++ % found.carriers.size();
    carrier_ = found.carriers[turn];
    HVD_RETURN_IF_ERROR(set.gpu.device->stream(turn, &stream_));
  }
  in_levels_ = in_levels && carrier_ != nullptr;
  if (found.tried && carrier_ == nullptr && way == GpuWay::kNccl) return {HVD_UNAVAILABLE, found.why_not};
  return {};
}

// Collective over the members of the set, at the same place in the log. All streams at once: NCCL allocates memory when
// its ranks meet, which can wait for a kernel that runs.
Status DeviceBatches::meet(ProcessSet* set, ProcessSet::OnGpu::Way* way, GpuWay wanted) {
  Status joined;
  while (joined.ok() && way->carriers.size() < settings_.nccl_streams) {
    std::shared_ptr<nccl::NcclCommunicator> carrier;
    joined = meet_on(*set, way->carriers.size(), way == &set->gpu.in_levels, &carrier);
    if (carrier != nullptr) way->carriers.push_back(std::move(carrier));
  }
  way->tried = joined.code() != HVD_JOINED;
  if (!way->tried) return {};  // until it uses one, the others' tensors go through host memory
  if (joined.ok() || joined.code() != HVD_UNAVAILABLE) return joined;
  const size_t streams = way->carriers.size();
  way->why_not = "NCCL cannot carry the tensors" + set->in_words() + ": " + joined.text();
  const bool is_error = streams == 0 && wanted == GpuWay::kNccl;
  if (set->member == 0 && settings_.warnings && !is_error) {
    warn(streams > 0 ? "NCCL has " + std::to_string(streams) + " of " + std::to_string(settings_.nccl_streams) +
                           " streams: " + joined.text()
                     : way->why_not +
                           "\nhint: they go through host memory, which is slower; "
                           "HOROVOD_GPU_OPERATIONS=host asks for that",
         settings_.log_time);
  }
  return {};
}

Status DeviceBatches::meet_on(const ProcessSet& set, size_t stream, bool in_levels,
                              std::shared_ptr<nccl::NcclCommunicator>* carrier) {
  nccl::Parts parts;
  parts.ranks = set.ranks;
  parts.device = set.gpu.device;
  parts.interrupt = interrupt_;
  parts.timeout_ms = settings_.start_timeout_ms;
  parts.inside = inside_nccl_;
  parts.in_aborts = in_aborts_;
  if (parts.device != nullptr) {
    HVD_RETURN_IF_ERROR(parts.device->stream(stream, &parts.stream));
    const Status opened = nccl::Library::open({settings_.nccl_library, settings_.nccl_found}, &parts.library);
    if (!opened.ok()) parts.why = opened.text();
  }
  HVD_RETURN_IF_ERROR(join(set, parts, in_levels, carrier));
  const std::lock_guard lock(carriers_mutex_);
  std::erase_if(carriers_, [](const auto& each) { return each.expired(); });
  carriers_.push_back(*carrier);
  return {};
}

Status DeviceBatches::join(const ProcessSet& set, const nccl::Parts& parts, bool in_levels,
                           std::shared_ptr<nccl::NcclCommunicator>* out) {
  if (!in_levels) return nccl::join(*set.communicator, parts, out);
  const auto make_across = [&](std::unique_ptr<Communicator>* across) -> Status {
    const Members members =
        some_of({set.ranks, set.member, set.topology}, nccl::across_hosts(set.topology, set.member));
    const CommunicatorRow* row = nullptr;
    HVD_RETURN_IF_ERROR(choose_communicator(settings_.communicator, members.topology, false, &row));
    return row->make(members, communicator_parts_(), across);
  };
  return nccl::join_levels(*set.communicator, set.topology, parts, settings_.gpu_levels, make_across, out);
}

void DeviceBatches::abort_nccl_elsewhere() {
  const std::lock_guard lock(carriers_mutex_);
  std::vector<std::shared_ptr<nccl::NcclCommunicator>> carriers;
  for (const auto& one : carriers_) {
    if (auto carrier = one.lock()) carriers.push_back(std::move(carrier));
  }
  nccl::abort_all(carriers, 0);
}

Status DeviceBatches::run_by_nccl(const Batch& batch, const std::vector<SubmissionPtr>& closed) {
  const Parts parts = std::exchange(parts_, {});
  const ProcessSet::OnGpu& gpu = closed[batch.entry]->prepared->set->gpu;
  for (const auto& [device, part] : parts) {
    if (device != gpu.device) {
      return {HVD_INVALID_ARGUMENT, "a process gives NCCL tensors of one GPU, got GPU " +
                                        std::to_string(gpu.device->ordinal()) + " and GPU " +
                                        std::to_string(device->ordinal()) +
                                        "\nhint: give each rank a GPU of its own, by "
                                        "torch.cuda.set_device(hvd.local_rank()) or as in docs/gpu.md"};
    }
    HVD_RETURN_IF_ERROR(wait_for_inputs(*device, part, stream_));
    for (const Tensor& tensor : part.tensors) {
      Submission& submission = *tensor.submission;
      submission.inputs[tensor.index] = submission.on_device->inputs[tensor.index];
      submission.outputs[tensor.index] = submission.on_device->outputs[tensor.index];
    }
  }
  std::vector<cuda::DeviceMemory> zeros;
  HVD_RETURN_IF_ERROR(give_zeros(closed, batch, *gpu.device, &zeros));
  const Carrier carrier{carrier_.get(), gpu.device, stream_};
  HVD_RETURN_IF_ERROR(execution_.run(batch, closed, &carrier));
  for (const auto& [device, part] : parts) {
    HVD_RETURN_IF_ERROR(launch(*device, stream_, carrier_, part.tensors));
  }
  return {};
}

Status DeviceBatches::launch(cuda::Device& device, cuda::Stream stream,
                             std::shared_ptr<const nccl::NcclCommunicator> carrier,
                             const std::vector<Tensor>& tensors) {
  auto launch = std::make_shared<Launch>();
  launch->device = &device;
  launch->stream = stream;
  if (carrier != nullptr) launch->carriers.push_back(std::move(carrier));
  std::set<const Launch*> before;
  for (const Tensor& tensor : tensors) {
    const std::shared_ptr<Launch>& earlier = tensor.submission->on_device->launch;
    if (earlier == nullptr || !before.insert(earlier.get()).second) continue;
    if (earlier->stream != stream) HVD_RETURN_IF_ERROR(device.wait(stream, earlier->done));
    launch->carriers.insert(launch->carriers.end(), earlier->carriers.begin(), earlier->carriers.end());
  }
  HVD_RETURN_IF_ERROR(device.record(stream, &launch->done));
  for (const Tensor& tensor : tensors) tensor.submission->on_device->launch = launch;
  return {};
}

// Of a rank that has joined: its zeros lie in host memory.
Status DeviceBatches::give_zeros(const std::vector<SubmissionPtr>& closed, const Batch& batch, cuda::Device& device,
                                 std::vector<cuda::DeviceMemory>* zeros) {
  for (const BatchTensor& each : batch.tensors) {
    Submission& submission = *closed[each.entry];
    const size_t bytes = bytes_of(submission.prepared->tensors[each.tensor]);
    if (submission.on_device != nullptr || bytes == 0) continue;
    cuda::DeviceMemory& memory = zeros->emplace_back();
    HVD_RETURN_IF_ERROR(device.allocate(bytes, stream_, &memory));
    HVD_RETURN_IF_ERROR(device.zero(memory.data(), bytes, stream_));
    submission.inputs[each.tensor] = submission.outputs[each.tensor] = memory.data();
  }
  return {};
}

Status DeviceBatches::wait_for_inputs(cuda::Device& device, const Part& part, cuda::Stream stream) {
  std::map<cuda::Stream, const cuda::Event*> ready;  // of each stream the latest, which comes after the others
  for (const Tensor& tensor : part.tensors) {
    const OnDevice& there = *tensor.submission->on_device;
    const cuda::Event*& latest = ready[there.stream];
    if (latest == nullptr || latest->order() < there.ready.order()) latest = &there.ready;
  }
  for (const auto& [_, event] : ready) HVD_RETURN_IF_ERROR(device.wait(stream, *event));
  return {};
}

// Enqueues the copies of the inputs into memory of the host.
Status DeviceBatches::begin(cuda::Device& device, Part* part) {
  const auto is_in_place = [](const Tensor& tensor) {
    return tensor.submission->prepared->descriptor.kind != HVD_REDUCESCATTER;
  };
  size_t bytes = 0;
  for (const Tensor& tensor : part->tensors) {
    bytes += aligned(tensor.input_bytes) + (is_in_place(tensor) ? 0 : aligned(tensor.output_bytes));
  }
  // Not behind what waits in NCCL for its input: the batches that follow wait for these copies.
  const size_t stream = settings_.nccl_streams == 1 ? 0 : settings_.nccl_streams;
  HVD_RETURN_IF_ERROR(device.stream(stream, &part->stream));
  HVD_RETURN_IF_ERROR(device.lend(bytes, part->stream, &part->staging));

  HVD_RETURN_IF_ERROR(wait_for_inputs(device, *part, part->stream));
  std::byte* at = part->staging.data();
  for (Tensor& tensor : part->tensors) {
    Submission& submission = *tensor.submission;
    tensor.input = tensor.output = at;
    at += aligned(tensor.input_bytes);
    if (!is_in_place(tensor)) {
      tensor.output = at;
      at += aligned(tensor.output_bytes);
    }
    submission.inputs[tensor.index] = tensor.input;
    submission.outputs[tensor.index] = tensor.output;
    if (tensor.input_bytes == 0) continue;
    HVD_RETURN_IF_ERROR(
        device.copy(tensor.input, submission.on_device->inputs[tensor.index], tensor.input_bytes, part->stream));
  }
  return device.record(part->stream, &part->fetched);
}

// Enqueues the copies of the results onto the GPU.
Status DeviceBatches::bring_back(cuda::Device& device, const Part& part) {
  for (const Tensor& tensor : part.tensors) {
    if (tensor.output_bytes == 0) continue;
    void* const output = tensor.submission->on_device->outputs[tensor.index];
    HVD_RETURN_IF_ERROR(device.copy(output, tensor.output, tensor.output_bytes, part.stream));
  }
  return launch(device, part.stream, nullptr, part.tensors);
}

}  // namespace hvd
