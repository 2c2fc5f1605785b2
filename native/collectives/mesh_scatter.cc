// SPDX-License-Identifier: Apache-2.0
// Reducescatter and alltoall over a Mesh (step 7); the algorithms stand in mesh_scatter.h.
#include "collectives/mesh_scatter.h"

#include <algorithm>

#include "collectives/plan.h"
#include "collectives/slices.h"

namespace hvd {

namespace {

constexpr int64_t kLag = 2;

}  // namespace

Status mesh_reducescatter(Mesh& mesh, MemberFold& member_fold, std::span<const std::vector<Slice>> parts,
                          const Reduction& reduction, Exchanged<std::byte>* scratch) {
  const int size = mesh.size();
  const int64_t element_bytes = static_cast<int64_t>(element_size(reduction.dtype));
  std::vector<SliceList> lists;
  int64_t longest = 0;
  for (const std::vector<Slice>& part : parts) {
    lists.emplace_back(part, static_cast<size_t>(element_bytes));
    longest = std::max(longest, lists.back().count());
  }
  if (longest == 0) return Status();
  const SliceList& own = lists[static_cast<size_t>(mesh.member())];
  const int64_t chunk_elements = std::min(longest, static_cast<int64_t>(mesh.message_bytes().most) / element_bytes);
  const int64_t chunks = (longest + chunk_elements - 1) / chunk_elements;
  const int links = plan::links_for(static_cast<size_t>(longest * element_bytes), mesh.links_per_peer());
  const int64_t stride = (chunk_elements * element_bytes + 63) / 64 * 64;
  scratch->resize(std::max(scratch->size(), static_cast<size_t>(size * kLag * stride)));
  const auto from_member = [&](int m, int64_t k) { return scratch->data() + (m * kLag + k % kLag) * stride; };
  const auto elements = [&](const SliceList& list, int64_t k) {
    return std::clamp<int64_t>(list.count() - k * chunk_elements, 0, chunk_elements);
  };
  const auto exchange = [&](int64_t k) {
    if (k >= chunks) return;
    const int link = static_cast<int>(k % links);
    for (int step = 1; step < size; ++step) {
      const int to = (mesh.member() + step) % size, from = (mesh.member() + size - step) % size;
      const SliceList& theirs = lists[static_cast<size_t>(to)];
      mesh.send_parts(to, link, theirs.inputs(k * chunk_elements, elements(theirs, k)));
      mesh.receive(from, link, from_member(from, k), static_cast<size_t>(elements(own, k) * element_bytes), k);
    }
  };
  std::vector<const std::byte*> sources(static_cast<size_t>(size));
  const auto fold = [&](int64_t k) {
    own.for_range(k * chunk_elements, elements(own, k),
                  [&](const std::byte* input, std::byte* output, size_t offset, int64_t count) {
                    for (int m = 0; m < size; ++m) {
                      sources[static_cast<size_t>(m)] = m == mesh.member() ? input : from_member(m, k) + offset;
                    }
                    member_fold.all(reduction, sources, count, output);
                  });
  };

  mesh.begin("reducescatter");
  std::vector<int> missing(static_cast<size_t>(chunks), size - 1);  // by chunk: peers whose part has not come
  std::vector<Mesh::Arrival> arrivals;
  for (int64_t k = 0; k < kLag; ++k) exchange(k);
  int64_t folded = 0;
  for (;;) {
    while (folded < chunks && missing[static_cast<size_t>(folded)] == 0) {
      fold(folded);
      exchange(folded + kLag);
      ++folded;
    }
    if (folded == chunks && mesh.idle()) return Status();
    arrivals.clear();
    HVD_RETURN_IF_ERROR(mesh.advance(&arrivals));
    for (const Mesh::Arrival& arrival : arrivals) --missing[static_cast<size_t>(arrival.tag)];
  }
}

Status mesh_alltoall(Mesh& mesh, const Kernels& kernels, const void* mine, std::span<const int64_t> bytes, void* all) {
  const int size = mesh.size(), member = mesh.member();
  const auto between = [&](int source, int destination) {
    return bytes[static_cast<size_t>(source) * static_cast<size_t>(size) + static_cast<size_t>(destination)];
  };
  const auto in_chunks = [&](int64_t length, const auto& visit) {
    const int links = plan::links_for(static_cast<size_t>(length), mesh.links_per_peer());
    const auto chunk = static_cast<int64_t>(mesh.message_bytes().most);
    int k = 0;
    for (int64_t at = 0; at < length; at += chunk) {
      visit(k++ % links, at, static_cast<size_t>(std::min(chunk, length - at)));
    }
  };
  mesh.begin("alltoall");
  const std::byte* const input = static_cast<const std::byte*>(mine);
  std::byte* const output = static_cast<std::byte*>(all);
  std::vector<int64_t> input_at(static_cast<size_t>(size) + 1, 0), output_at(static_cast<size_t>(size) + 1, 0);
  for (int m = 0; m < size; ++m) {
    const size_t i = static_cast<size_t>(m);
    input_at[i + 1] = input_at[i] + between(member, m);
    output_at[i + 1] = output_at[i] + between(m, member);
  }
  for (int step = 1; step < size; ++step) {
    const int to = (member + step) % size, from = (member + size - step) % size;
    in_chunks(between(from, member), [&](int link, int64_t at, size_t length) {
      mesh.receive(from, link, output + output_at[static_cast<size_t>(from)] + at, length);
    });
    in_chunks(between(member, to), [&](int link, int64_t at, size_t length) {
      mesh.send(to, link, input + input_at[static_cast<size_t>(to)] + at, length);
    });
  }
  const size_t i = static_cast<size_t>(member);
  kernels.copy(output + output_at[i], input + input_at[i], static_cast<size_t>(between(member, member)), false);
  return mesh.drain();
}

}  // namespace hvd
