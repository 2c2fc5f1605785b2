// SPDX-License-Identifier: Apache-2.0
// The user's side of the engine: checks, names, the fast submission (one addition in shared memory) and the slow one.
#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <utility>

#include "collectives/adasum.h"
#include "engine/submitter.h"
#include "negotiation/names.h"
#include "negotiation/point_to_point.h"

namespace hvd {

namespace {

Status name_too_long(const std::string& what) {
  return invalid(what + ": a name has at most " + std::to_string(kMaxNameBytes) + " bytes");
}

Status check_tensor(const hvd_request& request, const hvd_tensor& tensor, const std::string& what) {
  if (tensor.dtype < HVD_UINT8 || tensor.dtype > HVD_UINT64) {
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
  if (!reduces(kind)) return {};
  const auto op = static_cast<ReduceOp>(request.op);
  if (dtype == HVD_BOOL && op != HVD_MIN && op != HVD_MAX && !is_bitwise(op)) {
    return invalid(what + ": bool can be reduced by Min (and), Max (or), BitAnd, BitOr and BitXor, got " + name_of(op));
  }
  if (is_floating(dtype) && is_bitwise(op)) {
    return invalid(what + ": " + name_of(op) + " is for integers and bool, got " + name_of(dtype));
  }
  if (op == HVD_ADASUM && !has_adasum(dtype)) {
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
  const bool sends = kind == HVD_SEND && prepared.descriptor.root_rank == rank;
  const bool receives = is_point_to_point(kind) && !sends;
  for (size_t i = 0; i < prepared.tensors.size(); ++i) {
    if (prepared.tensors[i].count() == 0) continue;
    if (!receives && (inputs.empty() || inputs[i] == nullptr)) return missing(i, "input");
    if (sends || (is_ragged(kind) && prepared.output_bytes[i] == 0)) continue;
    const bool is_empty = kind == HVD_REDUCESCATTER &&
                          rows_of_member(prepared.tensors[i].shape[0], prepared.set->size(), prepared.set->member) == 0;
    if (!is_empty && (outputs.empty() || outputs[i] == nullptr)) return missing(i, "output");
  }
  return {};
}

// The other rank of a message.
Status check_peer(const hvd_request& request, const ProcessSet& set, const std::string& what) {
  const int peer = request.root_rank;
  if (request.kind == HVD_RECEIVE && peer == -1) return {};
  const char* const words = request.kind == HVD_SEND ? "send to" : "receive from";
  if (set.member_of(peer) < 0) {
    return invalid(what + ": expected a rank to " + words + " among the ranks " +
                   describe_shape({set.ranks.begin(), set.ranks.end()}) + set.in_words() + ", got " +
                   std::to_string(peer));
  }
  if (set.ranks[static_cast<size_t>(set.member)] == peer) {
    return invalid(what + ": a rank cannot " + words + " itself\nhint: copy the tensor");
  }
  if (set.ranks.back() >= kMaxRanksOfPairs) {
    return invalid(what + ": send and receive are for jobs of at most " + std::to_string(kMaxRanksOfPairs) + " ranks");
  }
  return {};
}

Status check_request(const hvd_request& request, const ProcessSet& set, const std::string& what) {
  if (request.kind < HVD_ALLREDUCE ||
      (request.kind > HVD_REDUCESCATTER && !is_point_to_point(static_cast<hvd_kind>(request.kind)))) {
    return invalid(what + ": unknown operation");
  }
  const bool takes_one = request.kind == HVD_ALLTOALL || is_point_to_point(static_cast<hvd_kind>(request.kind));
  if ((request.kind == HVD_BARRIER) != (request.ntensors == 0) || (takes_one && request.ntensors != 1)) {
    const char* const expected = request.kind == HVD_BARRIER ? "no tensor" : "one tensor or more";
    return invalid(what + ": expected " + (takes_one ? "one tensor" : expected) + ", got " +
                   std::to_string(request.ntensors));
  }
  if (reduces(static_cast<hvd_kind>(request.kind)) && (request.op < HVD_AVERAGE || request.op > HVD_BITXOR ||
                                                       (request.op == HVD_ADASUM && request.kind != HVD_ALLREDUCE))) {
    return invalid(what + ": unsupported reduce operation " + std::to_string(request.op));
  }
  if (reduces(static_cast<hvd_kind>(request.kind)) && is_bitwise(static_cast<ReduceOp>(request.op)) &&
      (request.prescale != 1 || request.postscale != 1)) {
    return invalid(what + ": " + name_of(static_cast<ReduceOp>(request.op)) + " cannot be scaled");
  }
  if (request.kind == HVD_ALLREDUCE && request.op == HVD_ADASUM &&
      !std::has_single_bit(static_cast<uint32_t>(set.size()))) {
    return invalid(what + ": Adasum needs 2, 4, 8, ... ranks, got " + std::to_string(set.size()) + set.in_words());
  }
  if (request.kind == HVD_BROADCAST && set.member_of(request.root_rank) < 0) {
    return invalid(what + ": expected a root rank among the ranks " +
                   describe_shape({set.ranks.begin(), set.ranks.end()}) + set.in_words() + ", got " +
                   std::to_string(request.root_rank));
  }
  if (is_point_to_point(static_cast<hvd_kind>(request.kind))) HVD_RETURN_IF_ERROR(check_peer(request, set, what));
  if (request.place != HVD_ON_HOST && request.place != HVD_ON_CUDA) {
    return invalid(what + ": unknown place " + std::to_string(request.place));
  }
  for (uint32_t i = 0; i < request.ntensors; ++i) {
    HVD_RETURN_IF_ERROR(check_tensor(request, request.tensors[i], what));
  }
  return {};
}

}  // namespace

Submitter::Submitter(const EngineParts& parts, Calls& calls, const LaunchedCalls& launched)
    : settings_(parts.settings),
      map_(parts.map),
      world_(parts.world),
      bells_(parts.bells),
      ending_(parts.ending),
      wakeup_(parts.wakeup),
      publisher_(parts.publisher),
      calls_(calls),
      launched_(launched),
      trace_(parts.trace),
      arrivals_(parts.arrivals) {}

Status Submitter::prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out) {
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
  descriptor.process_set = prepared->set->number;
  // Fields without a meaning for the operation are fixed, so that ranks cannot differ in them.
  const bool reduction = reduces(descriptor.kind);
  descriptor.op = reduction ? static_cast<ReduceOp>(request.op) : HVD_SUM;
  descriptor.prescale = reduction ? request.prescale : 1.0;
  descriptor.postscale = reduction ? request.postscale : 1.0;
  descriptor.root_rank = request.kind == HVD_BROADCAST ? request.root_rank : -1;
  if (is_point_to_point(descriptor.kind)) address(request, prepared.get());
  for (uint32_t i = 0; i < request.ntensors; ++i) {
    const hvd_tensor& tensor = request.tensors[i];
    TensorSpec spec{static_cast<DataType>(tensor.dtype), {tensor.shape, tensor.shape + tensor.ndim}};
    prepared->total_bytes += static_cast<uint64_t>(spec.count()) * element_size(spec.dtype);
    prepared->tensors.push_back(spec);
    prepared->output_bytes.push_back(is_ragged(descriptor.kind) ? tensor.output_bytes : 0);
    if (is_ragged(descriptor.kind)) spec.shape[0] = 0;
    descriptor.tensors.push_back(std::move(spec));
  }
  if (descriptor.kind == HVD_ALLTOALL) {
    HVD_RETURN_IF_ERROR(check_splits(request, prepared->set->size(), what, &prepared->splits));
  }
  if (request.place == HVD_ON_CUDA && request.ntensors > 0) {
    descriptor.place = HVD_ON_CUDA;
    HVD_RETURN_IF_ERROR(cuda::Device::get(settings_.cuda_library, request.device, &prepared->device).while_doing(what));
  }
  prepared->bytes = descriptor.encode();
  if (prepared->bytes.size() + name.size() > kMaxFrameBytes / 2)
    return invalid(what + ": the group has too many tensors");
  *out = std::move(prepared);
  return {};
}

// A message meets its other end in their pair. A receive from any rank waits in the set until it is given a sender.
void Submitter::address(const hvd_request& request, Prepared* prepared) {
  Descriptor& descriptor = prepared->descriptor;
  if (request.root_rank < 0) {
    calls_.open_pairs(*prepared->set);
    descriptor.root_rank = request.tag;
    prepared->name = name_of_receive(map_.rank, request.tag);
    return;
  }
  const bool sends = request.kind == HVD_SEND;
  const Message message{sends ? map_.rank : request.root_rank, sends ? request.root_rank : map_.rank,
                        prepared->set->number, request.tag};
  prepared->set = calls_.pair_with(request.root_rank);
  prepared->name = name_of_message(message);
  descriptor.kind = HVD_SEND;
  descriptor.process_set = prepared->set->number;
  descriptor.root_rank = message.from;
}

Status Submitter::find_set_for_use(int32_t number, const std::string& what, std::shared_ptr<ProcessSet>* out) {
  HVD_RETURN_IF_ERROR(calls_.find_set(number, out).while_doing(what));
  const std::vector<int>& ranks = (*out)->ranks;
  if ((*out)->member >= 0) return {};
  return invalid(what + ": this rank is not in process set " + std::to_string((*out)->number) +
                 ", which has the ranks " + describe_shape({ranks.begin(), ranks.end()}));
}

// Null for a request of tensors in host memory.
static Status take_moment(const Prepared& prepared, cuda::Stream stream, std::unique_ptr<OnDevice>* out) {
  if (prepared.device == nullptr) return {};
  *out = std::make_unique<OnDevice>();
  (*out)->stream = stream;
  return prepared.device->record(stream, &(*out)->ready);
}

// A GPU that has failed for a caller has done so for the operations of other ranks as well.
Status Submitter::checked_for_all(Status status, const std::string& name) {
  if (status.ok()) return status;
  ending_.poison(of_rank(map_.rank, std::move(status)).while_doing(quote_name(name)));
  ending_.remember(ending_.cause());
  return ending_.cause();
}

Status Submitter::submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
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
  if (submission->sync) turn.emplace(wakeup_);
  Member::Announcement announcement;
  *handle = handles_.add(submission);  // before it can be done: its callback may want it
  if (const Status refused = calls_.enter(submission, &announcement); !refused.ok()) {
    handles_.release(*handle);
    return refused;
  }
  const bool drives = turn.has_value() && turn->drives();
  calls_.announce(announcement, drives);
  if (drives) turn->drive_for_a_moment(submission->has_left());
  return {};
}

Status Submitter::refuse(const char* name, int32_t process_set, const std::string& why) {
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
  HVD_RETURN_IF_ERROR(calls_.enter_refusal(submission, *set, given, &announcement));
  calls_.announce(announcement);
  return {};
}

Status Submitter::join(hvd_handle* handle) {
  auto submission = std::make_shared<Submission>();
  auto prepared = std::make_shared<Prepared>();
  prepared->name = "join";
  submission->name = std::make_shared<const std::string>(prepared->name);
  submission->prepared = std::move(prepared);
  submission->sync = true;
  Member::Announcement announcement;
  HVD_RETURN_IF_ERROR(calls_.enter_join(submission, &announcement));
  *handle = handles_.add(std::move(submission));
  calls_.announce(announcement);
  return {};
}

Status Submitter::add_process_set(const int32_t* ranks, uint32_t nranks, hvd_handle* handle) {
  Descriptor descriptor;
  descriptor.kind = HVD_ADD_PROCESS_SET;
  if (nranks > 0) descriptor.ranks.assign(ranks, ranks + nranks);
  const std::string words = describe_shape({descriptor.ranks.begin(), descriptor.ranks.end()});
  const auto refused = [&](const std::string& why) -> Status {
    return {HVD_INVALID_ARGUMENT, "rank " + std::to_string(map_.rank) + ", process set " + words + ": " + why};
  };
  if (nranks == 0) return refused("expected at least one rank");
  for (size_t i = 0; i < descriptor.ranks.size(); ++i) {
    const int rank = descriptor.ranks[i];
    if (rank < 0 || rank >= map_.world_size()) {
      return refused("expected ranks from 0 to " + std::to_string(map_.world_size() - 1));
    }
    if (i > 0 && rank <= descriptor.ranks[i - 1]) return refused("expected each rank once, in ascending order");
  }
  if (const std::optional<int32_t> number = calls_.number_of(descriptor.ranks); number.has_value()) {
    return refused("process set " + std::to_string(*number) + " has these ranks already");
  }
  return submit_set_change(std::move(descriptor), "add_process_set", handle);
}

Status Submitter::remove_process_set(int32_t process_set, hvd_handle* handle) {
  Descriptor descriptor;
  descriptor.kind = HVD_REMOVE_PROCESS_SET;
  descriptor.root_rank = process_set;
  if (process_set == 0 || !calls_.has_set(process_set)) {
    return {HVD_INVALID_ARGUMENT, "rank " + std::to_string(map_.rank) + ": there is no process set " +
                                      std::to_string(process_set) + " to be removed"};
  }
  return submit_set_change(std::move(descriptor), "remove_process_set", handle);
}

Status Submitter::submit_set_change(Descriptor descriptor, const char* name, hvd_handle* handle) {
  auto prepared = std::make_shared<Prepared>();
  prepared->name = name;
  prepared->descriptor = std::move(descriptor);
  prepared->bytes = prepared->descriptor.encode();
  prepared->set = world_;
  return submit(std::move(prepared), nullptr, nullptr, HVD_SYNC, handle);
}

Status Submitter::place_in_set(int32_t process_set, int32_t* members, int32_t* member) {
  std::shared_ptr<ProcessSet> set;
  HVD_RETURN_IF_ERROR(calls_.find_set(process_set, &set));
  *members = set->size();
  *member = set->member;
  return {};
}

}  // namespace hvd
