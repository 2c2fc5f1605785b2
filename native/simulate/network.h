// SPDX-License-Identifier: Apache-2.0
// A network of simulated hosts in virtual time. Each host is a fiber that runs the shipped collectives over simulated
// meshes (mesh.h); this class has the hosts' clocks, their links, and the events.
//
// A host has one processor and one link. Its processor is busy for `send_ns` for each message that it sends and for
// `receive_ns` for each that it takes (LogGP's o), and for as long as pass() says. Its link carries one message at a
// time in each direction: what is sent leaves in the order of the calls, and arrives `latency_ns` later. Messages that
// arrive at one host together wait for each other. Nothing is lost, and no buffer is full.
//
// Events happen in the order of (time, sequence), so the same bodies always make the same run. One thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "platform/status.h"
#include "simulate/fibers.h"

namespace hvd {

class SimulatedMesh;

struct LinkModel {
  double bytes_per_ns = 1.25;  // 10 Gbit/s
  uint64_t latency_ns = 30'000;
  uint64_t send_ns = 3'000, receive_ns = 3'000;
  int links_per_peer = 2;
};

class Network {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;
  struct Letter {
    SimulatedMesh* to = nullptr;
    int from = 0;  // a member of that mesh
    int link = 0;
    size_t bytes = 0;
    std::vector<std::byte> data;  // empty if the network carries none
  };
  struct Sent {  // by a host
    uint64_t messages = 0, bytes = 0;
  };

  // `carries_data`: messages bring their bytes. Otherwise they only take time, and hosts may share their memory.
  Network(int hosts, LinkModel model, bool carries_data);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Runs body(host) on all hosts at once, until all have returned. Returns the first failure in virtual time, such as
  // that of a host that waits for a message that no host sends. After a success it may be called again: the clocks go
  // on. Throws what a body throws.
  Status run(const std::function<Status(int host)>& body);

  int hosts() const { return static_cast<int>(hosts_.size()); }
  const LinkModel& model() const { return model_; }
  bool carries_data() const { return carries_data_; }
  uint64_t now_ns(int host) const { return at(host).now_ns; }
  uint64_t end_ns() const;  // of the last host
  const Sent& sent_by(int host) const { return at(host).sent; }
  uint64_t events() const { return sequence_; }

  // For what runs on a host. The processor is busy for so long.
  void pass(int host, uint64_t ns) { at(host).now_ns += ns; }
  // Returns when the last byte leaves the host.
  uint64_t send(int host, Letter letter);
  // Blocks until something has come for the host, or until then (kNever: no limit). False: nothing will ever come.
  bool wait(int host, uint64_t until_ns);
  // For a mesh: something has come for the host, now.
  void wake(int host);

 private:
  struct InTransit {
    uint64_t reaches_ns;  // the last byte, at a receiver's link that is free
    Letter letter;
  };
  struct Host {
    std::unique_ptr<Fiber> fiber;
    uint64_t now_ns = 0;  // of its processor: ahead of the events while it is busy
    uint64_t link_out_free_ns = 0, link_in_free_ns = 0;
    uint64_t timer_ns = kNever;
    bool waits = false;
    std::deque<InTransit> in_transit;  // what it has sent; the first one has an event
    std::deque<Letter> arriving;       // on its link, in order; each has an event
    Sent sent;
  };
  enum class What : uint8_t { kTimer, kReaches, kArrives };
  struct Event {
    uint64_t time_ns, sequence;
    What what;
    int host;
    bool operator<(const Event& other) const {  // the queue's top is the largest
      return time_ns != other.time_ns ? time_ns > other.time_ns : sequence > other.sequence;
    }
  };

  Host& at(int host) { return hosts_[static_cast<size_t>(host)]; }
  const Host& at(int host) const { return hosts_[static_cast<size_t>(host)]; }
  uint64_t wire_ns(size_t bytes) const {
    return static_cast<uint64_t>(std::llround(static_cast<double>(bytes) / model_.bytes_per_ns));
  }
  void schedule(uint64_t time_ns, What what, int host) { events_.push({time_ns, sequence_++, what, host}); }
  void set_timer(int host, uint64_t time_ns);
  void happen(const Event& event);
  void reach(int from);
  void arrive(int at_host);
  void resume(int host);
  void end_all();

  const LinkModel model_;
  const bool carries_data_;
  std::vector<Host> hosts_;
  std::priority_queue<Event> events_;
  uint64_t now_ns_ = 0, sequence_ = 0;
  bool stuck_ = false;
  std::exception_ptr thrown_;
};

}  // namespace hvd
