// SPDX-License-Identifier: Apache-2.0
// The communicator over MPI (step 7), for fabrics that only MPI drives.
//
// MPI reduces sums of float32, float64, int32 and int64, in its own order. Everything else is moved by MPI and folded
// here, with the bits of levels.h: halves, which accumulate in float32 and travel as halves, Min and Max with their
// rules for NaN, exact averages of integers, bool. That an MPI may do some of them does not mean that it does them
// alike.
#include <algorithm>
#include <memory>
#include <utility>

#include "collectives/levels.h"
#include "collectives/slices.h"
#include "communicators/mpi/transfers.h"
#include "communicators/registry.h"
#include "platform/float_state.h"

namespace hvd::mpi {

namespace {

// What is packed or folded at a time: bounds the memory besides the tensors.
constexpr size_t kPieceBytes = size_t{32} << 20;
constexpr int64_t kShareUnit = 64;  // elements

bool reduced_by_mpi(const Reduction& reduction) {
  if (reduction.op != HVD_SUM) return false;
  if (reduction.dtype == HVD_FLOAT32 || reduction.dtype == HVD_FLOAT64) return true;
  return (reduction.dtype == HVD_INT32 || reduction.dtype == HVD_INT64) && reduction.divisor == 1;
}

// What is left of a reduction when the values have been multiplied, or added.
Reduction before(const Reduction& reduction) { return {reduction.dtype, HVD_SUM, reduction.prescale, 1.0, 1}; }
Reduction after(const Reduction& reduction) {
  return {reduction.dtype, HVD_SUM, 1.0, reduction.postscale, reduction.divisor};
}
bool changes(const Reduction& reduction) {
  return reduction.prescale != 1.0 || reduction.postscale != 1.0 || reduction.divisor != 1;
}

// Memory that grows and is not cleared.
class Scratch {
 public:
  std::byte* room(size_t bytes) {
    if (bytes > bytes_) {
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      bytes_ = bytes;
    }
    return data_.get();
  }
  // MPI may still write into it.
  void give_up() { static_cast<void>(data_.release()); }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

class Mpi final : public Communicator {
 public:
  Mpi(const Members& members, const CommunicatorParts& parts, const Library& library, const Kernels& kernels)
      : kernels_(kernels),
        fold_(kernels, members.topology),
        member_(members.member),
        size_(members.size()),
        transfers_(library, parts.interrupt) {}
  ~Mpi() override {
    if (!transfers_.abandoned()) return;
    packed_.give_up();
    gathered_.give_up();
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  Status start(const Members& members) { return transfers_.open(members.ranks); }

  const char* name() const override { return "mpi"; }
  int member() const override { return member_; }
  int size() const override { return size_; }

  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    const SliceList list(slices, element_size(reduction.dtype));
    const FloatState state;
    if (!reduced_by_mpi(reduction)) return in_pieces(list, [&](Share piece) { return fold(list, piece, reduction); });
    if (slices.size() != 1 || reduction.prescale != 1.0) {
      return in_pieces(list, [&](Share piece) { return sum(list, piece, reduction); });
    }
    const Slice& tensor = slices.front();
    HVD_RETURN_IF_ERROR(transfers_.sum("allreduce", tensor.input, tensor.output, tensor.count, reduction.dtype));
    const std::byte* const result = tensor.output;
    if (changes(after(reduction))) kernels_.fold(after(reduction), {&result, 1}, tensor.count, {tensor.output});
    return {};
  }

  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override {
    const SliceList list(slices, element_bytes);
    if (slices.size() == 1) {
      const Slice& tensor = slices.front();
      if (member_ == root_member) kernels_.copy(tensor.output, tensor.input, list.bytes(), false);
      return transfers_.broadcast(tensor.output, list.bytes(), root_member);
    }
    return in_pieces(list, [&](Share piece) -> Status {
      std::byte* const packed = packed_.room(static_cast<size_t>(piece.count) * element_bytes);
      if (member_ == root_member) pack(list, piece, packed);
      HVD_RETURN_IF_ERROR(transfers_.broadcast(packed, static_cast<size_t>(piece.count) * element_bytes, root_member));
      unpack(list, piece, packed);
      return {};
    });
  }

  Status exchange(const void* mine, size_t bytes, void* all) override {
    const std::vector<int64_t> equal(static_cast<size_t>(size_), static_cast<int64_t>(bytes));
    return allgather(mine, equal, all);
  }

  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override {
    auto* const parts = static_cast<std::byte*>(all);
    int64_t place = 0;
    for (int m = 0; m < member_; ++m) place += bytes_of_member[static_cast<size_t>(m)];
    kernels_.copy(parts + place, static_cast<const std::byte*>(mine),
                  static_cast<size_t>(bytes_of_member[static_cast<size_t>(member_)]), false);
    return transfers_.allgather("allgather", parts, bytes_of_member, member_);
  }

  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    const size_t element_bytes = element_size(reduction.dtype);
    const FloatState state;
    std::vector<SliceList> lists;
    int64_t longest = 0;
    for (const std::vector<Slice>& part : parts) {
      lists.emplace_back(part, element_bytes);
      longest = std::max(longest, lists.back().count());
    }
    const int64_t each = std::max<int64_t>(kShareUnit, static_cast<int64_t>(kPieceBytes / element_bytes) / size_);
    for (int64_t begin = 0; begin < longest; begin += each) {
      HVD_RETURN_IF_ERROR(scatter(lists, begin, each, reduction));
    }
    return {};
  }

  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    const auto members = static_cast<size_t>(size_), self = static_cast<size_t>(member_);
    const auto* to = static_cast<const std::byte*>(mine);
    auto* from = static_cast<std::byte*>(all);
    for (size_t m = 0; m < members; ++m) {
      const auto sent = static_cast<size_t>(bytes[self * members + m]);
      const auto received = static_cast<size_t>(bytes[m * members + self]);
      if (m == self) {
        copy_own(mine, bytes, from, received);
      } else {
        HVD_RETURN_IF_ERROR(transfers_.receive(static_cast<int>(m), from, received));
        HVD_RETURN_IF_ERROR(transfers_.send(static_cast<int>(m), to, sent));
      }
      to += sent;
      from += received;
    }
    return transfers_.drain("alltoall");
  }

  Status barrier() override { return transfers_.barrier(); }

  std::string describe() const override {
    return R"("transport": "mpi", "mpi": ")" + transfers_.mpi().version + R"(", "isa": ")" +
           instruction_set_name(kernels_.instruction_set()) + "\"";
  }

 private:
  template <class Run>
  Status in_pieces(const SliceList& list, Run run) {
    const auto each = static_cast<int64_t>(kPieceBytes / list.element_bytes());
    for (int64_t begin = 0; begin < list.count(); begin += each) {
      HVD_RETURN_IF_ERROR(run(Share{begin, std::min(each, list.count() - begin)}));
    }
    return {};
  }

  void pack(const SliceList& list, Share piece, std::byte* packed) {
    list.for_range(piece.begin, piece.count, [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
      kernels_.copy(packed + offset, input, static_cast<size_t>(count) * list.element_bytes(), false);
    });
  }
  void unpack(const SliceList& list, Share piece, const std::byte* packed) {
    list.for_range(piece.begin, piece.count, [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
      kernels_.copy(output, packed + offset, static_cast<size_t>(count) * list.element_bytes(), false);
    });
  }

  // MPI adds.
  Status sum(const SliceList& list, Share piece, const Reduction& reduction) {
    std::byte* const packed = packed_.room(static_cast<size_t>(piece.count) * list.element_bytes());
    list.for_range(piece.begin, piece.count, [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
      kernels_.fold(before(reduction), {&input, 1}, count, {packed + offset});
    });
    HVD_RETURN_IF_ERROR(transfers_.sum("allreduce", packed, packed, piece.count, reduction.dtype));
    list.for_range(piece.begin, piece.count, [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
      const std::byte* const result = packed + offset;
      kernels_.fold(after(reduction), {&result, 1}, count, {output});
    });
    return {};
  }

  // Everybody folds a share, and gives it to all.
  Status fold(const SliceList& list, Share piece, const Reduction& reduction) {
    const size_t element_bytes = list.element_bytes();
    std::byte* const packed = packed_.room(static_cast<size_t>(piece.count) * element_bytes);
    pack(list, piece, packed);
    const auto share = [&](int m) { return share_of(piece.count, size_, m, kShareUnit); };
    const auto place = [&](int m) { return packed + static_cast<size_t>(share(m).begin) * element_bytes; };
    const auto bytes = [&](int m) { return static_cast<size_t>(share(m).count) * element_bytes; };
    std::byte* const others = gathered_.room(bytes(0) * static_cast<size_t>(size_));
    HVD_RETURN_IF_ERROR(exchange_parts("allreduce", others, bytes(0), bytes(member_),
                                       [&](int m) { return std::pair(place(m), bytes(m)); }));
    fold_parts(reduction, others, bytes(0), place(member_), share(member_).count, place(member_));
    std::vector<int64_t> lengths;
    for (int m = 0; m < size_; ++m) lengths.push_back(static_cast<int64_t>(bytes(m)));
    HVD_RETURN_IF_ERROR(transfers_.allgather("allreduce", packed, lengths, member_));
    unpack(list, piece, packed);
    return {};
  }

  // Elements [begin, begin + each) of each part.
  Status scatter(std::span<const SliceList> parts, int64_t begin, int64_t each, const Reduction& reduction) {
    const size_t element_bytes = element_size(reduction.dtype), stride = static_cast<size_t>(each) * element_bytes;
    std::byte* const packed = packed_.room(stride * static_cast<size_t>(size_));
    const auto share = [&](int m) {
      return Share{begin, std::clamp<int64_t>(parts[static_cast<size_t>(m)].count() - begin, 0, each)};
    };
    for (int m = 0; m < size_; ++m) pack(parts[static_cast<size_t>(m)], share(m), packed + stride * m);
    const int64_t mine = share(member_).count;
    std::byte* const others = gathered_.room(stride * static_cast<size_t>(size_));
    HVD_RETURN_IF_ERROR(exchange_parts(
        "reducescatter", others, stride, static_cast<size_t>(mine) * element_bytes,
        [&](int m) { return std::pair(packed + stride * m, static_cast<size_t>(share(m).count) * element_bytes); }));
    std::byte* const own = packed + stride * member_;
    fold_parts(reduction, others, stride, own, mine, own);
    unpack(parts[static_cast<size_t>(member_)], share(member_), own);
    return {};
  }

  // part(m): what goes to member m. Theirs come into `others`, `stride` bytes apart, `bytes` each.
  template <class Part>
  Status exchange_parts(const char* operation, std::byte* others, size_t stride, size_t bytes, Part part) {
    for (int step = 1; step < size_; ++step) {
      const int to = (member_ + step) % size_, from = (member_ + size_ - step) % size_;
      const auto [data, length] = part(to);
      HVD_RETURN_IF_ERROR(transfers_.receive(from, others + stride * static_cast<size_t>(from), bytes));
      HVD_RETURN_IF_ERROR(transfers_.send(to, data, length));
    }
    return transfers_.drain(operation);
  }

  void fold_parts(const Reduction& reduction, const std::byte* others, size_t stride, const std::byte* own,
                  int64_t count, std::byte* output) {
    sources_.clear();
    for (int m = 0; m < size_; ++m) sources_.push_back(m == member_ ? own : others + stride * static_cast<size_t>(m));
    if (count > 0) fold_(reduction, sources_, count, output);
  }

  void copy_own(const void* mine, std::span<const int64_t> bytes, std::byte* to, size_t length) {
    const auto members = static_cast<size_t>(size_), self = static_cast<size_t>(member_);
    const auto* from = static_cast<const std::byte*>(mine);
    for (size_t m = 0; m < self; ++m) from += bytes[self * members + m];
    kernels_.copy(to, from, length, false);
  }

  const Kernels kernels_;
  MemberFold fold_;
  const int member_, size_;
  Transfers transfers_;
  Scratch packed_, gathered_;
  std::vector<const std::byte*> sources_;
};

std::string why_unfit(const Topology& members) { return members.size() > 1 ? "" : "it needs two members"; }

Status make(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  const Library* const opened = library();
  if (opened == nullptr) return {HVD_UNAVAILABLE, "MPI has not been opened"};
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  auto made = std::make_unique<Mpi>(members, parts, *opened, kernels);
  HVD_RETURN_IF_ERROR(made->start(members));
  *out = std::move(made);
  return {};
}

}  // namespace

}  // namespace hvd::mpi

namespace hvd {

extern const CommunicatorRow kMpiRow;
const CommunicatorRow kMpiRow = {"mpi",          "MPI",           "MPI_",   mpi::why_unavailable,
                                 mpi::why_unfit, no_shared_bytes, no_links, mpi::make};

}  // namespace hvd
