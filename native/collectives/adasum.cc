// SPDX-License-Identifier: Apache-2.0
// Adasum (step 7); the algorithm stands in adasum.h.
#include "collectives/adasum.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "collectives/slices.h"
#include "platform/float_state.h"
#include "platform/kept_memory.h"

namespace hvd {

namespace {

constexpr int64_t kShareUnit = 64;                                          // elements
constexpr size_t kProductsAtOnce = (size_t{64} << 10) / sizeof(double[3]);  // what one exchange carries of a member

using Bytes = ExchangedBytes;

struct Products {
  double aa = 0, ab = 0, bb = 0;
};

// Four sums in a fixed order, so that every machine runs them side by side.
template <class Real>
Products multiply(const Real* a, const Real* b, int64_t count) {
  constexpr int kSums = 4;
  double aa[kSums] = {}, ab[kSums] = {}, bb[kSums] = {};
  const auto add = [&](int64_t i, int sum) {
    const double x = a[i], y = b[i];
    aa[sum] += x * x;
    ab[sum] += x * y;
    bb[sum] += y * y;
  };
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (int sum = 0; sum < kSums; ++sum) add(i + sum, sum);
  }
  for (; i < count; ++i) add(i, 0);
  return {aa[0] + aa[1] + aa[2] + aa[3], ab[0] + ab[1] + ab[2] + ab[3], bb[0] + bb[1] + bb[2] + bb[3]};
}

// How much of a vector with this norm stays.
double factor(double norm, double product) { return norm == 0 ? 1 : 1 - product / (2 * norm); }

// `Real`: what the dtype is accumulated in.
template <class Real>
class Combination {
 public:
  Combination(Communicator& communicator, const Kernels& kernels, std::span<const Slice> tensors,
              const Reduction& reduction)
      : communicator_(communicator),
        kernels_(kernels),
        tensors_(tensors),
        reduction_(reduction),
        members_(communicator.size()),
        element_bytes_(static_cast<int64_t>(element_size(reduction.dtype))),
        shares_(static_cast<size_t>(members_), 0) {
    for (const Slice& tensor : tensors_) {
      for (int m = 0; m < members_; ++m) shares_[static_cast<size_t>(m)] += share(tensor, m).count;
    }
    for (const int64_t elements : shares_) count_ += elements;
    own_ = shares_[static_cast<size_t>(communicator.member())];
  }

  Status run() {
    HVD_RETURN_IF_ERROR(collect());
    for (int distance = 1; distance < members_; distance *= 2) HVD_RETURN_IF_ERROR(combine(distance));
    return deliver();
  }

 private:
  Share share(const Slice& tensor, int member) const { return share_of(tensor.count, members_, member, kShareUnit); }
  Real* vector_of(int member) const { return reinterpret_cast<Real*>(vectors_.get()) + member * own_; }

  // Collects this member's share of all members' tensors, as vectors of Real.
  Status collect() {
    const auto size = static_cast<size_t>(members_);
    const Bytes packed = exchanged_bytes(static_cast<size_t>(count_ * element_bytes_));
    std::byte* to = packed.get();
    for (int m = 0; m < members_; ++m) {
      for (const Slice& tensor : tensors_) {
        const Share part = share(tensor, m);
        const size_t bytes = static_cast<size_t>(part.count * element_bytes_);
        kernels_.copy(to, tensor.input + part.begin * element_bytes_, bytes, false);
        to += bytes;
      }
    }
    std::vector<int64_t> matrix;
    for (size_t source = 0; source < size; ++source) {
      for (const int64_t elements : shares_) matrix.push_back(elements * element_bytes_);
    }
    const size_t elements = size * static_cast<size_t>(own_);
    Bytes received = exchanged_bytes(elements * static_cast<size_t>(element_bytes_));
    HVD_RETURN_IF_ERROR(communicator_.alltoall(packed.get(), matrix, received.get()));
    if (element_bytes_ == sizeof(Real)) {
      vectors_ = std::move(received);
    } else {
      vectors_ = exchanged_bytes(elements * sizeof(Real));
      kernels_.widen(reduction_.dtype, received.get(), static_cast<int64_t>(elements),
                     reinterpret_cast<float*>(vectors_.get()));
    }
    scale(static_cast<Real>(reduction_.prescale), static_cast<int64_t>(elements));
    return {};
  }

  void scale(Real by, int64_t count) {
    if (by == 1) return;
    for (int64_t i = 0; i < count; ++i) vector_of(0)[i] *= by;
  }

  // Of each pair at this distance the first one's vector becomes both's.
  Status combine(int distance) {
    Exchanged<Products> parts;
    for_pairs(distance, [&](Real* a, Real* b, int64_t count) { parts.push_back(multiply(a, b, count)); });
    std::vector<Products> whole(parts.size());
    for (size_t start = 0; start < parts.size(); start += kProductsAtOnce) {
      const size_t length = std::min(kProductsAtOnce, parts.size() - start);
      Exchanged<Products> all(length * static_cast<size_t>(members_));
      HVD_RETURN_IF_ERROR(communicator_.exchange(parts.data() + start, length * sizeof(Products), all.data()));
      for (size_t i = 0; i < all.size(); ++i) {
        Products& sum = whole[start + i % length];
        sum.aa += all[i].aa;
        sum.ab += all[i].ab;
        sum.bb += all[i].bb;
      }
    }
    size_t next = 0;
    for_pairs(distance, [&](Real* a, Real* b, int64_t count) {
      const Products& of = whole[next++];
      const double of_a = factor(of.aa, of.ab), of_b = factor(of.bb, of.ab);
      for (int64_t i = 0; i < count; ++i) a[i] = static_cast<Real>(a[i] * of_a + b[i] * of_b);
    });
    return {};
  }

  // Visits each tensor of each pair, also where this member's share of it is empty.
  template <class Visit>
  void for_pairs(int distance, Visit visit) {
    for (int first = 0; first < members_; first += 2 * distance) {
      Real* a = vector_of(first);
      Real* b = vector_of(first + distance);
      for (const Slice& tensor : tensors_) {
        const int64_t count = share(tensor, communicator_.member()).count;
        visit(a, b, count);
        a += count;
        b += count;
      }
    }
  }

  Status deliver() {
    scale(static_cast<Real>(reduction_.postscale), own_);
    if (element_bytes_ != sizeof(Real)) {  // to the front of the same memory, behind what is read
      kernels_.narrow(reduction_.dtype, reinterpret_cast<const float*>(vectors_.get()), own_, vectors_.get());
    }
    std::vector<int64_t> bytes_of_member;
    for (const int64_t elements : shares_) bytes_of_member.push_back(elements * element_bytes_);
    const Bytes result = exchanged_bytes(static_cast<size_t>(count_ * element_bytes_));
    HVD_RETURN_IF_ERROR(communicator_.allgather(vectors_.get(), bytes_of_member, result.get()));
    const std::byte* from = result.get();
    for (int m = 0; m < members_; ++m) {
      for (const Slice& tensor : tensors_) {
        const Share part = share(tensor, m);
        const size_t bytes = static_cast<size_t>(part.count * element_bytes_);
        kernels_.copy(tensor.output + part.begin * element_bytes_, from, bytes, false);
        from += bytes;
      }
    }
    return {};
  }

  Communicator& communicator_;
  const Kernels& kernels_;
  const std::span<const Slice> tensors_;
  const Reduction& reduction_;
  const int members_;
  const int64_t element_bytes_;
  std::vector<int64_t> shares_;  // by member: elements of all tensors together
  int64_t count_ = 0, own_ = 0;
  Bytes vectors_;  // by member: its values of this member's share
};

}  // namespace

Status adasum(Communicator& communicator, const Kernels& kernels, std::span<const Slice> tensors,
              const Reduction& reduction) {
  const FloatState state;
  if (reduction.dtype == HVD_FLOAT64) return Combination<double>(communicator, kernels, tensors, reduction).run();
  return Combination<float>(communicator, kernels, tensors, reduction).run();
}

}  // namespace hvd
