// SPDX-License-Identifier: Apache-2.0
// Steps: with which peers of a mesh something is pending (step 7). In step s a member sends to the one that is s places
// further on, and receives from the one that is s places behind, so that members do not all send to the same one. Only
// steps with something to do are looked at: among a thousand members, most have nothing.
#pragma once

#include <algorithm>
#include <vector>

namespace hvd {

class Steps {
 public:
  Steps(int member, int size) : member_(member), size_(size), is_busy_(static_cast<size_t>(size), false) {}

  int to(int step) const { return (member_ + step) % size_; }
  int from(int step) const { return (member_ + size_ - step) % size_; }
  void add_send(int to) { add((to + size_ - member_) % size_); }
  void add_receive(int from) { add((member_ + size_ - from) % size_); }

  // Those that were added and have not been dropped, ascending.
  const std::vector<int>& busy() const { return busy_; }
  template <class IsIdle>
  void drop_if(const IsIdle& is_idle) {
    std::erase_if(busy_, [&](int step) {
      const bool idle = is_idle(step);
      if (idle) is_busy_[static_cast<size_t>(step)] = false;
      return idle;
    });
  }

 private:
  void add(int step) {
    if (is_busy_[static_cast<size_t>(step)]) return;
    is_busy_[static_cast<size_t>(step)] = true;
    busy_.insert(std::ranges::lower_bound(busy_, step), step);
  }

  int member_, size_;
  std::vector<bool> is_busy_;  // by step
  std::vector<int> busy_;
};

}  // namespace hvd
