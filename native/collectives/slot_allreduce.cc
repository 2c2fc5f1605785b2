// SPDX-License-Identifier: Apache-2.0
// Allreduce over a SlotRing (step 7); the algorithms stand in slot_allreduce.h.
#include "collectives/slot_allreduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "collectives/plan.h"

namespace hvd {

namespace {

constexpr const char* kOperation = "allreduce";

class TwoShot {
 public:
  TwoShot(SlotRing& ring, const Kernels& kernels, const SliceList& slices, const Reduction& reduction, StorePlan stores,
          Helpers* helpers)
      : ring_(ring),
        kernels_(kernels),
        helpers_(helpers),
        slices_(slices),
        reduction_(reduction),
        stores_(stores),
        element_bytes_(static_cast<int64_t>(slices.element_bytes())),
        chunk_elements_(static_cast<int64_t>(plan::two_shot_chunk_bytes(slices.bytes(), ring.chunk_bytes())) /
                        element_bytes_),
        chunks_((slices.count() + chunk_elements_ - 1) / chunk_elements_),
        base_(ring.next_chunk()),
        sources_(static_cast<size_t>(ring.size()) *
                 static_cast<size_t>(helpers == nullptr ? 1 : helpers->most_pieces())) {}

  // Chunk k is filled, k - 1 reduced and k - 2 copied out in turn, so a peer has a stage's time to catch up.
  Status run() {
    for (int64_t k = 0; k < chunks_ + 2; ++k) {
      const bool going =
          (k >= chunks_ || fill(k)) && (k < 1 || k > chunks_ || reduce(k - 1)) && (k < 2 || copy_out(k - 2));
      if (!going) return ring_.interrupted(kOperation);
    }
    ring_.finish(static_cast<uint32_t>(chunks_));
    return Status();
  }

 private:
  uint32_t chunk(int64_t k) const { return base_ + static_cast<uint32_t>(k); }
  int64_t elements(int64_t k) const { return std::min(chunk_elements_, slices_.count() - k * chunk_elements_); }
  Share share(int64_t k, int member) const {
    return share_of(elements(k), ring_.size(), member, static_cast<int64_t>(kCacheLineBytes) / element_bytes_);
  }
  // The peers in an order that starts behind this member, so that the members do not all read the same peer at once.
  int peer(int step) const { return (ring_.member() + step) % ring_.size(); }

  bool fill(int64_t k) {
    if (!ring_.wait_input_slot(chunk(k))) return false;
    std::byte* const slot = ring_.input_slot(ring_.member(), chunk(k));
    for (int step = 1; step < ring_.size(); ++step) {
      const Share part = share(k, peer(step));
      std::byte* const to = slot + part.begin * element_bytes_;
      slices_.for_range_shared(helpers_, k * chunk_elements_ + part.begin, part.count,
                               [&](int, const std::byte* input, std::byte*, size_t offset, int64_t count) {
                                 kernels_.copy(to + offset, input, static_cast<size_t>(count * element_bytes_),
                                               stores_.stream_slots);
                               });
    }
    ring_.publish_filled(chunk(k));
    return true;
  }

  bool reduce(int64_t k) {
    if (!ring_.wait_all_filled(chunk(k)) || (k >= SlotRing::kSlots && !ring_.wait_result_slot(chunk(k)))) return false;
    const Share part = share(k, ring_.member());
    std::byte* const result = ring_.result_slot(ring_.member(), chunk(k));
    const auto members = static_cast<size_t>(ring_.size());
    slices_.for_range_shared(
        helpers_, k * chunk_elements_ + part.begin, part.count,
        [&](int piece, const std::byte* input, std::byte* output, size_t offset, int64_t count) {
          const std::span sources = std::span(sources_).subspan(static_cast<size_t>(piece) * members, members);
          for (int m = 0; m < ring_.size(); ++m) {
            sources[static_cast<size_t>(m)] =
                m == ring_.member() ? input : ring_.input_slot(m, chunk(k)) + part.begin * element_bytes_ + offset;
          }
          // Of two outputs that are aligned differently only one could be streamed: the slot.
          kernels_.fold(reduction_, sources, count, {result + offset, stores_.stream_slots}, {output});
        });
    ring_.publish_consumed(chunk(k));
    return true;
  }

  bool copy_out(int64_t k) {
    for (int step = 1; step < ring_.size(); ++step) {
      const int owner = peer(step);
      const Share part = share(k, owner);
      if (!ring_.wait_consumed(owner, chunk(k))) return false;
      const std::byte* const result = ring_.result_slot(owner, chunk(k));
      slices_.for_range_shared(helpers_, k * chunk_elements_ + part.begin, part.count,
                               [&](int, const std::byte*, std::byte* output, size_t offset, int64_t count) {
                                 kernels_.copy(output, result + offset, static_cast<size_t>(count * element_bytes_),
                                               stores_.stream_outputs);
                               });
    }
    ring_.publish_copied(chunk(k));
    return true;
  }

  SlotRing& ring_;
  const Kernels& kernels_;
  Helpers* const helpers_;
  const SliceList& slices_;
  const Reduction& reduction_;
  const StorePlan stores_;
  const int64_t element_bytes_, chunk_elements_, chunks_;
  const uint32_t base_;
  std::vector<const std::byte*> sources_;  // of each piece
};

}  // namespace

Status tiny_allreduce(SlotRing& ring, const Kernels& kernels, std::span<const Slice> slices,
                      const Reduction& reduction) {
  const size_t element_bytes = element_size(reduction.dtype);
  std::byte* const mine = ring.begin_tiny();
  size_t bytes = 0;
  for (const Slice& slice : slices) {
    const size_t slice_bytes = static_cast<size_t>(slice.count) * element_bytes;
    if (slice_bytes != 0) std::memcpy(mine + bytes, slice.input, slice_bytes);
    bytes += slice_bytes;
  }
  const std::byte** const payloads = ring.payloads();
  if (!ring.finish_tiny(payloads)) return ring.interrupted(kOperation);
  alignas(64) std::byte result[kTinyBytes];
  kernels.fold(reduction, {payloads, static_cast<size_t>(ring.size())}, static_cast<int64_t>(bytes / element_bytes),
               {result});
  bytes = 0;
  for (const Slice& slice : slices) {
    const size_t slice_bytes = static_cast<size_t>(slice.count) * element_bytes;
    if (slice_bytes != 0) std::memcpy(slice.output, result + bytes, slice_bytes);
    bytes += slice_bytes;
  }
  return Status();
}

Status one_shot_allreduce(SlotRing& ring, const Kernels& kernels, const SliceList& slices, const Reduction& reduction,
                          bool stream) {
  const uint32_t chunk = ring.next_chunk();
  const size_t element_bytes = slices.element_bytes();
  if (!ring.wait_input_slot(chunk)) return ring.interrupted(kOperation);
  std::byte* const slot = ring.input_slot(ring.member(), chunk);
  slices.for_range(0, slices.count(), [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
    kernels.copy(slot + offset, input, static_cast<size_t>(count) * element_bytes, stream);
  });
  ring.publish_filled(chunk);
  if (!ring.wait_all_filled(chunk)) return ring.interrupted(kOperation);
  ring.all_arrived(chunk);
  const std::byte** const sources = ring.payloads();
  slices.for_range(0, slices.count(), [&](const std::byte* input, std::byte* output, size_t offset, int64_t count) {
    for (int m = 0; m < ring.size(); ++m) sources[m] = m == ring.member() ? input : ring.input_slot(m, chunk) + offset;
    kernels.fold(reduction, {sources, static_cast<size_t>(ring.size())}, count, {output});
  });
  ring.finish(1);
  return Status();
}

Status two_shot_allreduce(SlotRing& ring, const Kernels& kernels, const SliceList& slices, const Reduction& reduction,
                          StorePlan stores, Helpers* helpers) {
  return TwoShot(ring, kernels, slices, reduction, stores, helpers).run();
}

}  // namespace hvd
