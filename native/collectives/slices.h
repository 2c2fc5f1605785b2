// SPDX-License-Identifier: Apache-2.0
// SliceList: the tensors of a fused batch seen as one long tensor (step 7). Algorithms work on ranges of it; a range is
// gathered from and scattered to the tensors piece by piece, so that no fusion buffer exists besides the transport's
// own.
//
// Borrows the slices; once made, it may be read on any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "reduction/helpers.h"

namespace hvd {

constexpr size_t kCacheLineBytes = 64;

class SliceList {
 public:
  SliceList(std::span<const Slice> slices, size_t element_bytes) : slices_(slices), element_bytes_(element_bytes) {
    ends_.reserve(slices.size());
    for (const Slice& slice : slices) ends_.push_back(count_ += slice.count);
  }

  int64_t count() const { return count_; }
  size_t element_bytes() const { return element_bytes_; }
  size_t bytes() const { return static_cast<size_t>(count_) * element_bytes_; }

  // Calls visit(input, output, offset, count) for each piece of elements [begin, begin + count): `offset` is the
  // piece's place in the range, in bytes; `count` its elements.
  template <class Visit>
  void for_range(int64_t begin, int64_t count, Visit visit) const {
    if (count <= 0) return;
    const int64_t end = begin + count;
    size_t index = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    for (int64_t at = begin; at < end; ++index) {
      const Slice& slice = slices_[index];
      const int64_t slice_begin = ends_[index] - slice.count;
      const int64_t stop = std::min(end, ends_[index]);
      if (stop > at) {
        const size_t skipped = static_cast<size_t>(at - slice_begin) * element_bytes_;
        visit(slice.input + skipped, slice.output == nullptr ? nullptr : slice.output + skipped,
              static_cast<size_t>(at - begin) * element_bytes_, stop - at);
        at = stop;
      }
    }
  }

  // As for_range, but helpers (null: none) take pieces of the range. visit(piece, input, output, offset, count) is
  // called on several threads; `piece` is below helpers->most_pieces(), and different for those at one time.
  template <class Visit>
  void for_range_shared(Helpers* helpers, int64_t begin, int64_t count, Visit visit) const;

  // The inputs in such a range, one span for each place.
  std::vector<std::span<const std::byte>> inputs(int64_t begin, int64_t count) const {
    std::vector<std::span<const std::byte>> parts;
    for_range(begin, count, [&](const std::byte* input, std::byte*, size_t, int64_t length) {
      parts.emplace_back(input, static_cast<size_t>(length) * element_bytes_);
    });
    return parts;
  }
  std::vector<std::span<std::byte>> outputs(int64_t begin, int64_t count) const {
    std::vector<std::span<std::byte>> parts;
    for_range(begin, count, [&](const std::byte*, std::byte* output, size_t, int64_t length) {
      parts.emplace_back(output, static_cast<size_t>(length) * element_bytes_);
    });
    return parts;
  }

  // The slices that such a range consists of.
  std::vector<Slice> range(int64_t begin, int64_t count) const {
    std::vector<Slice> pieces;
    for_range(begin, count, [&](const std::byte* input, std::byte* output, size_t, int64_t length) {
      pieces.push_back({input, output, length});
    });
    return pieces;
  }

 private:
  std::span<const Slice> slices_;
  std::vector<int64_t> ends_;  // of slice i, in elements from the beginning of the first
  size_t element_bytes_;
  int64_t count_ = 0;
};

// The part of `count` elements that member `index` of `members` reduces: equal shares rounded up to `unit` elements, so
// the last ones may be short or empty.
struct Share {
  int64_t begin, count;
};
inline Share share_of(int64_t count, int members, int index, int64_t unit) {
  const int64_t each = ((count + members - 1) / members + unit - 1) / unit * unit;
  const int64_t begin = std::min(count, each * index);
  return {begin, std::min(count - begin, each)};
}

// Calls piece_of(piece, share) for shares of `count` elements, which helpers (null: none) take, too.
template <class PieceOf>
void for_shares(Helpers* helpers, int64_t count, size_t element_bytes, const PieceOf& piece_of) {
  if (count <= 0) return;
  if (helpers == nullptr) return piece_of(0, Share{0, count});
  const int pieces = helpers->pieces_of(static_cast<size_t>(count) * element_bytes);
  const auto unit = static_cast<int64_t>(std::max(kCacheLineBytes / element_bytes, size_t{1}));
  helpers->run(pieces, [&](int piece) { piece_of(piece, share_of(count, pieces, piece, unit)); });
}

template <class Visit>
void SliceList::for_range_shared(Helpers* helpers, int64_t begin, int64_t count, Visit visit) const {
  for_shares(helpers, count, element_bytes_, [&](int piece, Share part) {
    const size_t skipped = static_cast<size_t>(part.begin) * element_bytes_;
    for_range(begin + part.begin, part.count,
              [&](const std::byte* input, std::byte* output, size_t offset, int64_t length) {
                visit(piece, input, output, skipped + offset, length);
              });
  });
}

}  // namespace hvd
