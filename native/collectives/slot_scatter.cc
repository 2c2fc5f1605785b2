// SPDX-License-Identifier: Apache-2.0
// Reducescatter and alltoall over a SlotRing (step 7); the algorithms stand in slot_scatter.h.
#include "collectives/slot_scatter.h"

#include <algorithm>
#include <cstring>

#include "collectives/slices.h"

namespace hvd {

namespace {

constexpr int64_t kSectionUnitBytes = 64;  // sections begin on cache lines

int64_t section_bytes_of(const SlotRing& ring) {
  return static_cast<int64_t>(ring.chunk_bytes()) / ring.size() / kSectionUnitBytes * kSectionUnitBytes;
}

}  // namespace

Status tiny_reducescatter(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction) {
  const size_t element_bytes = element_size(reduction.dtype);
  std::byte* const payload = ring.begin_tiny();
  size_t bytes = 0, own_begin = 0, own_bytes = 0;
  for (size_t m = 0; m < parts.size(); ++m) {
    const size_t begin = bytes;
    for (const Slice& slice : parts[m]) {
      const size_t slice_bytes = static_cast<size_t>(slice.count) * element_bytes;
      if (slice_bytes != 0) std::memcpy(payload + bytes, slice.input, slice_bytes);
      bytes += slice_bytes;
    }
    if (static_cast<int>(m) != ring.member()) continue;
    own_begin = begin;
    own_bytes = bytes - begin;
  }
  const std::byte** const sources = ring.payloads();
  if (!ring.finish_tiny(sources)) return ring.interrupted("reducescatter");
  for (int m = 0; m < ring.size(); ++m) sources[m] += own_begin;
  alignas(64) std::byte result[kTinyBytes];
  kernels.fold(reduction, {sources, static_cast<size_t>(ring.size())}, static_cast<int64_t>(own_bytes / element_bytes),
               {result});
  bytes = 0;
  for (const Slice& slice : parts[static_cast<size_t>(ring.member())]) {
    const size_t slice_bytes = static_cast<size_t>(slice.count) * element_bytes;
    if (slice_bytes != 0) std::memcpy(slice.output, result + bytes, slice_bytes);
    bytes += slice_bytes;
  }
  return Status();
}

Status slot_reducescatter(SlotRing& ring, const Kernels& kernels, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction, bool stream, Helpers* helpers) {
  const int64_t element_bytes = static_cast<int64_t>(element_size(reduction.dtype));
  const int64_t section_bytes = section_bytes_of(ring);
  const int64_t section_elements = section_bytes / element_bytes;
  std::vector<SliceList> lists;
  int64_t longest = 0;
  for (const std::vector<Slice>& part : parts) {
    lists.emplace_back(part, static_cast<size_t>(element_bytes));
    longest = std::max(longest, lists.back().count());
  }
  const SliceList& own = lists[static_cast<size_t>(ring.member())];
  const int64_t chunks = (longest + section_elements - 1) / section_elements;
  const auto elements = [&](const SliceList& list, int64_t k) {
    return std::min(section_elements, list.count() - k * section_elements);
  };
  const auto members = static_cast<size_t>(ring.size());
  const size_t pieces = helpers == nullptr ? 1 : static_cast<size_t>(helpers->most_pieces());
  std::vector<const std::byte*> sources(members * pieces);
  // A chunk is folded one turn after it was filled, so that the peers have time to fill theirs.
  for (int64_t k = 0; k < chunks + 1; ++k) {
    const uint32_t chunk = ring.next_chunk() + static_cast<uint32_t>(k);
    if (k < chunks) {
      if (!ring.wait_input_slot(chunk)) return ring.interrupted("reducescatter");
      std::byte* const slot = ring.input_slot(ring.member(), chunk);
      for (int step = 1; step < ring.size(); ++step) {
        const int to = (ring.member() + step) % ring.size();
        const SliceList& list = lists[static_cast<size_t>(to)];
        std::byte* const section = slot + to * section_bytes;
        list.for_range_shared(helpers, k * section_elements, elements(list, k),
                              [&](int, const std::byte* input, std::byte*, size_t offset, int64_t count) {
                                kernels.copy(section + offset, input, static_cast<size_t>(count * element_bytes),
                                             stream);
                              });
      }
      ring.publish_filled(chunk);
    }
    if (k == 0) continue;
    if (!ring.wait_all_filled(chunk - 1)) return ring.interrupted("reducescatter");
    own.for_range_shared(
        helpers, (k - 1) * section_elements, elements(own, k - 1),
        [&](int piece, const std::byte* input, std::byte* output, size_t offset, int64_t count) {
          const std::span of_piece = std::span(sources).subspan(static_cast<size_t>(piece) * members, members);
          for (int m = 0; m < ring.size(); ++m) {
            const std::byte* const section = ring.input_slot(m, chunk - 1) + ring.member() * section_bytes;
            of_piece[static_cast<size_t>(m)] = m == ring.member() ? input : section + offset;
          }
          kernels.fold(reduction, of_piece, count, {output});
        });
    ring.publish_consumed(chunk - 1);
  }
  ring.finish(static_cast<uint32_t>(chunks));
  return Status();
}

Status slot_alltoall(SlotRing& ring, const Kernels& kernels, const void* mine, std::span<const int64_t> bytes,
                     void* all, bool stream, Helpers* helpers) {
  const int size = ring.size(), member = ring.member();
  const int64_t section_bytes = section_bytes_of(ring);
  const auto between = [&](int source, int destination) {
    return bytes[static_cast<size_t>(source) * static_cast<size_t>(size) + static_cast<size_t>(destination)];
  };
  const auto copy = [&](std::byte* to, const std::byte* from, int64_t length, bool past_caches) {
    for_shares(helpers, length, 1, [&](int, Share part) {
      kernels.copy(to + part.begin, from + part.begin, static_cast<size_t>(part.count), past_caches);
    });
  };
  std::vector<const std::byte*> inputs(static_cast<size_t>(size));
  std::vector<std::byte*> outputs(static_cast<size_t>(size));
  const std::byte* input = static_cast<const std::byte*>(mine);
  std::byte* output = static_cast<std::byte*>(all);
  int64_t longest = 0, most_to_send = 0;  // between two members
  for (int m = 0; m < size; ++m) {
    inputs[static_cast<size_t>(m)] = input;
    outputs[static_cast<size_t>(m)] = output;
    input += between(member, m);
    output += between(m, member);
    if (m != member) most_to_send = std::max(most_to_send, between(member, m));
    for (int to = 0; to < size; ++to) longest = to == m ? longest : std::max(longest, between(m, to));
  }
  const int64_t chunks = (longest + section_bytes - 1) / section_bytes;
  // As in an allgather, a member does not wait for peers that have no data for it.
  for (int64_t k = 0; k < chunks + 1; ++k) {
    const uint32_t chunk = ring.next_chunk() + static_cast<uint32_t>(k);
    const int64_t begin = k * section_bytes;
    if (begin < most_to_send) {
      if (!ring.wait_input_slot(chunk)) return ring.interrupted("alltoall");
      std::byte* const slot = ring.input_slot(member, chunk);
      for (int step = 1; step < size; ++step) {
        const int to = (member + step) % size;
        const int64_t length = std::min(section_bytes, between(member, to) - begin);
        if (length <= 0) continue;
        copy(slot + to * section_bytes, inputs[static_cast<size_t>(to)] + begin, length, stream);
      }
      ring.publish_filled(chunk);
    }
    if (k == 0) {
      copy(outputs[static_cast<size_t>(member)], inputs[static_cast<size_t>(member)], between(member, member), false);
      continue;
    }
    const int64_t read = begin - section_bytes;
    for (int step = 1; step < size; ++step) {
      const int from = (member + step) % size;
      const int64_t length = std::min(section_bytes, between(from, member) - read);
      if (length <= 0) continue;
      if (!ring.wait_filled(from, chunk - 1)) return ring.interrupted("alltoall");
      copy(outputs[static_cast<size_t>(from)] + read, ring.input_slot(from, chunk - 1) + member * section_bytes, length,
           false);
    }
    ring.publish_consumed(chunk - 1);
  }
  ring.finish(static_cast<uint32_t>(chunks));
  return Status();
}

}  // namespace hvd
