// SPDX-License-Identifier: Apache-2.0
// Alltoall over several hosts with several members on some of them (step 7): directly inside the host. Data for another
// host goes to the leader, from there to the other host's leader, and from that leader to its member.
//
// One object is one operation. Borrows everything; blocks and fails as the inner communicators do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "communicators/registry.h"
#include "platform/kept_memory.h"

namespace hvd {

// Pieces of data, one for each pair of source and destination, one after the other in some order.
class Pieces {
 public:
  explicit Pieces(int members)
      : members_(static_cast<size_t>(members)), at_(members_ * members_, 0), placed_(members_ * members_, false) {}
  void add(int source, int destination, int64_t bytes) {
    at_[index(source, destination)] = bytes_;
    placed_[index(source, destination)] = true;
    bytes_ += bytes;
  }
  bool has(int source, int destination) const { return placed_[index(source, destination)]; }
  int64_t at(int source, int destination) const { return at_[index(source, destination)]; }
  int64_t bytes() const { return bytes_; }

 private:
  size_t index(int source, int destination) const {
    return static_cast<size_t>(source) * members_ + static_cast<size_t>(destination);
  }
  size_t members_;
  std::vector<int64_t> at_;
  std::vector<bool> placed_;
  int64_t bytes_ = 0;
};

class HierarchicalAlltoall {
 public:
  struct Inner {
    Communicator& inside;
    Communicator* between;  // null if this member leads no host
  };
  // `by_host`: all members, host by host. `bytes`: as Communicator::alltoall has it.
  HierarchicalAlltoall(const Members& members, const std::vector<int>& by_host, const Kernels& kernels, Inner inner,
                       std::span<const int64_t> bytes);
  Status run(const std::byte* input, std::byte* output);

 private:
  using Bytes = Exchanged<std::byte>;
  static constexpr size_t kLeader = 0;  // among the members of a host

  const Topology& topology() const { return members_.topology; }
  int size() const { return members_.size(); }
  int here() const { return members_.host(); }
  int member() const { return members_.member; }
  bool leads() const { return inner_.between != nullptr; }
  const std::vector<int>& locals() const { return topology().ranks_of(here()); }
  int64_t length(int source, int destination) const {
    return bytes_[static_cast<size_t>(source) * static_cast<size_t>(size()) + static_cast<size_t>(destination)];
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) const {
    kernels_.copy(to, from, static_cast<size_t>(bytes), false);
  }

  Status exchange_inside(const std::byte* input, std::byte* output);
  Status send_up(const std::byte* input, Bytes* collected);
  Status send_across(const Bytes& collected, Bytes* arrived);
  Status hand_down(const Bytes& arrived, std::byte* output);

  const Members& members_;
  const std::vector<int>& by_host_;
  const Kernels& kernels_;
  const Inner inner_;
  const std::span<const int64_t> bytes_;
  Pieces inputs_, outputs_;  // of this member
  // At a leader: the data that its host gives to other hosts and gets from them.
  Pieces collected_, arrivals_;
};

}  // namespace hvd
