// SPDX-License-Identifier: Apache-2.0
// Losses, and how the survivors hear of them, in virtual time. This is a model: the engine's monitor and its ending
// (native/liveness/, native/wakeup/ending.h) are threads over sockets, and do not run here. It keeps their rules:
//
//   a process dies     The others of its host notice at once. Of a leader, those with which it has a control link do,
//                      too: the link ends.
//   a process freezes  The others of its host notice after 3 to 3.5 s. Of a leader, those with which it has a link do
//                      after 5 to 6 s of silence.
//   a host is lost     Those notice after 5 to 6 s of silence. If only its link is cut, its ranks lose the first of
//                      them.
//   a host is delayed  Its next beat comes so much later, and those after it in time again: if that silence is too
//                      long, it is as if the link were cut.
//
// A rank that notices a loss poisons its host; its leader tells all with which it has links (world/control_tree.h),
// which tell theirs. Of several causes the first one counts, as Python settles it in the launcher's rendezvous
// (docs/decisions/0009).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "simulate/control.h"
#include "simulate/queue.h"
#include "world/control_tree.h"
#include "world/topology.h"

namespace hvd {

class Liveness {
 public:
  static constexpr int kNone = -1;
  struct Loss {
    int rank = 0;
    std::string what;
    uint64_t since_ns = 0;
  };

  Liveness(EventQueue& queue, const Topology& topology, const ControlTree& tree, ControlModel model)
      : queue_(queue), topology_(topology), tree_(tree), model_(model), hosts_(static_cast<size_t>(topology.hosts())) {}

  // Schedules who notices it, and when. Events kNotice and kPoison follow.
  void lose_process(int rank);
  void freeze(int rank, uint64_t for_ns);  // UINT64_MAX: for ever
  void lose_host(int host, bool is_cut);
  void delay(int host, uint64_t ns);  // of each message to and from it

  // At an event kNotice or kPoison. Returns the host that is poisoned by it; kNone: it was so before.
  int hear(int message);

  bool is_poisoned(int host) const { return at(host).cause != kNone; }
  bool is_apart(int host) const { return at(host).is_apart; }
  // A survivor has been told.
  void note_told() { last_told_ns_ = queue_.now_ns(); }
  // From the loss until the last survivor had heard of its cause; 0: nothing was lost.
  uint64_t told_after_ns() const {
    return cause() == nullptr || last_told_ns_ == 0 ? 0 : last_told_ns_ - cause()->since_ns;
  }
  // The first cause in the whole job; null: nothing has ended.
  const Loss* cause() const { return settled_ == kNone ? nullptr : &losses_[static_cast<size_t>(settled_)]; }

 private:
  struct Host {
    int cause = kNone;
    bool is_apart = false;  // hears nothing, and is not heard
    bool is_mute = false;   // its leader is gone: the others of the host cannot tell rank 0
    uint64_t delay_ns = 0;
  };
  struct Message {
    int host, loss;
  };

  Host& at(int host) { return hosts_[static_cast<size_t>(host)]; }
  const Host& at(int host) const { return hosts_[static_cast<size_t>(host)]; }
  uint64_t latency_ns(int from, int to) {
    return queue_.draw(model_.least_latency_ns, model_.most_latency_ns) + at(from).delay_ns + at(to).delay_ns;
  }
  int add(int rank, std::string what) {
    losses_.push_back({rank, std::move(what), queue_.now_ns()});
    return static_cast<int>(losses_.size()) - 1;
  }
  void tell(int host, int loss, uint64_t in_ns, EventQueue::What what) {
    messages_.push_back({host, loss});
    queue_.in(in_ns, what, static_cast<int>(messages_.size()) - 1);
  }
  // With whose leaders this host's has control links.
  std::vector<int> linked(int host) const;
  void notice_silence(int host, int loss);
  bool has_others(int rank) const { return topology_.ranks_of(topology_.host_of(rank)).size() > 1; }

  EventQueue& queue_;
  const Topology& topology_;
  const ControlTree& tree_;
  const ControlModel model_;
  std::vector<Host> hosts_;
  std::vector<Loss> losses_;
  std::vector<Message> messages_;
  int settled_ = kNone;
  uint64_t last_told_ns_ = 0;
};

}  // namespace hvd
