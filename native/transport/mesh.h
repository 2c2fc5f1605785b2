// SPDX-License-Identifier: Apache-2.0
// Mesh: the ways between the members of a process set, one to each peer, and what is under way on them (step 7). The
// algorithms of collectives/ are written for it; it is made of sockets (transport/tcp/) or of MPI (communicators/mpi/).
//
// Algorithms queue what a link is to send and to receive, in the order that both ends derive from the operation alone:
// each send() is one message, which one receive() of the same size takes. advance() moves whatever can move and reports
// what has arrived. Memory that was queued stays untouched until it has been sent, or has arrived.
//
// One thread at a time. Only advance() and drain() block: until something moves, a peer is lost, or the interrupt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/status.h"

namespace hvd {

class Mesh {
 public:
  static constexpr int64_t kNoTag = -1;
  struct Arrival {
    int peer;
    int64_t tag;
  };
  using Input = std::span<const std::byte>;
  using Output = std::span<std::byte>;

  virtual ~Mesh() = default;

  virtual const char* transport() const = 0;
  virtual int member() const = 0;
  virtual int size() const = 0;
  virtual int links_per_peer() const = 0;
  // Into messages of so many bytes a large operation is cut: a message's own cost is small then, and several of them
  // are under way at a time. In an allreduce, what is sent next waits for what comes: other sizes may be good there. A
  // small one is cut so that several messages are under way, too, but not into less than `least_reduced` bytes.
  struct MessageBytes {
    size_t most, least_reduced, most_reduced;
  };
  virtual MessageBytes message_bytes() const = 0;

  // `operation` stands in error texts; a string literal.
  virtual void begin(const char* operation) = 0;
  virtual void send(int peer, int link, const std::byte* data, size_t bytes) = 0;
  // With a tag, the arrival of the last byte is reported by advance(); of zero bytes, at once.
  virtual void receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag = kNoTag) = 0;
  // A message that lies in several places; in other ones at the other end.
  virtual void send_parts(int peer, int link, std::span<const Input> parts) = 0;
  virtual void receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) = 0;
  bool idle() const { return pending_ == 0; }
  // How many messages have been queued for peers, and whether all messages of a link before such a number have left, to
  // every peer: peers then get them even if nothing is called here for a while.
  uint64_t queued() const { return queued_; }
  virtual bool have_left(int link, uint64_t before) const = 0;
  // Until at least one byte has moved; appends to `arrivals`. Not to be called when idle.
  virtual Status advance(std::vector<Arrival>* arrivals) = 0;
  // Moves what it can without waiting.
  virtual Status move(std::vector<Arrival>* arrivals) = 0;
  // Until everything that was queued has been sent and received; tags are not reported.
  Status drain();

 protected:
  // Moves the arrivals of empty messages, which are there at once.
  void report_empty(std::vector<Arrival>* arrivals);

  size_t pending_ = 0;   // pieces that are queued, and not done
  uint64_t queued_ = 0;  // to be sent, ever
  std::vector<Arrival> at_once_;
};

}  // namespace hvd
