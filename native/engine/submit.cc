// SPDX-License-Identifier: Apache-2.0
// The user's side of the engine: checks, names, the fast submission (one addition in shared memory) and the slow one.
#include <algorithm>
#include <bit>
#include <cstring>

#include "collectives/adasum.h"
#include "engine/engine.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/fault_point.h"

namespace hvd {

extern thread_local const Engine* following;

namespace {

// How many unnamed requests may be undecided at once; a later one waits in the process for an earlier one's place. Few,
// so that a program without names soon repeats itself and takes the fast way.
constexpr uint64_t kUnnamedEntries = 64;

Status invalid(const std::string& text) { return {HVD_INVALID_ARGUMENT, text}; }

std::string describe(int rank, const std::string& name) {
  return "rank " + std::to_string(rank) + ", " + (name.empty() ? "unnamed request" : quote_name(name));
}

Status name_too_long(const std::string& what) {
  return invalid(what + ": a name has at most " + std::to_string(kMaxNameBytes) + " bytes");
}

Status check_tensor(const hvd_request& request, const hvd_tensor& tensor, const std::string& what) {
  if (tensor.dtype < HVD_UINT8 || tensor.dtype > HVD_BOOL) {
    return invalid(what + ": unknown dtype " + std::to_string(tensor.dtype));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDimensions) {
    return invalid(what + ": expected at most " + std::to_string(kMaxDimensions) + " dimensions, seen " +
                   std::to_string(tensor.ndim));
  }
  const auto dtype = static_cast<DataType>(tensor.dtype);
  if (!TensorSpec{dtype, {tensor.shape, tensor.shape + tensor.ndim}}.possible()) {
    return invalid(what + ": impossible shape");
  }
  const auto kind = static_cast<hvd_kind>(request.kind);
  if ((is_ragged(kind) || kind == HVD_REDUCESCATTER) && tensor.ndim == 0) {
    return invalid(what + ": " + name_of(kind) + " expects at least one dimension, seen a scalar");
  }
  if (reduces(kind) && dtype == HVD_BOOL && request.op != HVD_MIN && request.op != HVD_MAX) {
    return invalid(what + ": bool can be reduced by Min (and) and Max (or), seen " +
                   name_of(static_cast<ReduceOp>(request.op)));
  }
  if (reduces(kind) && request.op == HVD_ADASUM && !has_adasum(dtype)) {
    return invalid(what + ": Adasum is for floating-point tensors, seen " + name_of(dtype));
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
                     " members can share evenly, seen " + std::to_string(rows) + "\nhint: give splits");
    }
    splits->assign(static_cast<size_t>(members), rows / members);
    return {};
  }
  if (request.nsplits != static_cast<uint32_t>(members)) {
    return invalid(what + ": expected one split for each of " + std::to_string(members) + " members, seen " +
                   std::to_string(request.nsplits));
  }
  int64_t sum = 0;
  for (uint32_t m = 0; m < request.nsplits; ++m) {
    const int64_t split = request.splits[m];
    if (split < 0) return invalid(what + ": expected splits of zero or more rows, seen " + std::to_string(split));
    if (split > rows - sum) {
      return invalid(what + ": expected splits that add up to at most the " + std::to_string(rows) + " rows there are");
    }
    sum += split;
  }
  splits->assign(request.splits, request.splits + request.nsplits);
  return {};
}

// Null where there is something to read or to write.
Status check_addresses(const Prepared& prepared, const Submission& submission, int rank) {
  const hvd_kind kind = prepared.descriptor.kind;
  const auto missing = [&](size_t i, const char* end) {
    return invalid(describe(rank, prepared.name) + ": expected an " + end + " for tensor " + std::to_string(i + 1) +
                   " of " + std::to_string(prepared.tensors.size()) + ", seen NULL");
  };
  for (size_t i = 0; i < prepared.tensors.size(); ++i) {
    if (prepared.tensors[i].count() == 0) continue;
    if (submission.inputs[i] == nullptr) return missing(i, "input");
    if (is_ragged(kind)) continue;
    const bool is_empty = kind == HVD_REDUCESCATTER &&
                          rows_of_member(prepared.tensors[i].shape[0], prepared.set->size(), prepared.set->member) == 0;
    if (!is_empty && (submission.outputs.empty() || submission.outputs[i] == nullptr)) return missing(i, "output");
  }
  return {};
}

Status check_request(const hvd_request& request, const ProcessSet& set, const std::string& what) {
  if (request.kind < HVD_ALLREDUCE || request.kind > HVD_REDUCESCATTER) return invalid(what + ": unknown operation");
  if ((request.kind == HVD_BARRIER) != (request.ntensors == 0) ||
      (request.kind == HVD_ALLTOALL && request.ntensors != 1)) {
    return invalid(what + ": seen " + std::to_string(request.ntensors) + " tensors");
  }
  if (reduces(static_cast<hvd_kind>(request.kind)) && (request.op < HVD_AVERAGE || request.op > HVD_PRODUCT ||
                                                       (request.op == HVD_ADASUM && request.kind != HVD_ALLREDUCE))) {
    return invalid(what + ": unsupported reduce operation " + std::to_string(request.op));
  }
  if (request.kind == HVD_ALLREDUCE && request.op == HVD_ADASUM &&
      !std::has_single_bit(static_cast<uint32_t>(set.size()))) {
    return invalid(what + ": Adasum needs a power of two ranks, seen " + std::to_string(set.size()) + set.in_words());
  }
  if (request.kind == HVD_BROADCAST && set.member_of(request.root_rank) < 0) {
    return invalid(what + ": expected a root rank among the ranks " +
                   describe_shape({set.ranks.begin(), set.ranks.end()}) + set.in_words() + ", seen " +
                   std::to_string(request.root_rank));
  }
  for (uint32_t i = 0; i < request.ntensors; ++i) {
    HVD_RETURN_IF_ERROR(check_tensor(request, request.tensors[i], what));
  }
  return {};
}

}  // namespace

Status Engine::prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out) {
  const std::string name = request.name == nullptr ? "" : request.name;
  const std::string what = describe(rank_, name);
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
  return invalid(what + ": this rank is no member of process set " + std::to_string(number) + ", which has the ranks " +
                 describe_shape({ranks.begin(), ranks.end()}));
}

std::shared_ptr<Entry> Engine::intern(ProcessSet* set, const std::string& name) {
  std::shared_ptr<Entry>& entry = set->entries[name];
  if (entry == nullptr) {
    entry = std::make_shared<Entry>();
    entry->set = set;
    entry->name = name;
  }
  return entry;
}

// With the mutex.
void Engine::forget_if_idle(const std::shared_ptr<Entry>& entry) {
  if (entry->id >= 0 || entry->in_flight != nullptr || entry->forgotten) return;
  entry->forgotten = true;
  const std::string name = entry->name;  // the map's may be the last pointer to it
  entry->set->entries.erase(name);
}

std::shared_ptr<Entry> Engine::next_unnamed(ProcessSet* set) {
  return intern(set, std::string(kUnnamedPrefix) + std::to_string(set->unnamed++ % kUnnamedEntries));
}

Status Engine::refuse_if_over() {
  if (stopping_.load()) return end_of_job();
  if (poisoned()) return segment_->cause();
  if (left_rank_.load() >= 0) return end_of_job();
  if (join_->in_flight != nullptr) return invalid("this rank has joined: it can submit nothing before all ranks have");
  return {};
}

Status Engine::submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
                      uint32_t flags, hvd_handle* handle, void* user) {
  auto submission = std::make_shared<Submission>();
  const size_t tensors = prepared->tensors.size();
  if (inputs != nullptr) submission->inputs.assign(inputs, inputs + tensors);
  if (outputs != nullptr) submission->outputs.assign(outputs, outputs + tensors);
  HVD_RETURN_IF_ERROR(check_addresses(*prepared, *submission, rank_));
  submission->sync = (flags & HVD_SYNC) != 0;
  submission->urgent = (flags & HVD_URGENT) != 0;
  submission->user = user == nullptr ? prepared->user : user;
  submission->prepared = std::move(prepared);
  // A caller that will wait drives from here on. Were the engine's thread to be rung until wait() is called, a peer
  // that completes the operation meanwhile would wake it, which costs more than the operation.
  std::optional<Driving> driving;
  if (submission->sync) driving.emplace(*this);
  Announcement announcement;
  *handle = handles_.add(submission);  // before it can be done: its callback may want it
  if (const Status refused = enter(submission, &announcement); !refused.ok()) {
    handles_.release(*handle);
    return refused;
  }
  const bool drives = driving.has_value() && driving->drives();
  announce(announcement, drives);
  if (drives) drive_for_a_moment(*submission);
  return {};
}

Status Engine::enter(const SubmissionPtr& submission, Announcement* announcement) {
  const std::lock_guard lock(mutex_);
  // Under the lock: after that, fail_all() finds the submission.
  if (Status over = refuse_if_over(); !over.ok()) {
    over = std::move(over).while_doing(describe(rank_, submission->prepared->name));
    remember_end(over);
    return over;
  }
  ProcessSet* const set = submission->prepared->set.get();
  if (set->closing) return invalid("process set " + std::to_string(set->number) + " has been removed");
  std::shared_ptr<Entry>& known = submission->prepared->entry;
  const bool named = !submission->prepared->name.empty();
  if (named && (known == nullptr || known->forgotten)) known = intern(set, submission->prepared->name);
  const std::shared_ptr<Entry> entry = named ? known : next_unnamed(set);
  submission->entry = entry;
  if (named && entry->in_flight != nullptr && !entry->in_flight->is_refusal) {
    return {HVD_DUPLICATE_NAME, "rank " + std::to_string(rank_) + " submitted " + quote_name(entry->name) +
                                    " while an operation of that name is in flight on it\nhint: wait for the first, "
                                    "or give the second another name"};
  }
  if (submission->urgent) segment_->header().waiting.fetch_add(1);  // until it is complete
  if (entry->in_flight == nullptr) {
    *announcement = begin(submission);
  } else {
    entry->deferred.push_back(submission);
    ++deferred_;
  }
  in_flight_.fetch_add(1);
  return {};
}

Status Engine::refuse(const char* name, int32_t process_set, const std::string& why) {
  if (name != nullptr && std::strlen(name) > kMaxNameBytes) {
    return name_too_long(describe(rank_, name));
  }
  auto submission = std::make_shared<Submission>();
  std::shared_ptr<ProcessSet> set;
  HVD_RETURN_IF_ERROR(find_set_for_use(process_set, describe(rank_, name == nullptr ? "" : name), &set));
  submission->is_refusal = true;
  submission->refusal = why.substr(0, kMaxReasonBytes);
  Announcement announcement;
  {
    const std::lock_guard lock(mutex_);
    HVD_RETURN_IF_ERROR(refuse_if_over());
    if (set->closing) return invalid("the process set has been removed");
    const bool named = name != nullptr && *name != '\0';
    const std::shared_ptr<Entry> entry = named ? intern(set.get(), name) : next_unnamed(set.get());
    submission->entry = entry;
    if (entry->in_flight == nullptr) {
      announcement = begin(submission);
    } else {
      entry->deferred.push_back(submission);
      ++deferred_;
    }
    in_flight_.fetch_add(1);
  }
  announce(announcement);
  return {};
}

Engine::Announcement Engine::begin(const SubmissionPtr& submission) {
  Entry* entry = submission->entry.get();
  entry->in_flight = submission;
  if (timeline_.is_on()) trace(submission.get(), Submission::Stage::kNegotiating);
  if (entry->id >= 0) segment_->in_flight(local_rank_, static_cast<uint32_t>(entry->id)).store(now_ns() / 1000000 + 1);
  const bool fast = !submission->is_refusal && entry->id >= 0 && entry->definition == submission->prepared->bytes;
  bool complete = false;
  Arrival<> arrival(fast ? Arrival<>::State::kArrive : Arrival<>::State::kSlow);
  if (fast) {
    auto tally = segment_->tally(static_cast<uint32_t>(entry->id), spans_hosts());
    // The last step, telling the others, may wait for room in the log: it follows when the lock is free again.
    while (!arrival.finished()) arrival.step(tally, [&] { complete = true; });
  }
  if (arrival.state() != Arrival<>::State::kSlow) entry->counted_in = arrival.round();
  if (complete) return {entry->id, submission->prepared->total_bytes, submission->sync, false};
  if (arrival.state() != Arrival<>::State::kSlow) return {};

  statistics_.slow_requests.fetch_add(1, std::memory_order_relaxed);
  Writer payload;
  payload.put(rank_);
  if (submission->is_refusal) payload.put(entry->set->number);
  payload.put_string(entry->name);
  payload.put_string(submission->is_refusal ? submission->refusal : submission->prepared->bytes);
  if (!submission->is_refusal) payload.put(static_cast<uint8_t>(submission->sync));
  to_leader_.send(submission->is_refusal ? FrameKind::kRefuse : FrameKind::kRequest, payload.take());
  return {-1, 0, submission->sync, true};
}

void Engine::announce(const Announcement& announcement, bool driving) {
  if (following == this) {
    if (announcement.id >= 0) later_.push_back(announcement);
    if (announcement.asked_leader && !is_leader()) bells_->ring(0);
    return;
  }
  if (announcement.asked_leader) {
    if (is_leader() && announcement.sync) return;  // the caller is about to drive, and serves its own ring
    bells_->ring(0);
    return;
  }
  if (announcement.id < 0) return;
  fault_point("count");  // all have arrived, and nobody has been told
  const auto id = static_cast<uint32_t>(announcement.id);
  if (!spans_hosts()) {
    if (!wait_for_room_in_log(driving)) return;
    const uint64_t position = segment_->append({RecordKind::kReady, id});
    fault_point("append");  // it can be read, and nobody has been woken for it
    became_ready(position, announcement.bytes, announcement.sync);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (!is_leader()) {
    Writer payload;
    payload.put(uint32_t{1}).put(id);
    to_leader_.send(FrameKind::kHostReady, payload.take());
    bells_->ring(0);
    return;
  }
  if (ready_here_.empty()) ready_here_since_ns_.store(now_ns());
  ready_here_.push_back(id);
  const uint64_t bytes = ready_here_bytes_.fetch_add(announcement.bytes) + announcement.bytes;
  if (announcement.sync) return;
  if (ready_here_.size() == 1 || bytes >= options_.settings.close_bytes || segment_->header().waiting.load() > 0) {
    bells_->ring(local_rank_);
  }
}

// READY stands in the log at `position`. Wakes those who have to act on it now: everybody once a batch is due,
// otherwise the own engine's thread, which lingers for company and then closes the batch. Who opens a batch does that
// for all that follows it: whether this record does, the one before it tells. (The count of bytes could not: it and the
// log do not change at one time.)
void Engine::became_ready(uint64_t position, uint64_t bytes, bool sync) {
  SegmentHeader& header = segment_->header();
  const uint64_t before = header.ready_bytes.fetch_add(bytes);
  const bool due = before + bytes >= options_.settings.close_bytes || header.waiting.load() > 0;
  Record previous;
  const bool opens = position == 0 || !segment_->peek(position - 1, &previous) || previous.kind != RecordKind::kReady;
  if (due) bells_->ring_others();
  if (!sync && (due || opens)) bells_->ring(local_rank_);
}

// The log is a ring: its slowest reader must not be lapped. That may be this rank itself, so it reads on, whether it
// holds the token (`driving`) or not. False where the generation has ended: then nobody needs the record.
bool Engine::wait_for_room_in_log(bool driving) {
  return wait_for_readers(driving, [this] { return segment_->log_has_room(); });
}

// Until the condition holds, which others bring about by reading.
bool Engine::wait_for_readers(bool driving, const std::function<bool()>& have_read) {
  for (int i = 0; !have_read(); ++i) {
    if (poisoned() || stopped_.load()) return false;
    if (now_ns() > stop_deadline_ns_.load()) {
      poison(HVD_RANK_LEFT, rank_,
             "rank " + std::to_string(rank_) + " shut down while the others did not read its log");
      return false;
    }
    // Decisions that come in while a failed batch is looked into (communicator_failed): it ends in poison in any case.
    if (following == this) return false;
    if (driving) {
      while (!poisoned() && follow_log()) {
      }
    } else if (take_token()) {
      drive(true);
      drop_token();
      hand_over();
    }
    bells_->ring_others();
    if (i > 0) sleep_ms(i < 10 ? 0 : 1);
  }
  return true;
}

}  // namespace hvd
