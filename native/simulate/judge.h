// SPDX-License-Identifier: Apache-2.0
// Checks what must hold at every event of a simulation: an entry is ready only after all that take part have submitted
// it, and all ranks see one order. Keeps the one order, of which each rank knows its place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

class Judge {
 public:
  struct Item {
    uint32_t name = 0, step = 0;
    bool failed = false;
  };

  // `takers`: by step, how many ranks submit each name.
  Judge(size_t names, std::vector<uint32_t> takers)
      : takers_(std::move(takers)), arrived_(takers_.size(), std::vector<uint32_t>(names)), next_step_(names) {}

  void note_submit(size_t step, size_t name) { ++arrived_[step][name]; }
  // A rank has read at this place of the order that the name is ready, or has failed. Returns what is wrong; empty:
  // nothing is.
  std::string note_outcome(size_t place, uint32_t name, bool failed) {
    if (place == order_.size()) {
      const uint32_t step = next_step_[name]++;
      if (step >= takers_.size()) return "ready in no step";
      order_.push_back({name, step, failed});
      if (!failed && arrived_[step][name] != takers_[step]) return "ready before all have submitted";
    }
    const Item& item = order_[place];
    return item.name == name && item.failed == failed ? "" : "two orders";
  }
  const std::vector<Item>& order() const { return order_; }
  // How many outcomes there are in all steps up to this one.
  size_t due(size_t step) const {
    const auto end = takers_.begin() + static_cast<ptrdiff_t>(step) + 1;
    return static_cast<size_t>(end - takers_.begin() - std::count(takers_.begin(), end, 0)) * next_step_.size();
  }

 private:
  const std::vector<uint32_t> takers_;
  std::vector<std::vector<uint32_t>> arrived_;  // by step and name
  std::vector<uint32_t> next_step_;             // by name
  std::vector<Item> order_;
};

}  // namespace hvd
