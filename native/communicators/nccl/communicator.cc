// SPDX-License-Identifier: Apache-2.0
// NCCL's communicator among the members of a process set, one GPU each (step 7), and its row. NCCL chooses the order of
// additions, so the last bits differ from the CPU's; they are equal on all members.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "communicators/device_communicator.h"
#include "communicators/nccl/library.h"
#include "communicators/nccl/meeting.h"
#include "platform/clock.h"

namespace hvd::nccl {

namespace {

bool has_type(DataType dtype) { return dtype != HVD_INT16 && dtype != HVD_UINT16 && dtype != HVD_BOOL; }

Type type_of(DataType dtype) {
  switch (dtype) {
    case HVD_INT8:
      return kInt8;
    case HVD_INT32:
      return kInt32;
    case HVD_INT64:
      return kInt64;
    case HVD_UINT32:
      return kUint32;
    case HVD_UINT64:
      return kUint64;
    case HVD_FLOAT16:
      return kFloat16;
    case HVD_BFLOAT16:
      return kBfloat16;
    case HVD_FLOAT32:
      return kFloat32;
    case HVD_FLOAT64:
      return kFloat64;
    default:
      return kUint8;  // a bool's Min and Max, too
  }
}

Op op_of(ReduceOp op) {
  switch (op) {
    case HVD_PRODUCT:
      return kProduct;
    case HVD_MIN:
      return kMin;
    case HVD_MAX:
      return kMax;
    case HVD_AVERAGE:
    case HVD_SUM:
    case HVD_ADASUM:
    case HVD_BITAND:
    case HVD_BITOR:
    case HVD_BITXOR:
      return kSum;  // can_reduce() refuses bits
  }
  return kSum;  // no operation has another number
}

bool is_half(DataType dtype) { return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16; }

bool is_power_of_two(double factor) {
  int exponent = 0;
  return std::frexp(std::fabs(factor), &exponent) == 0.5;
}

// A factor as NCCL reads it: in the tensor's own type.
struct Scalar {
  Scalar(DataType dtype, double factor) {
    const auto single = static_cast<float>(factor);
    if (dtype == HVD_FLOAT64) std::memcpy(bytes, &factor, sizeof factor);
    if (dtype == HVD_FLOAT32) std::memcpy(bytes, &single, sizeof single);
    if (dtype == HVD_BFLOAT16) {
      const auto upper = static_cast<uint16_t>(std::bit_cast<uint32_t>(single) >> 16);
      std::memcpy(bytes, &upper, sizeof upper);
    }
    if (dtype == HVD_FLOAT16) {  // a power of two: no mantissa
      const uint32_t bits = std::bit_cast<uint32_t>(single);
      const auto exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
      const auto half = static_cast<uint16_t>((bits >> 16 & 0x8000) | static_cast<uint32_t>(exponent) << 10);
      std::memcpy(bytes, &half, sizeof half);
    }
  }
  alignas(8) std::byte bytes[8] = {};
};

// True if a half holds the factor exactly.
bool half_holds(DataType dtype, double factor) {
  if (!is_power_of_two(factor)) return false;
  const int exponent = std::ilogb(factor);
  return dtype == HVD_FLOAT16 ? exponent >= -14 && exponent <= 15 : exponent >= -126 && exponent <= 127;
}

// How a reduction is done: inputs times `before`, NCCL's operation with `inside`, results times `after`.
struct Factors {
  double before = 1, inside = 1, after = 1;
};
Factors factors_of(const Reduction& reduction) {
  if (reduction.op != HVD_SUM) return {reduction.prescale, 1, reduction.postscale};
  const double all = reduction.prescale * reduction.postscale / static_cast<double>(reduction.divisor);
  if (is_half(reduction.dtype) && !half_holds(reduction.dtype, all)) return {all, 1, 1};
  return {1, all, 1};
}

Group group_of(const Communicator& host, const std::vector<int>& groups) {
  const auto me = static_cast<size_t>(host.member());
  if (groups.empty()) return {host.member(), host.size(), 0};
  Group mine;
  for (size_t m = groups.size(); m-- > 0;) {
    if (groups[m] != groups[me]) continue;
    mine.first = m;
    ++mine.size;
    if (m < me) ++mine.member;
  }
  return mine;
}

class Joined final : public DeviceCommunicator {
 public:
  Joined(Communicator& host, const DeviceParts& parts, std::shared_ptr<const Library> library, const Group& group,
         Comm comm)
      : host_(host),
        group_(group),
        library_(std::move(library)),
        call_(library_->call()),
        device_(*parts.device),
        stream_(parts.stream),
        inside_(parts.inside),
        in_aborts_(parts.in_aborts),
        comm_(comm) {}
  ~Joined() override { close(); }

  const char* name() const override { return "nccl"; }
  int member() const override { return group_.member; }
  int size() const override { return group_.size; }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override;
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override;
  Status exchange(const void* mine, size_t bytes, void* all) override { return host_.exchange(mine, bytes, all); }
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override;
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override;
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override;
  Status barrier() override { return host_.barrier(); }
  std::string describe() const override { return "\"nccl\": \"" + version_in_words(library_->version()) + "\""; }
  Status health() const override;
  void abort() override;
  void close() override;

 private:
  enum class End { kNone, kClosed, kAborted };
  bool begin(End how) {  // false: it has begun before
    End none = End::kNone;
    return end_.compare_exchange_strong(none, how);
  }
  Status checked(Result code, const char* doing) const {
    return library_->checked(code, doing, end_.load() == End::kNone ? comm_ : nullptr);
  }
  // All calls that `enqueue` makes, as one.
  Status grouped(const std::function<Status()>& enqueue);
  Status scale(const std::vector<Slice>& slices, DataType dtype, double factor, bool from_inputs);
  Status with_op(const Reduction& reduction, const std::function<Status(Op)>& enqueue);

  Communicator& host_;  // of all groups
  const Group group_;
  const std::shared_ptr<const Library> library_;
  const Functions& call_;
  cuda::Device& device_;
  const cuda::Stream stream_;
  const std::shared_ptr<Inside> inside_, in_aborts_;
  const Comm comm_;
  std::atomic<End> end_{End::kNone};
};

Status Joined::health() const {
  if (end_.load() == End::kAborted) return {HVD_ABORTED, "NCCL's work was aborted"};
  if (end_.load() == End::kClosed) return {};
  Result error = kSuccess;
  HVD_RETURN_IF_ERROR(checked(call_.async_error(comm_, &error), "ncclCommGetAsyncError"));
  return checked(error, "an operation of NCCL");
}

void Joined::abort() {
  if (!begin(End::kAborted)) return;
  const Inside::Scope inside(*in_aborts_);
  const cuda::Current current(device_.driver(), device_.context());
  (void)call_.abort(comm_);  // the generation has its cause already
}

void Joined::close() {
  if (!begin(End::kClosed)) return;
  const Inside::Scope inside(*inside_);
  const cuda::Current current(device_.driver(), device_.context());
  const bool is_idle = current.status().ok() && call_.finalize(comm_) == kSuccess;
  (void)(is_idle ? call_.destroy(comm_) : call_.abort(comm_));  // the caller cannot act on an error any more
}

Status Joined::grouped(const std::function<Status()>& enqueue) {
  const Inside::Scope inside(*inside_);
  const cuda::Current current(device_.driver(), device_.context());
  HVD_RETURN_IF_ERROR(current.status());
  HVD_RETURN_IF_ERROR(checked(call_.begin_group(), "ncclGroupStart"));
  const Status enqueued = enqueue();
  const Status ended = checked(call_.end_group(), "ncclGroupEnd");
  return enqueued.ok() ? ended : enqueued;
}

Status Joined::scale(const std::vector<Slice>& slices, DataType dtype, double factor, bool from_inputs) {
  if (factor == 1) return {};
  std::vector<cuda::Piece> pieces;
  for (const Slice& slice : slices) {
    if (slice.output == nullptr) continue;
    pieces.push_back({from_inputs ? slice.input : slice.output, slice.output, static_cast<uint64_t>(slice.count)});
  }
  return device_.scale_pieces(pieces, dtype, factor, stream_);
}

// A group must not end before its operation does: enqueue() holds it.
Status Joined::with_op(const Reduction& reduction, const std::function<Status(Op)>& enqueue) {
  const double factor = factors_of(reduction).inside;
  if (factor == 1) return enqueue(op_of(reduction.op));
  Scalar scalar(reduction.dtype, factor);
  Op op = 0;
  HVD_RETURN_IF_ERROR(checked(call_.make_scaled_sum(&op, scalar.bytes, type_of(reduction.dtype), kHostScalar, comm_),
                              "ncclRedOpCreatePreMulSum"));
  const Status enqueued = enqueue(op);
  if (end_.load() != End::kNone) return enqueued.ok() ? health() : enqueued;  // another thread did: `comm_` may be gone
  const Status freed = checked(call_.free_op(op, comm_), "ncclRedOpDestroy");
  return enqueued.ok() ? freed : enqueued;
}

Status Joined::allreduce(std::span<const Slice> slices, const Reduction& reduction) {
  const Factors factors = factors_of(reduction);
  std::vector<Slice> mine(slices.begin(), slices.end());
  HVD_RETURN_IF_ERROR(scale(mine, reduction.dtype, factors.before, true));
  if (factors.before != 1) {
    for (Slice& slice : mine) slice.input = slice.output;
  }
  HVD_RETURN_IF_ERROR(with_op(reduction, [&](Op op) {
    return grouped([&]() -> Status {
      for (const Slice& slice : mine) {
        HVD_RETURN_IF_ERROR(checked(call_.allreduce(slice.input, slice.output, static_cast<size_t>(slice.count),
                                                    type_of(reduction.dtype), op, comm_, stream_),
                                    "ncclAllReduce"));
      }
      return {};
    });
  }));
  return scale(mine, reduction.dtype, factors.after, false);
}

Status Joined::broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) {
  return grouped([&]() -> Status {
    for (const Slice& slice : slices) {
      const size_t bytes = static_cast<size_t>(slice.count) * element_bytes;
      HVD_RETURN_IF_ERROR(checked(
          call_.broadcast(slice.input, slice.output, bytes, kUint8, root_member, comm_, stream_), "ncclBroadcast"));
    }
    return {};
  });
}

Status Joined::allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) {
  bool even = true;
  for (const int64_t bytes : bytes_of_member) even = even && bytes == bytes_of_member[0];
  return grouped([&]() -> Status {
    if (even) {
      return checked(call_.all_gather(mine, all, static_cast<size_t>(bytes_of_member[0]), kUint8, comm_, stream_),
                     "ncclAllGather");
    }
    auto* at = static_cast<std::byte*>(all);
    for (int m = 0; m < size(); ++m) {
      const auto bytes = static_cast<size_t>(bytes_of_member[static_cast<size_t>(m)]);
      if (bytes == 0) continue;
      HVD_RETURN_IF_ERROR(
          checked(call_.broadcast(m == member() ? mine : at, at, bytes, kUint8, m, comm_, stream_), "ncclBroadcast"));
      at += bytes;
    }
    return {};
  });
}

Status Joined::reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) {
  const Factors factors = factors_of(reduction);
  HVD_RETURN_IF_ERROR(with_op(reduction, [&](Op op) {
    return grouped([&]() -> Status {
      for (int m = 0; m < size(); ++m) {
        for (const Slice& slice : parts[static_cast<size_t>(m)]) {
          // Every member's part by itself: rows need not come out even.
          HVD_RETURN_IF_ERROR(checked(call_.reduce(slice.input, slice.output, static_cast<size_t>(slice.count),
                                                   type_of(reduction.dtype), op, m, comm_, stream_),
                                      "ncclReduce"));
        }
      }
      return {};
    });
  }));
  return scale(parts[static_cast<size_t>(member())], reduction.dtype, factors.before * factors.after, false);
}

Status Joined::alltoall(const void* mine, std::span<const int64_t> bytes, void* all) {
  const auto members = static_cast<size_t>(size());
  const auto me = static_cast<size_t>(member());
  const auto* from = static_cast<const std::byte*>(mine);
  auto* to = static_cast<std::byte*>(all);
  return grouped([&]() -> Status {
    for (size_t peer = 0; peer < members; ++peer) {
      const auto sent = static_cast<size_t>(bytes[me * members + peer]);
      const auto received = static_cast<size_t>(bytes[peer * members + me]);
      const auto number = static_cast<int>(peer);
      if (sent > 0) HVD_RETURN_IF_ERROR(checked(call_.send(from, sent, kUint8, number, comm_, stream_), "ncclSend"));
      if (received > 0) {
        HVD_RETURN_IF_ERROR(checked(call_.receive(to, received, kUint8, number, comm_, stream_), "ncclRecv"));
      }
      from += sent;
      to += received;
    }
    return {};
  });
}

// The facts that members exchange before they join.
struct Card {
  int32_t version = 0;  // 0: it has no NCCL
  int32_t has_gpu = 0;
  char gpu[16] = {};  // its UUID
  char why[256] = {};
};

std::string rank_in_words(const std::vector<int>& ranks, size_t member) {
  return "rank " + std::to_string(ranks[member]);
}

// The same answer on all members: HVD_UNAVAILABLE if one of them could not meet the others. It is a barrier, too: a
// rank that still allocates on its GPU could wait for a peer's kernel that waits for it.
Status agree(Communicator& host, const std::vector<int>& ranks, const Status& mine) {
  enum : int32_t { kGood, kWaitedInVain, kFailed };
  struct Outcome {
    int32_t how;
    char why[512];
  } own{mine.ok() ? kGood : mine.code() == HVD_UNAVAILABLE ? kWaitedInVain : kFailed, {}};
  mine.text().copy(own.why, sizeof own.why - 1);
  std::vector<Outcome> all(static_cast<size_t>(host.size()));
  HVD_RETURN_IF_ERROR(host.exchange(&own, sizeof own, all.data()));
  for (const int32_t how : {kFailed, kWaitedInVain}) {  // who waited did so for the one that failed
    for (size_t m = 0; m < all.size(); ++m) {
      if (all[m].how != how) continue;
      return {HVD_UNAVAILABLE, rank_in_words(ranks, m) + ": " + all[m].why};
    }
  }
  return {};
}

// The same answer on all members.
Status compare(const std::vector<Card>& cards, const std::vector<int>& ranks) {
  constexpr int kSharesGpus = 23000;
  for (size_t m = 0; m < cards.size(); ++m) {
    if (cards[m].has_gpu == 0) return {HVD_JOINED, rank_in_words(ranks, m) + " has used no GPU yet"};
  }
  for (size_t m = 0; m < cards.size(); ++m) {
    if (cards[m].version == 0) return {HVD_UNAVAILABLE, rank_in_words(ranks, m) + " has no NCCL: " + cards[m].why};
    if (cards[m].version != cards[0].version) {
      return {HVD_UNAVAILABLE,
              rank_in_words(ranks, 0) + " has NCCL " + version_in_words(cards[0].version) + ", " +
                  rank_in_words(ranks, m) + " has " + version_in_words(cards[m].version) +
                  "\nhint: install the same nvidia-nccl everywhere, or name one by HOROVOD_NCCL_LIBRARY"};
    }
    for (size_t other = 0; other < m && cards[0].version < kSharesGpus; ++other) {
      if (std::memcmp(cards[m].gpu, cards[other].gpu, sizeof cards[m].gpu) != 0) continue;
      return {HVD_UNAVAILABLE, rank_in_words(ranks, other) + " and " + rank_in_words(ranks, m) +
                                   " use the same GPU\nhint: give each rank a GPU of its own, by "
                                   "torch.cuda.set_device(hvd.local_rank()) or as `horovodrun --explain gpu` shows"};
    }
  }
  return {};
}

bool can_reduce(const Reduction& reduction, hvd_kind kind) {
  const bool is_scaled = reduction.prescale != 1 || reduction.postscale != 1 || reduction.divisor != 1;
  // Inputs of a reducescatter stay as they are, so nothing can be done to them before.
  if (kind == HVD_REDUCESCATTER && reduction.op != HVD_SUM && reduction.prescale != 1) return false;
  if (reduction.op == HVD_ADASUM || is_bitwise(reduction.op)) return false;
  if (reduction.dtype == HVD_BOOL) return !is_scaled && (reduction.op == HVD_MIN || reduction.op == HVD_MAX);
  return has_type(reduction.dtype) && (is_floating(reduction.dtype) || !is_scaled);
}

Status join(Communicator& host, const DeviceParts& parts, std::shared_ptr<DeviceCommunicator>* out) {
  Card mine;
  std::shared_ptr<const Library> library;
  if (parts.device != nullptr) {
    mine.has_gpu = 1;
    if (const Status opened = Library::open(parts.library, &library); opened.ok()) {
      mine.version = library->version();
      HVD_RETURN_IF_ERROR(parts.device->uuid(mine.gpu));
    } else {
      opened.text().copy(mine.why, sizeof mine.why - 1);
    }
  }
  std::vector<Card> cards(static_cast<size_t>(host.size()));
  HVD_RETURN_IF_ERROR(host.exchange(&mine, sizeof mine, cards.data()));
  HVD_RETURN_IF_ERROR(compare(cards, parts.ranks));
  // Only now: an id costs its maker a thread and a socket, until all have met by it.
  const Group group = group_of(host, parts.groups);
  UniqueId id{};
  Status made;
  if (group.member == 0) {
    made = library->checked(library->call().get_unique_id(&id), "ncclGetUniqueId", nullptr);
  }
  HVD_RETURN_IF_ERROR(agree(host, parts.ranks, made));
  std::vector<UniqueId> ids(cards.size());
  HVD_RETURN_IF_ERROR(host.exchange(&id, sizeof id, ids.data()));
  Comm comm = nullptr;
  const Status met = meet(parts, library, group, ids[group.first], &comm);
  if (met.code() == HVD_ABORTED || met.code() == HVD_DEVICE_LOST) return met;
  std::shared_ptr<DeviceCommunicator> joined;
  if (met.ok()) joined = std::make_shared<Joined>(host, parts, library, group, comm);
  const Status all = agree(host, parts.ranks, met);
  if (!all.ok() && joined != nullptr) abort_all({&joined, 1}, kPatienceToAbortMs);
  if (all.ok()) *out = std::move(joined);
  return all;
}

Status version(const LibraryPlaces& places, int* out) {
  std::shared_ptr<const Library> library;
  HVD_RETURN_IF_ERROR(Library::open(places, &library));
  *out = library->version();
  return {};
}

}  // namespace
}  // namespace hvd::nccl

namespace hvd {

extern const DeviceRow kNcclRow;
const DeviceRow kNcclRow = {HVD_ON_CUDA, nccl::version, nccl::can_reduce, nccl::join};

}  // namespace hvd
