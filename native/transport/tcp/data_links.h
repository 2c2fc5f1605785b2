// SPDX-License-Identifier: Apache-2.0
// DataLinks: the connected sockets of one rank for data, by the world rank at the other end (step 7). Whoever makes a
// mesh takes them from here, so this is the place to open a link when it is first used.
//
// Owns the sockets: they are closed with the last mesh that holds them. Meshes over the same sockets, of a set and of
// some of its members, are used one after the other, in an order that every two members have alike.
#pragma once

#include <utility>
#include <vector>

#include "platform/private_descriptors.h"

namespace hvd {

class DataLinks {
 public:
  // sockets[r]: to rank r, in the same order at both ends; empty if there is no link.
  explicit DataLinks(std::vector<std::vector<int>> sockets) : of_rank_(std::move(sockets)) {}
  ~DataLinks() {
    for (const std::vector<int>& sockets : of_rank_) {
      for (int fd : sockets) close_private(fd);
    }
  }
  DataLinks(const DataLinks&) = delete;
  DataLinks& operator=(const DataLinks&) = delete;

  const std::vector<int>& to(int rank) const {
    static const std::vector<int> none;
    const auto index = static_cast<size_t>(rank);
    return index < of_rank_.size() ? of_rank_[index] : none;
  }

 private:
  const std::vector<std::vector<int>> of_rank_;
};

}  // namespace hvd
