// SPDX-License-Identifier: Apache-2.0
// The monitor: one thread per process, apart from the engine, that notices the deaths of the host's other ranks by
// pidfd (which DataLoader children that hold the same sockets open cannot delay) and, where a pidfd cannot be had, by
// the end of the local socket. It ticks twice a second.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "negotiation/segment.h"
#include "platform/status.h"

namespace hvd {

class Monitor {
 public:
  struct Peer {
    int rank;  // world
    uint32_t local_rank;
    int pid;     // 0: watched by socket only
    int socket;  // -1: none; borrowed
  };
  // on_death(rank, pid) and on_tick() run on the monitor's thread.
  static Status start(Segment& segment, uint32_t local_rank, const std::vector<Peer>& peers,
                      std::function<void(int, int)> on_death, std::function<void()> on_tick,
                      std::unique_ptr<Monitor>* out);
  ~Monitor();  // ends the thread, promptly
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

 private:
  struct Watch {
    Peer peer;
    int fd;
    bool owned;
  };
  Monitor(Segment& segment, uint32_t local_rank, int stop_fd, std::function<void(int, int)> on_death,
          std::function<void()> on_tick);
  void run();

  Segment& segment_;
  const uint32_t local_rank_;
  std::vector<Watch> watches_;
  std::function<void(int, int)> on_death_;
  std::function<void()> on_tick_;
  const int stop_fd_;
  std::thread thread_;
};

}  // namespace hvd
