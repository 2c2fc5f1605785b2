// SPDX-License-Identifier: Apache-2.0
// A mesh that keeps what is asked of it, and passes it on to another one.
#pragma once

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/mesh.h"

namespace hvd {

class RecordingMesh final : public Mesh {
 public:
  struct Message {
    bool is_sent;
    int peer, link;
    size_t bytes;
    bool operator==(const Message&) const = default;
    auto stream() const { return std::tuple(is_sent, peer, link); }
  };
  using Record = std::vector<Message>;

  RecordingMesh(std::unique_ptr<Mesh> mesh, Record* record) : mesh_(std::move(mesh)), record_(*record) {}

  const char* transport() const override { return mesh_->transport(); }
  int member() const override { return mesh_->member(); }
  int size() const override { return mesh_->size(); }
  int links_per_peer() const override { return mesh_->links_per_peer(); }
  MessageBytes message_bytes() const override { return mesh_->message_bytes(); }
  void begin(const char* operation) override { mesh_->begin(operation); }

  void send(int peer, int link, const std::byte* data, size_t bytes) override {
    note(true, peer, link, bytes);
    mesh_->send(peer, link, data, bytes);
    follow();
  }
  void receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag) override {
    note(false, peer, link, bytes);
    mesh_->receive(peer, link, data, bytes, tag);
    follow();
  }
  void send_parts(int peer, int link, std::span<const Input> parts) override {
    note(true, peer, link, bytes_of(parts));
    mesh_->send_parts(peer, link, parts);
    follow();
  }
  void receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) override {
    note(false, peer, link, bytes_of(parts));
    mesh_->receive_parts(peer, link, parts, tag);
    follow();
  }
  bool have_left(int link, uint64_t before) const override { return mesh_->have_left(link, before); }
  Status advance(std::vector<Arrival>* arrivals) override { return followed(mesh_->advance(arrivals)); }
  Status move(std::vector<Arrival>* arrivals) override { return followed(mesh_->move(arrivals)); }

 private:
  template <class Part>
  static size_t bytes_of(std::span<const Part> parts) {
    size_t bytes = 0;
    for (const Part part : parts) bytes += part.size();
    return bytes;
  }
  void note(bool is_sent, int peer, int link, size_t bytes) {
    if (bytes > 0) record_.push_back({is_sent, peer, link, bytes});
  }
  void follow() {
    pending_ = mesh_->idle() ? 0 : 1;
    queued_ = mesh_->queued();
  }
  Status followed(Status status) {
    follow();
    return status;
  }

  const std::unique_ptr<Mesh> mesh_;
  Record& record_;
};

}  // namespace hvd
