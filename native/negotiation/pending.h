// SPDX-License-Identifier: Apache-2.0
// The messages that a host's leader has yet to send to rank 0 (step 5): the entries that are complete here, and until
// when requests are held back. Threads of the leader's process add to it and look at it; the driver takes it. It has a
// lock, which is never held across anything else. Owned by the leader.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace hvd {

class Pending {
 public:
  struct Size {
    size_t entries = 0;
    uint64_t bytes = 0;
  };
  struct Contents {
    std::vector<uint32_t> ids;
    std::vector<uint32_t> ranks;  // local, each once: whose submission completed one of these
    uint64_t bytes = 0;
    uint64_t since_ns = 0;  // of the oldest; 0: empty
    bool urgent = false;    // the rank that completed the last one waits for it
  };

  Pending() = default;
  // The model checks copy leaders.
  Pending(const Pending& other) {
    const std::lock_guard lock(other.mutex_);
    contents_ = other.contents_;
    hold_until_ns_ = other.hold_until_ns_;
    note();
  }
  Pending& operator=(const Pending&) = delete;

  // Without the lock: drivers ask at every turn, and with one host there is never anything.
  bool is_empty() const { return !anything_.load(); }

  Size add(uint32_t id, uint64_t bytes, uint32_t local_rank, bool urgent, uint64_t now_ns) {
    const std::lock_guard lock(mutex_);
    if (contents_.ids.empty()) contents_.since_ns = now_ns;
    contents_.ids.push_back(id);
    contents_.bytes += bytes;
    contents_.urgent = contents_.urgent || urgent;
    bool known = false;
    for (const uint32_t rank : contents_.ranks) known = known || rank == local_rank;
    if (!known) contents_.ranks.push_back(local_rank);
    note();
    return {contents_.ids.size(), contents_.bytes};
  }
  // `by(contents)` must be quick: the lock is held.
  template <class Look>
  auto look(Look&& by) const {
    const std::lock_guard lock(mutex_);
    return by(contents_);
  }
  Contents take() {
    const std::lock_guard lock(mutex_);
    Contents taken = std::exchange(contents_, {});
    note();
    return taken;
  }
  // Requests are held back, the oldest of them until then; 0: none is.
  void hold_until(uint64_t ns) {
    const std::lock_guard lock(mutex_);
    hold_until_ns_ = ns;
    note();
  }
  uint64_t hold_until_ns() const {
    const std::lock_guard lock(mutex_);
    return hold_until_ns_;
  }

 private:
  void note() { anything_.store(!contents_.ids.empty() || hold_until_ns_ != 0); }

  std::atomic<bool> anything_{false};
  mutable std::mutex mutex_;
  Contents contents_;
  uint64_t hold_until_ns_ = 0;
};

}  // namespace hvd
