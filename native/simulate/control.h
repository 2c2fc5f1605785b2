// SPDX-License-Identifier: Apache-2.0
// The way of frames between leaders in virtual time. A leader's processor is one resource: it is busy for each frame
// that it sends and for each that it takes, in order. Its link carries one frame at a time in each direction. A frame
// takes a latency that is drawn, and never overtakes another one of the same two hosts.
//
// A frame has an event kReach, when it is at the host's link. Its processor takes one frame after the other: an event
// kTake of the host, when it is done with the first one that waits. The next one's turn comes with go_on().
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simulate/hosts.h"
#include "simulate/queue.h"

namespace hvd {

struct ControlModel {
  double bytes_per_ns = 1.25;                                    // 10 Gbit/s
  uint64_t least_latency_ns = 15'000, most_latency_ns = 40'000;  // of a frame, drawn
  uint64_t send_ns = 3'000, receive_ns = 3'000;                  // of a frame
  uint64_t request_ns = 3'700, request_rank_ns = 270;            // what else a request takes, and each rank in it
  uint64_t entry_ns = 11;                                        // ... and an entry that is complete on a host
};

class ControlNetwork {
 public:
  static constexpr size_t kHeaderBytes = 5;  // of a frame
  struct Arriving {
    int from = 0, to = 0;
    uint64_t here_ns = 0;  // when its last byte is off the link
    Frame frame;
  };

  ControlNetwork(EventQueue& queue, ControlModel model, int hosts)
      : queue_(queue), model_(model), hosts_(static_cast<size_t>(hosts)) {}

  // The sender's processor is busy from now on, or from when it has the time.
  void send(int from, int to, Frame frame);
  // At an event kReach.
  void reach(int frame);
  // At an event kTake, or later, but before go_on().
  Arriving take(int host);
  void go_on(int host);

  uint64_t busy_until_ns(int host) const { return at(host).busy_until_ns; }
  // kTake comes.
  bool is_serving(int host) const { return !at(host).inbox.empty(); }
  // The first one is the last of those that a leader takes before it speaks: they were all there when it looked.
  bool ends_turn(int host) const { return at(host).turn == 1; }
  uint64_t busy_ns(int host) const { return at(host).busy_ns; }

  // Faults.
  void slow(int host, double factor) { at(host).factor = factor; }
  void delay(int host, uint64_t ns) { at(host).delay_ns = ns; }
  void cut(int host) { at(host).is_cut = true; }
  bool is_any_cut() const { return std::ranges::any_of(hosts_, &Host::is_cut); }
  // Of a message between the two hosts that are delayed most.
  uint64_t longest_delay_ns() const;

 private:
  struct Host {
    uint64_t busy_until_ns = 0, busy_ns = 0;
    uint64_t out_free_ns = 0, in_free_ns = 0;  // its link
    uint64_t delay_ns = 0;
    double factor = 1;
    bool is_cut = false;
    std::deque<int> inbox;  // frames; the first one is with the processor
    size_t turn = 0;        // how many of them are of this turn
  };
  Host& at(int host) { return hosts_[static_cast<size_t>(host)]; }
  const Host& at(int host) const { return hosts_[static_cast<size_t>(host)]; }
  uint64_t wire_ns(const Frame& frame) const;
  uint64_t taking_ns(const Frame& frame) const;
  void work(Host* host, uint64_t from_ns, uint64_t ns);
  void begin(int host);

  EventQueue& queue_;
  const ControlModel model_;
  std::vector<Host> hosts_;
  std::vector<Arriving> frames_;  // under way; with gaps
  std::vector<int> gaps_;
  std::unordered_map<uint64_t, uint64_t> last_at_;  // by sender and receiver: when the last frame is there
};

}  // namespace hvd
