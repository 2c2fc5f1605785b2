// SPDX-License-Identifier: Apache-2.0
// A mesh of simulated hosts: what the shipped algorithms between hosts run on in virtual time (network.h). It cuts
// messages as TcpMesh does, and each message takes the receive that stands first on its link. A host sends in the order
// of the calls, a turn at a time.
//
// A TcpMesh's processor time is one constant per message sent and one per message received. Its turns over all sockets,
// and what the kernel keeps in a socket, are not simulated: a message has left when its last byte is on the link.
//
// Does not own the network. Each host calls only its own mesh.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "simulate/network.h"
#include "transport/mesh.h"
#include "transport/tcp/mesh.h"

namespace hvd {

class SimulatedMesh final : public Mesh {
 public:
  // One mesh among these hosts, as each of its members has it.
  static std::vector<std::unique_ptr<Mesh>> join(Network& network, const std::vector<int>& hosts);

  const char* transport() const override { return "simulated"; }
  int member() const override { return member_; }
  int size() const override { return static_cast<int>(peers_->size()); }
  int links_per_peer() const override { return network_.model().links_per_peer; }
  MessageBytes message_bytes() const override { return TcpMesh::kMessageBytes; }

  void begin(const char* operation) override { operation_ = operation; }
  void send(int peer, int link, const std::byte* data, size_t bytes) override;
  void send_parts(int peer, int link, std::span<const Input> parts) override;
  bool have_left(int link, uint64_t before) const override;
  void receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag = kNoTag) override;
  void receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) override;
  Status move(std::vector<Arrival>* arrivals) override;
  Status advance(std::vector<Arrival>* arrivals) override;

  // For the network.
  int host() const { return host_; }
  void arrive(Network::Letter letter);

 private:
  // Like a deque that costs nothing while it is empty: there are as many as pairs of hosts.
  template <class T>
  class Queue {
   public:
    bool empty() const { return first_ == items_.size(); }
    const T& front() const { return items_[first_]; }
    void push(T item) { items_.push_back(std::move(item)); }
    void pop() {
      items_[first_++] = {};
      if (!empty()) return;
      items_.clear();
      first_ = 0;
    }

   private:
    std::vector<T> items_;
    size_t first_ = 0;
  };
  struct Incoming {
    size_t bytes = 0;
    int64_t tag = kNoTag;
    std::vector<Output> parts;  // none if the network carries no data
  };
  struct Stream {
    Queue<Incoming> incoming;
    Queue<Network::Letter> arrived;
  };
  struct Outgoing {
    uint64_t leaves_ns, number;
    int link;
  };

  SimulatedMesh(Network& network, int host, int member) : network_(network), host_(host), member_(member) {}
  size_t place(int peer, int link) const { return static_cast<size_t>(peer * links_per_peer() + link); }
  Status take(std::vector<Arrival>* arrivals, bool* moved);
  Status take_from(size_t place, std::vector<Arrival>* arrivals, bool* moved);
  Status waits_for_ever() const;

  Network& network_;
  const int host_, member_;
  std::shared_ptr<const std::vector<SimulatedMesh*>> peers_;  // by member
  std::vector<Stream> streams_;                               // by peer, then link
  std::vector<size_t> ready_;                                 // places of streams that may have a message to take
  std::deque<Outgoing> outgoing_;                             // in the order in which they leave
  const char* operation_ = "start";
};

}  // namespace hvd
