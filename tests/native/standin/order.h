// SPDX-License-Identifier: Apache-2.0
// Which accesses to memory have an order: vector clocks of streams, of events and of the host. One lock guards all of
// it; the caller holds it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace standin {

using Clock = std::map<int, uint64_t>;  // of an actor, up to which of its steps something is known

inline void merge(Clock& into, const Clock& from) {
  for (const auto& [actor, step] : from) into[actor] = std::max(into[actor], step);
}

class Order {
 public:
  // The next step of an actor, which knows what the host knows by now.
  void begin(int actor, Clock& clock) {
    merge(clock, host_);
    ++clock[actor];
  }
  void host_learns(const Clock& clock) { merge(host_, clock); }

  void touch(int actor, Clock& clock, const void* memory, size_t bytes, bool writes, const std::string& what) {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    for (const Access& other : accesses_) {
      const bool overlaps = other.begin < begin + bytes && begin < other.end;
      if (!overlaps || !(writes || other.writes) || clock[other.actor] >= other.step) continue;
      races_ += what + " on stream " + std::to_string(actor) + " is not ordered after " + other.what + " on stream " +
                std::to_string(other.actor) + "\n";
    }
    accesses_.push_back({begin, begin + bytes, writes, actor, clock[actor], what});
    if (accesses_.size() >= tidy_at_) tidy();
  }

  void forget() { accesses_.clear(); }
  // A range whose next use the driver itself orders.
  void forget(const void* memory, size_t bytes) {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    std::erase_if(accesses_, [&](const Access& a) { return a.begin < begin + bytes && begin < a.end; });
  }
  std::string take_races() { return std::exchange(races_, {}); }

 private:
  struct Access {
    uintptr_t begin, end;
    bool writes;
    int actor;
    uint64_t step;
    std::string what;
  };

  // What the host knows to have ended comes before all that is still to begin.
  void tidy() {
    std::erase_if(accesses_, [&](const Access& a) { return host_[a.actor] >= a.step; });
    tidy_at_ = std::max<size_t>(1024, 2 * accesses_.size());
  }

  Clock host_;
  std::vector<Access> accesses_;
  size_t tidy_at_ = 1024;
  std::string races_;
};

}  // namespace standin
