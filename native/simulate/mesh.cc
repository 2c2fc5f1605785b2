// SPDX-License-Identifier: Apache-2.0
#include "simulate/mesh.h"

#include <cstring>
#include <string>
#include <utility>

namespace hvd {

namespace {

template <class Part>
size_t bytes_of(std::span<const Part> parts) {
  size_t bytes = 0;
  for (const Part part : parts) bytes += part.size();
  return bytes;
}

}  // namespace

std::vector<std::unique_ptr<Mesh>> SimulatedMesh::join(Network& network, const std::vector<int>& hosts) {
  auto peers = std::make_shared<std::vector<SimulatedMesh*>>();
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (size_t m = 0; m < hosts.size(); ++m) {
    peers->push_back(new SimulatedMesh(network, hosts[m], static_cast<int>(m)));
    meshes.emplace_back(peers->back());
  }
  for (SimulatedMesh* mesh : *peers) {
    mesh->peers_ = peers;
    mesh->streams_.resize(hosts.size() * static_cast<size_t>(mesh->links_per_peer()));
  }
  return meshes;
}

void SimulatedMesh::send(int peer, int link, const std::byte* data, size_t bytes) {
  const Input whole(data, bytes);
  send_parts(peer, link, {&whole, 1});
}

void SimulatedMesh::send_parts(int peer, int link, std::span<const Input> parts) {
  Network::Letter letter{(*peers_)[static_cast<size_t>(peer)], member_, link, bytes_of(parts), {}};
  if (letter.bytes == 0) return;
  if (network_.carries_data()) {
    for (const Input part : parts) letter.data.insert(letter.data.end(), part.begin(), part.end());
  }
  const uint64_t leaves_ns = network_.send(host_, std::move(letter));
  outgoing_.push_back({leaves_ns, queued_++, link});
  ++pending_;
}

void SimulatedMesh::receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag) {
  const Output whole(data, bytes);
  receive_parts(peer, link, {&whole, 1}, tag);
}

void SimulatedMesh::receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) {
  Incoming incoming{bytes_of(parts), tag, {}};
  if (incoming.bytes == 0) {
    if (tag != kNoTag) at_once_.push_back({peer, tag});
    return;
  }
  if (network_.carries_data()) incoming.parts.assign(parts.begin(), parts.end());
  const size_t at = place(peer, link);
  streams_[at].incoming.push(std::move(incoming));
  ++pending_;
  if (!streams_[at].arrived.empty()) ready_.push_back(at);
}

void SimulatedMesh::arrive(Network::Letter letter) {
  const size_t at = place(letter.from, letter.link);
  streams_[at].arrived.push(std::move(letter));
  if (streams_[at].incoming.empty()) return;
  ready_.push_back(at);
  network_.wake(host_);
}

bool SimulatedMesh::have_left(int link, uint64_t before) const {
  const uint64_t now_ns = network_.now_ns(host_);
  for (const Outgoing& message : outgoing_) {
    if (message.number >= before) break;
    if (message.link == link && message.leaves_ns > now_ns) return false;
  }
  return true;
}

Status SimulatedMesh::take(std::vector<Arrival>* arrivals, bool* moved) {
  for (; !outgoing_.empty() && outgoing_.front().leaves_ns <= network_.now_ns(host_); outgoing_.pop_front()) {
    --pending_;
    *moved = true;
  }
  std::vector<size_t> ready;
  ready.swap(ready_);
  for (const size_t place : ready) HVD_RETURN_IF_ERROR(take_from(place, arrivals, moved));
  return {};
}

Status SimulatedMesh::take_from(size_t place, std::vector<Arrival>* arrivals, bool* moved) {
  Stream& from = streams_[place];
  for (; !from.incoming.empty() && !from.arrived.empty(); from.incoming.pop(), from.arrived.pop()) {
    const Incoming& expected = from.incoming.front();
    const Network::Letter& letter = from.arrived.front();
    if (expected.bytes != letter.bytes) {
      return {HVD_INTERNAL, std::string(operation_) + ": got a message of " + std::to_string(letter.bytes) +
                                " bytes from member " + std::to_string(letter.from) + ", expected " +
                                std::to_string(expected.bytes)};
    }
    size_t at = 0;
    for (const Output part : expected.parts) {
      std::memcpy(part.data(), letter.data.data() + at, part.size());
      at += part.size();
    }
    network_.pass(host_, network_.model().receive_ns);
    if (expected.tag != kNoTag) arrivals->push_back({letter.from, expected.tag});
    --pending_;
    *moved = true;
  }
  return {};
}

Status SimulatedMesh::advance(std::vector<Arrival>* arrivals) {
  report_empty(arrivals);
  bool moved = !arrivals->empty();
  for (;;) {
    HVD_RETURN_IF_ERROR(take(arrivals, &moved));
    if (moved) return {};
    if (!network_.wait(host_, outgoing_.empty() ? Network::kNever : outgoing_.front().leaves_ns))
      return waits_for_ever();
  }
}

Status SimulatedMesh::move(std::vector<Arrival>* arrivals) {
  report_empty(arrivals);
  bool moved = false;
  return take(arrivals, &moved);
}

Status SimulatedMesh::waits_for_ever() const {
  std::string text = std::string(operation_) + ": waits for ever";
  for (size_t place = 0; place < streams_.size(); ++place) {
    if (streams_[place].incoming.empty()) continue;
    const auto links = static_cast<size_t>(links_per_peer());
    text += " for a message of " + std::to_string(streams_[place].incoming.front().bytes) + " bytes from member " +
            std::to_string(place / links) + " on link " + std::to_string(place % links);
    break;
  }
  return {HVD_ABORTED, std::move(text)};
}

}  // namespace hvd
