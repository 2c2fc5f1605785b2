// SPDX-License-Identifier: Apache-2.0
// Virtual time: the events of a simulation in the order of (time, sequence), and its one source of chance. So one seed
// is one run.
#pragma once

#include <cstdint>
#include <queue>
#include <random>
#include <utility>

namespace hvd {

class EventQueue {
 public:
  // `target`: a rank (kSubmit, kDrive, kThaw), a host (kSpeak, kTake, kPoison), a frame (kReach), a batch, a fault, a
  // loss.
  enum class What : uint8_t { kSubmit, kDrive, kThaw, kSpeak, kReach, kTake, kBatchEnd, kFault, kNotice, kPoison };
  struct Event {
    uint64_t time_ns = 0, sequence = 0;
    What what = What::kSubmit;
    int32_t target = 0;
    bool operator<(const Event& other) const {  // the queue gives the greatest first
      return std::pair(time_ns, sequence) > std::pair(other.time_ns, other.sequence);
    }
  };

  explicit EventQueue(uint64_t seed) : random_(seed) {}

  uint64_t now_ns() const { return now_ns_; }
  uint64_t happened() const { return happened_; }
  bool is_empty() const { return events_.empty(); }
  std::mt19937_64& random() { return random_; }
  uint64_t draw(uint64_t from, uint64_t to) { return std::uniform_int_distribution<uint64_t>(from, to)(random_); }

  void at(uint64_t time_ns, What what, int target) { events_.push({time_ns, sequence_++, what, target}); }
  void in(uint64_t ns, What what, int target) { at(now_ns_ + ns, what, target); }
  // Not empty. Time goes on to that event.
  Event next() {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.time_ns;
    ++happened_;
    return event;
  }

 private:
  std::priority_queue<Event> events_;
  std::mt19937_64 random_;
  uint64_t now_ns_ = 0, sequence_ = 0, happened_ = 0;
};

}  // namespace hvd
