// SPDX-License-Identifier: Apache-2.0
// The user's side of the engine: checks, names, the fast submission (one addition in shared memory), the slow one, and
// the wait.
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "collectives/adasum.h"
#include "engine/engine.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/fault_point.h"

namespace hvd {

namespace {

Status invalid(const std::string& text) { return {HVD_INVALID_ARGUMENT, text}; }

// `kind`: as the caller gave it, so it may be none.
std::string describe(int rank, const std::string& name, int32_t kind) {
  const std::string unnamed = std::string("unnamed ") + name_of(static_cast<hvd_kind>(kind));
  return "rank " + std::to_string(rank) + ", " + (name.empty() ? unnamed : quote_name(name));
}

Status name_too_long(const std::string& what) {
  return invalid(what + ": a name has at most " + std::to_string(kMaxNameBytes) + " bytes");
}

Status check_tensor(const hvd_request& request, const hvd_tensor& tensor, const std::string& what) {
  if (tensor.dtype < HVD_UINT8 || tensor.dtype > HVD_BOOL) {
    return invalid(what + ": unknown dtype " + std::to_string(tensor.dtype));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDimensions) {
    return invalid(what + ": expected at most " + std::to_string(kMaxDimensions) + " dimensions, got " +
                   std::to_string(tensor.ndim));
  }
  const auto dtype = static_cast<DataType>(tensor.dtype);
  if (!TensorSpec{dtype, {tensor.shape, tensor.shape + tensor.ndim}}.possible()) {
    return invalid(what + ": impossible shape");
  }
  const auto kind = static_cast<hvd_kind>(request.kind);
  if ((is_ragged(kind) || kind == HVD_REDUCESCATTER) && tensor.ndim == 0) {
    return invalid(what + ": " + name_of(kind) + " expects at least one dimension, got a scalar");
  }
  if (reduces(kind) && dtype == HVD_BOOL && request.op != HVD_MIN && request.op != HVD_MAX) {
    return invalid(what + ": bool can be reduced by Min (and) and Max (or), got " +
                   name_of(static_cast<ReduceOp>(request.op)));
  }
  if (reduces(kind) && request.op == HVD_ADASUM && !has_adasum(dtype)) {
    return invalid(what + ": Adasum is for floating-point tensors, got " + name_of(dtype));
  }
  return {};
}

// The rows that an alltoall sends to each member.
Status check_splits(const hvd_request& request, int members, const std::string& what, std::vector<int64_t>* splits) {
  const int64_t rows = request.tensors[0].shape[0];
  const bool given = request.splits != nullptr;
  if (!given) {
    if (rows % members != 0) {
      return invalid(what + ": expected a number of rows that " + std::to_string(members) +
                     " members can share evenly, got " + std::to_string(rows) + "\nhint: give splits");
    }
    splits->assign(static_cast<size_t>(members), rows / members);
    return {};
  }
  if (request.nsplits != static_cast<uint32_t>(members)) {
    return invalid(what + ": expected one split for each of " + std::to_string(members) + " members, got " +
                   std::to_string(request.nsplits));
  }
  const std::span<const int64_t> parts(request.splits, request.nsplits);
  for (const int64_t split : parts) {
    if (split < 0) return invalid(what + ": expected splits of zero or more rows, got " + std::to_string(split));
  }
  int64_t left = rows;
  for (const int64_t split : parts) {
    if (split > left) {
      return invalid(what + ": expected splits that add up to at most the " + std::to_string(rows) + " rows there are");
    }
    left -= split;
  }
  splits->assign(parts.begin(), parts.end());
  return {};
}

// Null where there is something to read or to write.
Status check_addresses(const Prepared& prepared, const std::vector<const void*>& inputs,
                       const std::vector<void*>& outputs, int rank) {
  const hvd_kind kind = prepared.descriptor.kind;
  const auto missing = [&](size_t i, const char* end) {
    return invalid(describe(rank, prepared.name, kind) + ": expected an " + end + " for tensor " +
                   std::to_string(i + 1) + " of " + std::to_string(prepared.tensors.size()) + ", got NULL");
  };
  for (size_t i = 0; i < prepared.tensors.size(); ++i) {
    if (prepared.tensors[i].count() == 0) continue;
    if (inputs.empty() || inputs[i] == nullptr) return missing(i, "input");
    if (is_ragged(kind)) continue;
    const bool is_empty = kind == HVD_REDUCESCATTER &&
                          rows_of_member(prepared.tensors[i].shape[0], prepared.set->size(), prepared.set->member) == 0;
    if (!is_empty && (outputs.empty() || outputs[i] == nullptr)) return missing(i, "output");
  }
  return {};
}

Status check_request(const hvd_request& request, const ProcessSet& set, const std::string& what) {
  if (request.kind < HVD_ALLREDUCE || request.kind > HVD_REDUCESCATTER) return invalid(what + ": unknown operation");
  if ((request.kind == HVD_BARRIER) != (request.ntensors == 0) ||
      (request.kind == HVD_ALLTOALL && request.ntensors != 1)) {
    const char* const expected = request.kind == HVD_BARRIER ? "no tensor" : "one tensor or more";
    return invalid(what + ": expected " + (request.kind == HVD_ALLTOALL ? "one tensor" : expected) + ", got " +
                   std::to_string(request.ntensors));
  }
  if (reduces(static_cast<hvd_kind>(request.kind)) && (request.op < HVD_AVERAGE || request.op > HVD_PRODUCT ||
                                                       (request.op == HVD_ADASUM && request.kind != HVD_ALLREDUCE))) {
    return invalid(what + ": unsupported reduce operation " + std::to_string(request.op));
  }
  if (request.kind == HVD_ALLREDUCE && request.op == HVD_ADASUM &&
      !std::has_single_bit(static_cast<uint32_t>(set.size()))) {
    return invalid(what + ": Adasum needs a power of two ranks, got " + std::to_string(set.size()) + set.in_words());
  }
  if (request.kind == HVD_BROADCAST && set.member_of(request.root_rank) < 0) {
    return invalid(what + ": expected a root rank among the ranks " +
                   describe_shape({set.ranks.begin(), set.ranks.end()}) + set.in_words() + ", got " +
                   std::to_string(request.root_rank));
  }
  if (request.place != HVD_ON_HOST && request.place != HVD_ON_CUDA) {
    return invalid(what + ": unknown place " + std::to_string(request.place));
  }
  for (uint32_t i = 0; i < request.ntensors; ++i) {
    HVD_RETURN_IF_ERROR(check_tensor(request, request.tensors[i], what));
  }
  return {};
}

}  // namespace

Status Engine::prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out) {
  const std::string name = request.name == nullptr ? "" : request.name;
  const std::string what = describe(map_.rank, name, request.kind);
  auto prepared = std::make_shared<Prepared>();
  HVD_RETURN_IF_ERROR(find_set_for_use(request.process_set, what, &prepared->set));
  HVD_RETURN_IF_ERROR(check_request(request, *prepared->set, what));
  if (name.size() > kMaxNameBytes) return name_too_long(what);

  Descriptor& descriptor = prepared->descriptor;
  prepared->name = name;
  prepared->done = request.done;
  prepared->user = request.user;
  descriptor.kind = static_cast<hvd_kind>(request.kind);
  descriptor.process_set = request.process_set;
  // Fields without a meaning for the operation are fixed, so that ranks cannot differ in them.
  const bool reduction = reduces(descriptor.kind);
  descriptor.op = reduction ? static_cast<ReduceOp>(request.op) : HVD_SUM;
  descriptor.prescale = reduction ? request.prescale : 1.0;
  descriptor.postscale = reduction ? request.postscale : 1.0;
  descriptor.root_rank = request.kind == HVD_BROADCAST ? request.root_rank : -1;
  for (uint32_t i = 0; i < request.ntensors; ++i) {
    const hvd_tensor& tensor = request.tensors[i];
    TensorSpec spec{static_cast<DataType>(tensor.dtype), {tensor.shape, tensor.shape + tensor.ndim}};
    prepared->total_bytes += static_cast<uint64_t>(spec.count()) * element_size(spec.dtype);
    prepared->tensors.push_back(spec);
    if (is_ragged(descriptor.kind)) spec.shape[0] = 0;
    descriptor.tensors.push_back(std::move(spec));
  }
  if (descriptor.kind == HVD_ALLTOALL) {
    HVD_RETURN_IF_ERROR(check_splits(request, prepared->set->size(), what, &prepared->splits));
  }
  if (request.place == HVD_ON_CUDA && request.ntensors > 0) {
    descriptor.place = HVD_ON_CUDA;
    HVD_RETURN_IF_ERROR(
        cuda::Device::get(options_.settings.cuda_library, request.device, &prepared->device).while_doing(what));
  }
  prepared->bytes = descriptor.encode();
  if (prepared->bytes.size() + name.size() > kMaxFrameBytes / 2)
    return invalid(what + ": the group has too many tensors");
  *out = std::move(prepared);
  return {};
}

Status Engine::find_any_set(int32_t number, std::shared_ptr<ProcessSet>* out) {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(number);
  if (found == sets_.end() || found->second->closing) {
    return invalid("unknown process set " + std::to_string(number) + "\nhint: add it first; it may have been removed");
  }
  *out = found->second;
  return {};
}

Status Engine::find_set_for_use(int32_t number, const std::string& what, std::shared_ptr<ProcessSet>* out) {
  HVD_RETURN_IF_ERROR(find_any_set(number, out).while_doing(what));
  const std::vector<int>& ranks = (*out)->ranks;
  if ((*out)->member >= 0) return {};
  return invalid(what + ": this rank is not in process set " + std::to_string(number) + ", which has the ranks " +
                 describe_shape({ranks.begin(), ranks.end()}));
}

Status Engine::refuse_if_over() {
  HVD_RETURN_IF_ERROR(ending_->why_over());
  if (member_->has_joined()) return invalid("this rank has joined: it can submit nothing before all ranks have");
  return {};
}

// Null for a request of tensors in host memory.
static Status take_moment(const Prepared& prepared, cuda::Stream stream, std::unique_ptr<OnDevice>* out) {
  if (prepared.device == nullptr) return {};
  *out = std::make_unique<OnDevice>();
  (*out)->stream = stream;
  return prepared.device->record(stream, &(*out)->ready);
}

// A GPU that has failed for a caller has done so for the operations of other ranks as well.
Status Engine::checked_for_all(Status status, const std::string& name) {
  if (status.ok()) return status;
  ending_->poison(of_this_rank(std::move(status)).while_doing(quote_name(name)));
  ending_->remember(ending_->cause());
  return ending_->cause();
}

Status Engine::submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
                      uint32_t flags, hvd_handle* handle, void* user, cuda::Stream stream) {
  auto submission = std::make_shared<Submission>();
  const size_t tensors = prepared->tensors.size();
  if (inputs != nullptr) submission->inputs.assign(inputs, inputs + tensors);
  if (outputs != nullptr) submission->outputs.assign(outputs, outputs + tensors);
  HVD_RETURN_IF_ERROR(check_addresses(*prepared, submission->inputs, submission->outputs, map_.rank));
  HVD_RETURN_IF_ERROR(checked_for_all(take_moment(*prepared, stream, &submission->on_device), prepared->name));
  if (submission->on_device != nullptr) {
    submission->outputs.resize(tensors);
    submission->on_device->inputs = std::exchange(submission->inputs, std::vector<const void*>(tensors));
    submission->on_device->outputs = std::exchange(submission->outputs, std::vector<void*>(tensors));
  }
  submission->sync = (flags & HVD_SYNC) != 0;
  submission->urgent = (flags & HVD_URGENT) != 0;
  submission->user = user == nullptr ? prepared->user : user;
  submission->descriptor = prepared->bytes;
  submission->total_bytes = prepared->total_bytes;
  submission->prepared = std::move(prepared);
  // A caller that will wait drives from here on. Were the engine's thread to be rung until wait() is called, a peer
  // that completes the operation meanwhile would wake it, which costs more than the operation.
  std::optional<Wakeup::Turn> turn;
  if (submission->sync) turn.emplace(*wakeup_);
  Member::Announcement announcement;
  *handle = handles_.add(submission);  // before it can be done: its callback may want it
  if (const Status refused = enter(submission, &announcement); !refused.ok()) {
    handles_.release(*handle);
    return refused;
  }
  const bool drives = turn.has_value() && turn->drives();
  announce(announcement, drives);
  if (drives) turn->drive_for_a_moment(submission->has_left());
  return {};
}

Status Engine::enter(const SubmissionPtr& submission, Member::Announcement* announcement) {
  const std::lock_guard lock(mutex_);
  const Prepared& prepared = *submission->prepared;
  // Under the lock: after that, fail_all() finds the submission.
  if (Status over = refuse_if_over(); !over.ok()) {
    over = std::move(over).while_doing(describe(map_.rank, prepared.name, prepared.descriptor.kind));
    ending_->remember(over);
    return over;
  }
  // Urgent: a compiled function's, which has its operations in one order, whatever thread runs it.
  if (submission->sync && !submission->urgent && !calling_back_.is_here()) {
    const std::thread::id before = std::exchange(waiter_, std::this_thread::get_id());
    if (before != waiter_ && before != std::thread::id()) has_several_waiters_ = true;
  }
  submission->is_only = submission->sync && !has_several_waiters_;
  has_callbacks_ |= prepared.done != nullptr;
  const ProcessSet& set = *prepared.set;
  if (set.closing) return invalid("process set " + std::to_string(set.number) + " has been removed");
  if (prepared.name.empty()) {
    *announcement = give_to_member(member_->next_unnamed(set.number), submission);
    return {};
  }
  if (!member_->knows(prepared.entry)) prepared.entry = member_->find_or_add(set.number, prepared.name);
  if (member_->is_duplicate(prepared.entry)) {
    return {HVD_DUPLICATE_NAME, "rank " + std::to_string(map_.rank) + " submitted " + quote_name(prepared.name) +
                                    " while an operation of that name is in flight on it\nhint: wait for the first, "
                                    "or give the second another name"};
  }
  *announcement = give_to_member(prepared.entry, submission);
  return {};
}

// With the mutex.
Member::Announcement Engine::give_to_member(EntryRef entry, const SubmissionPtr& submission) {
  if (submission->urgent) board_->begin_waiting();  // until it is complete
  in_flight_.fetch_add(1);
  set_blocked(false);
  bool begun = false;
  const Member::Announcement announcement = member_->submit(entry, submission, &begun);
  if (begun) trace_.enter(submission.get(), Submission::Stage::kNegotiating);
  return announcement;
}

Status Engine::refuse(const char* name, int32_t process_set, const std::string& why) {
  const std::string given = name == nullptr ? "" : name;
  const std::string what =
      "rank " + std::to_string(map_.rank) + ", " + quote_name(given.empty() ? kUnnamedPrefix : given);
  if (given.size() > kMaxNameBytes) return name_too_long(what);
  auto submission = std::make_shared<Submission>();
  std::shared_ptr<ProcessSet> set;
  HVD_RETURN_IF_ERROR(find_set_for_use(process_set, what, &set));
  submission->is_refusal = true;
  submission->refusal = why.substr(0, kMaxReasonBytes);
  Member::Announcement announcement;
  {
    const std::lock_guard lock(mutex_);
    HVD_RETURN_IF_ERROR(refuse_if_over());
    if (set->closing) return invalid("the process set has been removed");
    const EntryRef entry =
        given.empty() ? member_->next_unnamed(set->number) : member_->find_or_add(set->number, given);
    announcement = give_to_member(entry, submission);
  }
  announce(announcement);
  return {};
}

// Tells the others what the member wants them to know. May wait for room in the log.
void Engine::announce(const Member::Announcement& announcement, bool driving) {
  if (following_.is_here()) {
    if (announcement.completed.has_value()) later_.calls.push_back(announcement);
    if (announcement.asked_leader && !map_.is_leader()) bells_->ring(0);
    return;
  }
  if (announcement.asked_leader) {
    if (map_.is_leader() && announcement.sync) return;  // the caller is about to drive, and serves its own ring
    bells_->ring(0);
    return;
  }
  if (!announcement.completed.has_value()) return;
  fault_point("count");  // all have arrived, and no rank has been told
  publisher_->announce(*announcement.completed, driving);
}

Status Engine::poll(hvd_handle handle) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  return submission->done.load() ? submission->status : Status(HVD_PENDING, "");
}

Status Engine::poll_launch(hvd_handle handle) {
  const SubmissionPtr submission = handles_.find(handle);
  const bool is_launched = submission != nullptr && submission->is_launched();
  return is_launched && !submission->done.load() ? Status() : poll(handle);
}

Status Engine::device_of(const void* address, int32_t* device) const {
  HVD_RETURN_IF_ERROR(cuda::device_of(options_.settings.cuda_library, address, device));
  return *device < 0 ? invalid("the address lies in no GPU's memory") : Status();
}

Status Engine::device_of_stream(cuda::Stream stream, int32_t* device) const {
  return cuda::device_of_stream(options_.settings.cuda_library, stream, device);
}

Status Engine::wait(hvd_handle handle, int32_t timeout_ms) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr) return {HVD_INVALID_ARGUMENT, "unknown or released handle"};
  if (submission->done.load()) return submission->status;  // as of most small ones: without a look at the clock
  HVD_RETURN_IF_ERROR(wait_for(submission->done, deadline_in(timeout_ms)));
  return submission->status;
}

// All of it under the lock: what the log says of an operation meanwhile comes before or after.
Status Engine::declare_blocked(std::span<const hvd_handle> handles) {
  const std::lock_guard lock(mutex_);
  const bool waits_for_others = std::ranges::all_of(handles, [this](hvd_handle handle) {
    const SubmissionPtr submission = handles_.find(handle);
    return submission != nullptr && !submission->decided && !submission->done.load();
  });
  set_blocked(!handles.empty() && waits_for_others && !has_callbacks_);
  return {};
}

// Under the lock. Every submission comes here: the segment's line, which other ranks read, is left alone if it can be.
void Engine::set_blocked(bool blocked) {
  if (std::exchange(is_blocked_, blocked) == blocked) return;
  segment_->rank(map_.local_rank).blocked_since_ms.store(blocked ? now_ns() / 1000000 + 1 : 0);
}

Status Engine::wait_on_stream(hvd_handle handle, cuda::Stream stream, int32_t timeout_ms) {
  const SubmissionPtr submission = handles_.find(handle);
  if (submission == nullptr || submission->on_device == nullptr) return wait(handle, timeout_ms);
  const OnDevice& there = *submission->on_device;
  HVD_RETURN_IF_ERROR(wait_for(there.is_launched, deadline_in(timeout_ms)));
  if (there.launch == nullptr) return submission->status;  // it failed before
  HVD_RETURN_IF_ERROR(
      checked_for_all(there.launch->device->wait(stream, there.launch->done), submission->prepared->name));
  return submission->done.load() ? submission->status : Status();
}

Status Engine::settle(int32_t timeout_ms) {
  const Status waited = await_launched(timeout_ms);
  if (!waited.ok() && waited.code() != HVD_PENDING) return waited;
  return ending_->poisoned() ? ending_->cause() : waited;  // a kernel of the script may hang for ever
}

Status Engine::await_launched(int32_t timeout_ms) {
  const uint64_t deadline_ns = deadline_in(timeout_ms);
  while (const SubmissionPtr last = launched_.last()) {
    HVD_RETURN_IF_ERROR(wait_for(last->done, deadline_ns));
    HVD_RETURN_IF_ERROR(last->status);
  }
  return {};
}

Status Engine::find_result(hvd_handle handle, uint32_t index, SubmissionPtr* submission, Gathered** result) const {
  *submission = handles_.find(handle);
  if (*submission == nullptr) return invalid("unknown or released handle");
  if (!(*submission)->done.load() && !(*submission)->is_launched()) {
    return {HVD_PENDING, "the operation is not done"};
  }
  if (index >= (*submission)->results.size()) return invalid("the operation has no such result");
  *result = &(*submission)->results[index];
  return {};
}

Status Engine::copy_result(hvd_handle handle, uint32_t index, void* to, cuda::Stream stream) {
  SubmissionPtr submission;
  Gathered* result = nullptr;
  HVD_RETURN_IF_ERROR(find_result(handle, index, &submission, &result));
  const Prepared& prepared = *submission->prepared;
  if (prepared.device == nullptr) return invalid("the operation's tensors lie in host memory");
  const TensorSpec spec{prepared.tensors[index].dtype, result->shape};
  const size_t bytes = static_cast<size_t>(spec.count()) * element_size(spec.dtype);
  if (bytes == 0) return {};
  if (to == nullptr) return invalid("to: expected a pointer, got NULL");
  HVD_RETURN_IF_ERROR(checked_for_all(prepared.device->copy(to, result->memory(), bytes, stream), prepared.name));
  result->on_device.use_on(stream);
  result->staged.use_on(stream);
  return {};
}

uint64_t Engine::deadline_in(int32_t timeout_ms) {
  return timeout_ms < 0 ? UINT64_MAX : now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
}

Status Engine::wait_for(const std::atomic<bool>& done, uint64_t deadline_ns) {
  if (done.load()) return {};
  if (calling_back_.is_here()) {
    return {HVD_WOULD_DEADLOCK, "a completion callback cannot wait: it runs on the thread that makes progress"};
  }
  wakeup_->begin_waiting();
  // The entries that this rank has completed can be told now: it submits nothing more.
  if (!publisher_->ends_batches() && !map_.is_leader()) bells_->ring(0);
  wakeup_->wait(done, deadline_ns);
  wakeup_->end_waiting();
  wakeup_->hand_over();
  return done.load() ? Status() : Status(HVD_PENDING, "");
}

}  // namespace hvd
