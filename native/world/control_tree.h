// SPDX-License-Identifier: Apache-2.0
// Which hosts' leaders have control links with each other (step 5). Up to `star_hosts` hosts, every leader has one with
// rank 0's: a star. Above that, hosts form groups of about the square root of their number, and the leader of a group's
// first host is its relay: it speaks with rank 0 for the group. So no leader has many links. Rank 0's host is a group
// of its own. The engine and the start, which opens the links, both use this class, so they agree.
#pragma once

#include <algorithm>
#include <vector>

namespace hvd {

class ControlTree {
 public:
  static constexpr int kStarHosts = 256;  // below it, bench_rank0 took 0.6 ms for a batch of 161 names

  explicit ControlTree(int hosts, int star_hosts = kStarHosts) : hosts_(hosts) {
    while (hosts_ > star_hosts && group_size_ * group_size_ < hosts_ - 1) ++group_size_;
  }

  // Of a star, every host is a group and its own relay.
  int groups() const { return hosts_ == 1 ? 1 : group_of(hosts_ - 1) + 1; }
  int group_of(int host) const { return host == 0 ? 0 : 1 + (host - 1) / group_size_; }
  int relay_of(int group) const { return group == 0 ? 0 : 1 + (group - 1) * group_size_; }
  bool is_relay(int host) const { return relay_of(group_of(host)) == host; }
  // Where a group's last host ends; its hosts follow each other.
  int end_of(int group) const { return group == 0 ? 1 : std::min(hosts_, relay_of(group) + group_size_); }

  // The host to whose leader this one's speaks on its way to rank 0.
  int above(int host) const { return is_relay(host) ? 0 : relay_of(group_of(host)); }
  // Those that speak to this one.
  std::vector<int> below(int host) const {
    std::vector<int> all;
    if (host == 0) {
      for (int group = 1; group < groups(); ++group) all.push_back(relay_of(group));
    } else if (is_relay(host)) {
      for (int other = host + 1; other < end_of(group_of(host)); ++other) all.push_back(other);
    }
    return all;
  }

 private:
  int hosts_;
  int group_size_ = 1;
};

}  // namespace hvd
