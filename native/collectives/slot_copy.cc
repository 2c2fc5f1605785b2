// SPDX-License-Identifier: Apache-2.0
// Broadcast, exchange, allgather and barrier over a SlotRing (step 7).
#include "collectives/slot_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace hvd {

Status slot_broadcast(SlotRing& ring, const Kernels& kernels, const SliceList& slices, int root, bool stream,
                      Helpers* helpers) {
  const int64_t element_bytes = static_cast<int64_t>(slices.element_bytes());
  const int64_t chunk_elements = static_cast<int64_t>(ring.chunk_bytes()) / element_bytes;
  const int64_t chunks = (slices.count() + chunk_elements - 1) / chunk_elements;
  const bool is_root = ring.member() == root;
  for (int64_t k = 0; k < chunks; ++k) {
    const uint32_t chunk = ring.next_chunk() + static_cast<uint32_t>(k);
    if (is_root ? !ring.wait_input_slot(chunk) : !ring.wait_filled(root, chunk)) return ring.interrupted("broadcast");
    std::byte* const slot = ring.input_slot(root, chunk);
    const int64_t begin = k * chunk_elements;
    slices.for_range_shared(helpers, begin, std::min(chunk_elements, slices.count() - begin),
                            [&](int, const std::byte* input, std::byte* output, size_t offset, int64_t count) {
                              const size_t bytes = static_cast<size_t>(count * element_bytes);
                              if (is_root) {
                                kernels.copy(slot + offset, input, bytes, stream);
                                kernels.copy(output, input, bytes, false);
                              } else {
                                kernels.copy(output, slot + offset, bytes, false);
                              }
                            });
    if (is_root) ring.publish_filled(chunk);
    ring.publish_consumed(chunk);
  }
  ring.finish(static_cast<uint32_t>(chunks));
  return Status();
}

Status slot_exchange(SlotRing& ring, const Kernels& kernels, const void* mine, size_t bytes, void* all) {
  std::byte* const out = static_cast<std::byte*>(all);
  if (bytes <= kTinyBytes) {
    std::byte* const payload = ring.begin_tiny();
    if (bytes != 0) std::memcpy(payload, mine, bytes);
    if (!ring.finish_tiny(ring.payloads())) return ring.interrupted("exchange");
    for (int m = 0; m < ring.size() && bytes != 0; ++m) {
      std::memcpy(out + static_cast<size_t>(m) * bytes, ring.payloads()[m], bytes);
    }
    return Status();
  }
  const uint32_t chunk = ring.next_chunk();
  if (!ring.wait_input_slot(chunk)) return ring.interrupted("exchange");
  kernels.copy(ring.input_slot(ring.member(), chunk), static_cast<const std::byte*>(mine), bytes, false);
  ring.publish_filled(chunk);
  if (!ring.wait_all_filled(chunk)) return ring.interrupted("exchange");
  ring.all_arrived(chunk);
  for (int m = 0; m < ring.size(); ++m) {
    kernels.copy(out + static_cast<size_t>(m) * bytes, ring.input_slot(m, chunk), bytes, false);
  }
  ring.finish(1);
  return Status();
}

Status slot_allgather(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                      size_t element_bytes, bool stream, Helpers* helpers) {
  const auto chunk_elements = static_cast<int64_t>(ring.chunk_bytes() / element_bytes);
  std::vector<SliceList> lists;
  int64_t largest = 0;
  for (const std::vector<Slice>& part : parts) {
    lists.emplace_back(part, element_bytes);
    largest = std::max(largest, lists.back().count());
  }
  const int64_t chunks = (largest + chunk_elements - 1) / chunk_elements;
  const auto length = [&](int member, int64_t k) {
    return std::min(chunk_elements, lists[static_cast<size_t>(member)].count() - k * chunk_elements);
  };
  const auto for_chunk = [&](int member, int64_t k, const auto& visit) {
    lists[static_cast<size_t>(member)].for_range_shared(
        helpers, k * chunk_elements, length(member, k),
        [&](int, const std::byte* input, std::byte* output, size_t offset, int64_t count) {
          visit(input, output, offset, static_cast<size_t>(count) * element_bytes);
        });
  };
  // A chunk is read one turn after it was filled, so that the peers have time to fill theirs.
  for (int64_t k = 0; k < chunks + 1; ++k) {
    const uint32_t chunk = ring.next_chunk() + static_cast<uint32_t>(k);
    if (k < chunks && length(ring.member(), k) > 0) {
      if (!ring.wait_input_slot(chunk)) return ring.interrupted("allgather");
      std::byte* const slot = ring.input_slot(ring.member(), chunk);
      for_chunk(ring.member(), k, [&](const std::byte* input, std::byte*, size_t offset, size_t bytes) {
        kernels.copy(slot + offset, input, bytes, stream);
      });
      ring.publish_filled(chunk);
      for_chunk(ring.member(), k, [&](const std::byte* input, std::byte* output, size_t, size_t bytes) {
        kernels.copy(output, input, bytes, false);
      });
    }
    if (k == 0) continue;
    for (int step = 1; step < ring.size(); ++step) {
      const int owner = (ring.member() + step) % ring.size();
      if (length(owner, k - 1) <= 0) continue;
      if (!ring.wait_filled(owner, chunk - 1)) return ring.interrupted("allgather");
      const std::byte* const slot = ring.input_slot(owner, chunk - 1);
      for_chunk(owner, k - 1, [&](const std::byte*, std::byte* output, size_t offset, size_t bytes) {
        kernels.copy(output, slot + offset, bytes, false);
      });
    }
    ring.publish_consumed(chunk - 1);
  }
  ring.finish(static_cast<uint32_t>(chunks));
  return Status();
}

Status slot_barrier(SlotRing& ring) {
  ring.begin_tiny();
  return ring.finish_tiny(ring.payloads()) ? Status() : ring.interrupted("barrier");
}

}  // namespace hvd
