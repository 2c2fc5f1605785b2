// SPDX-License-Identifier: Apache-2.0
// Topology: which rank is on which host (step 7, and the engine's start). Every rank has the same one. A host is a
// group of ranks that share memory, whatever its name. Immutable; use it from any thread.
#pragma once

#include <span>
#include <vector>

namespace hvd {

class Topology {
 public:
  Topology() = default;
  // One number for each rank, equal if two ranks are on one host. Here hosts are numbered by their lowest rank.
  explicit Topology(const std::vector<int>& host_of_rank);
  static Topology on_one_host(int ranks) { return Topology(std::vector<int>(static_cast<size_t>(ranks), 0)); }

  int size() const { return static_cast<int>(host_of_rank_.size()); }
  int hosts() const { return static_cast<int>(ranks_of_host_.size()); }
  int host_of(int rank) const { return host_of_rank_[static_cast<size_t>(rank)]; }
  const std::vector<int>& host_of_rank() const { return host_of_rank_; }
  // Ascending; the first one is the host's leader.
  const std::vector<int>& ranks_of(int host) const { return ranks_of_host_[static_cast<size_t>(host)]; }
  int leader_of(int host) const { return ranks_of(host).front(); }
  int local_rank_of(int rank) const { return local_rank_[static_cast<size_t>(rank)]; }
  // One host, or one rank on each: then a fold over hosts of folds inside hosts is just one fold.
  bool is_flat() const { return hosts() <= 1 || hosts() == size(); }

  // The topology of some of the ranks (ascending), which are numbered by their place among them.
  Topology among(std::span<const int> ranks) const;

 private:
  std::vector<int> host_of_rank_;
  std::vector<int> local_rank_;
  std::vector<std::vector<int>> ranks_of_host_;
};

}  // namespace hvd
