// SPDX-License-Identifier: Apache-2.0
// The monitor: one thread per process, apart from the engine, that notices which ranks no longer take part. It wakes
// twice a second, and at once for a death.
//
// Deaths on this host: by pidfd, or, if pidfds are unavailable or the peer is in another PID namespace (a container's),
// by the end of the local socket. A pidfd is better, because DataLoader children that hold the same sockets open cannot
// delay it.
//
// Frozen processes on this host: every monitor counts up its own beat in the segment and looks at the beats of all
// others, so no particular rank must be alive for another to be missed. A beat that stands still for frozen_ms is a
// loss, and /proc tells what kind: stopped by a signal, waiting in the kernel, or merely silent. A process that a
// debugger holds is not a loss to its own host: it is named once. One that would run, if it were given a core, is slow,
// not frozen: a container at its limit, or too many ranks for the machine. It has ten times as long.
//
// Other hosts: leaders that have a control link with each other send a beat a second over a separate link. A side that
// hears nothing for lost_ms takes the other for lost. But if frozen processes are not losses (frozen_ms is 0), a leader
// whose host's kernel still answers is waited for: its process may be stopped. The end of that link means
// nothing here: leaders leave in order as well, and a death ends the control link too. Once the generation is poisoned
// its cause goes over these links as well: an engine inside a collective reads no control link, and may be waiting
// there for the stopped rank.
//
// Silence is measured only while this process runs itself: a monitor that finds that it overslept by a second (Ctrl-Z
// and fg, a machine that was paused) begins all its measurements anew.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host/link.h"
#include "host/segment.h"
#include "platform/status.h"

namespace hvd {

// How long one peer has been silent. Pure.
class Silence {
 public:
  // Returns for how long `beat` has stood still.
  uint64_t observe(uint64_t beat, uint64_t now_ns) {
    if (beat != beat_ || since_ns_ == 0) restart(now_ns);
    beat_ = beat;
    return now_ns - since_ns_;
  }
  void restart(uint64_t now_ns) { since_ns_ = now_ns; }

 private:
  uint64_t beat_ = 0;
  uint64_t since_ns_ = 0;
};

class Monitor {
 public:
  struct Peer {
    int rank;  // world
    uint32_t local_rank;
    int pid;
    int socket;            // -1: none; borrowed
    bool is_known = true;  // by that pid to this process, too; else watched by socket and beats only
  };
  struct FarPeer {
    int rank;
    int socket;  // owned by the monitor from here on
  };
  struct Options {
    std::vector<Peer> peers;
    std::vector<FarPeer> far_peers;
    uint64_t frozen_ms = 3000;  // 0: never
    uint64_t lost_ms = 5000;    // 0: never
    int poison_fd = -1;         // borrowed; readable once the generation is poisoned. Needed with far peers
  };
  // All run on the monitor's thread.
  struct Events {
    std::function<void(int, const std::string&)> on_loss;  // rank, what happened to it
    // Frames that another host's leader sent beside beats; kBeat if it was not a frame.
    std::function<void(int, FrameKind, const std::string&)> on_frame;
    std::function<void(const std::string&)> on_debugger;  // once per time that one holds a peer
    std::function<void()> on_tick;
    std::function<void()> on_pause;  // this process itself did not run for a while
  };
  static Status start(Segment& segment, uint32_t local_rank, Options options, Events events,
                      std::unique_ptr<Monitor>* out);
  ~Monitor();  // ends the thread, promptly
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

 private:
  struct DeathWatch {
    Peer peer;
    int fd;
    bool owned;
  };
  struct BeatWatch {
    Peer peer;
    Silence silence;
    bool over = false;      // lost: said once
    bool debugged = false;  // said
  };
  struct FarWatch {
    SocketLink link;
    uint64_t heard = 0;  // frames
    Silence silence;
    bool over = false;
  };
  Monitor(Segment& segment, uint32_t local_rank, int stop_fd, Options options, Events events);
  void run();
  void tick(uint64_t now);
  void look_at(BeatWatch* watch, uint64_t now);
  void look_at(FarWatch* watch, uint64_t now);
  void receive(FarWatch* watch);
  void tell_cause();
  bool host_answers(int fd) const;
  bool left(const Peer& peer) { return segment_.rank(peer.local_rank).left.load() != 0; }

  Segment& segment_;
  const uint32_t local_rank_;
  const int stop_fd_;
  const uint64_t frozen_ms_, lost_ms_;
  const int poison_fd_;
  const Events events_;
  std::vector<DeathWatch> deaths_;
  std::vector<BeatWatch> beats_;
  std::deque<FarWatch> far_;
  bool cause_told_ = false;
  uint64_t ticked_ns_ = 0;
  uint64_t ticks_ = 0;
  std::thread thread_;
};

}  // namespace hvd
