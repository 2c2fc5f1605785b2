// SPDX-License-Identifier: Apache-2.0
// Broadcast, allgather and barrier over a Mesh (step 7).
#include "collectives/mesh_copy.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/plan.h"
#include "platform/kept_memory.h"

namespace hvd {

namespace {

struct Tree {
  int parent = 0;
  std::vector<int> children;
};

// By places; the root's is 0. A binomial tree takes log2(size) steps, in each of which the root sends everything again.
// A line takes a step for each chunk and each further place, but each member sends its data only once. The faster wins.
Tree tree_of(int size, int place, int64_t chunks) {
  const int steps = std::bit_width(static_cast<unsigned>(size - 1));
  if (chunks + size - 2 < chunks * steps) {
    return {place - 1, place + 1 < size ? std::vector<int>{place + 1} : std::vector<int>{}};
  }
  Tree tree{place & (place - 1), {}};
  for (int bit = 1; bit < size && (place & bit) == 0; bit <<= 1) {
    if (place + bit < size) tree.children.push_back(place + bit);
  }
  std::reverse(tree.children.begin(), tree.children.end());  // the largest subtree first
  return tree;
}

}  // namespace

Status tree_broadcast(Mesh& mesh, const Kernels& kernels, const SliceList& slices, int root) {
  const int size = mesh.size(), place = (mesh.member() - root + size) % size;  // the root's place is 0
  const int64_t element_bytes = static_cast<int64_t>(slices.element_bytes());
  const int64_t chunk_elements = static_cast<int64_t>(mesh.message_bytes().most) / element_bytes;
  const int64_t chunks = (slices.count() + chunk_elements - 1) / chunk_elements;
  const int links = plan::links_for(slices.bytes(), mesh.links_per_peer());
  const bool is_root = place == 0;
  mesh.begin("broadcast");

  const Tree tree = tree_of(size, place, chunks);
  std::vector<int> children;
  for (const int child : tree.children) children.push_back((child + root) % size);
  const auto elements = [&](int64_t k) { return std::min(chunk_elements, slices.count() - k * chunk_elements); };
  const auto hand_on = [&](int64_t k) {
    std::vector<Mesh::Input> parts = slices.inputs(k * chunk_elements, elements(k));
    if (!is_root) {
      const std::vector<Mesh::Output> received = slices.outputs(k * chunk_elements, elements(k));
      parts.assign(received.begin(), received.end());
    }
    for (int child : children) mesh.send_parts(child, static_cast<int>(k % links), parts);
  };

  if (is_root) {
    for (int64_t k = 0; k < chunks; ++k) hand_on(k);
    HVD_RETURN_IF_ERROR(mesh.drain());
    slices.for_range(0, slices.count(), [&](const std::byte* input, std::byte* output, size_t, int64_t count) {
      kernels.copy(output, input, static_cast<size_t>(count * element_bytes), false);
    });
    return Status();
  }
  const int parent = (tree.parent + root) % size;
  for (int64_t k = 0; k < chunks; ++k) {
    mesh.receive_parts(parent, static_cast<int>(k % links), slices.outputs(k * chunk_elements, elements(k)), k);
  }
  std::vector<Mesh::Arrival> arrivals;
  while (!mesh.idle()) {
    arrivals.clear();
    HVD_RETURN_IF_ERROR(mesh.advance(&arrivals));
    for (const Mesh::Arrival& arrival : arrivals) hand_on(arrival.tag);
  }
  return Status();
}

Status mesh_allgather(Mesh& mesh, const Kernels& kernels, const char* operation, const void* mine,
                      std::span<const int64_t> bytes_of_member, void* all, const Grid& grid) {
  mesh.begin(operation);
  const int member = mesh.member(), group = grid.group_of(member);
  std::vector<size_t> begins{0};
  for (const int64_t bytes : bytes_of_member) begins.push_back(begins.back() + static_cast<size_t>(bytes));
  std::byte* const target = static_cast<std::byte*>(all);
  // Where the data of the members [first, last) goes.
  const auto block = [&](int first, int last) {
    const size_t begin = begins[static_cast<size_t>(first)];
    return Mesh::Output(target + begin, begins[static_cast<size_t>(last)] - begin);
  };
  const auto of_group = [&](int g) { return block(grid.row_begin(g), grid.row_begin(g + 1)); };
  const size_t chunk = mesh.message_bytes().most;
  const auto in_chunks = [&](size_t bytes, const auto& visit) {
    const int links = plan::links_for(bytes, mesh.links_per_peer());
    int k = 0;
    for (size_t at = 0; at < bytes; at += chunk) visit(k++ % links, at, std::min(chunk, bytes - at));
  };
  const auto receive = [&](int from, Mesh::Output into) {
    in_chunks(into.size(), [&](int link, size_t at, size_t bytes) { mesh.receive(from, link, &into[at], bytes); });
  };
  const auto send = [&](int to, Mesh::Input data) {
    in_chunks(data.size(), [&](int link, size_t at, size_t bytes) { mesh.send(to, link, &data[at], bytes); });
  };

  const int begin = grid.row_begin(group), row = grid.row_size(group);
  const Mesh::Output own = block(member, member + 1);
  for (int m = begin; m < begin + row; ++m) {
    if (m != member) receive(m, block(m, m + 1));
  }
  for (int step = 1; step < row; ++step) {
    send(begin + (member - begin + step) % row, {static_cast<const std::byte*>(mine), own.size()});
  }
  HVD_RETURN_IF_ERROR(mesh.drain());
  kernels.copy(own.data(), static_cast<const std::byte*>(mine), own.size(), false);
  for (int step = 1; step < grid.groups(); ++step) {
    const int to = (group + step) % grid.groups(), from = (group + grid.groups() - step) % grid.groups();
    receive(grid.speaker(from, member), of_group(from));
    grid.for_listeners(member, to, [&](int listener) { send(listener, of_group(group)); });
  }
  return mesh.drain();
}

Status mesh_barrier(Mesh& mesh) {
  mesh.begin("barrier");
  Exchanged<std::byte> sent(1), received(1);
  for (int distance = 1; distance < mesh.size(); distance <<= 1) {
    mesh.send((mesh.member() + distance) % mesh.size(), 0, sent.data(), 1);
    mesh.receive((mesh.member() + mesh.size() - distance) % mesh.size(), 0, received.data(), 1);
    HVD_RETURN_IF_ERROR(mesh.drain());
  }
  return Status();
}

}  // namespace hvd
