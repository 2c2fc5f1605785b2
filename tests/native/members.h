// SPDX-License-Identifier: Apache-2.0
// Runs n members of a transport, as threads over one mapping (what a thread sanitizer can see) or as forked processes
// over a shared one. Sockets are TCP over loopback on ports the kernel chooses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "platform/interrupt.h"
#include "transport/factories.h"

namespace members {

enum class Wire { kShm, kTcp };

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

struct Pair {
  int a, b;
};
inline Pair connected_tcp() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  require(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 1) == 0, "listen");
  require(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  Pair pair{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1};
  require(connect(pair.a, reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
  pair.b = accept(listener, nullptr, nullptr);
  require(pair.b >= 0, "accept");
  close(listener);
  return pair;
}

// What n members share: memory, sockets, the interrupt. World ranks are 10, 11, ... so that they are not mistaken for
// members.
class World {
 public:
  World(Wire wire, int n, int links = 1, std::function<Pair()> connect = connected_tcp) : wire_(wire), size_(n) {
    bytes_ = 4096 + (wire == Wire::kShm ? hvd::shm_transport_bytes(n) : 0);
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(mapped != MAP_FAILED, "mmap");
    page_ = static_cast<std::byte*>(mapped);
    require(pipe(event_) == 0, "pipe");
    for (int m = 0; m < n; ++m) world_ranks_.push_back(10 + m);
    sockets_.assign(static_cast<size_t>(n), std::vector<std::vector<int>>(static_cast<size_t>(n)));
    for (size_t a = 0; wire == Wire::kTcp && a < static_cast<size_t>(n); ++a) {
      for (size_t b = a + 1; b < static_cast<size_t>(n); ++b) {
        for (int i = 0; i < links; ++i) {
          const Pair pair = connect();
          sockets_[a][b].push_back(pair.a);
          sockets_[b][a].push_back(pair.b);
        }
      }
    }
  }
  ~World() {
    for (auto& of_member : sockets_) close_all(of_member);
    close(event_[0]);
    close(event_[1]);
    munmap(page_, bytes_);
  }

  int size() const { return size_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  std::atomic<uint64_t>& word() { return *reinterpret_cast<std::atomic<uint64_t>*>(page_); }
  std::atomic<uint64_t>& scratch() { return *reinterpret_cast<std::atomic<uint64_t>*>(page_ + 128); }
  void raise() {
    word().store(1);
    require(write(event_[1], "x", 1) == 1, "write");
  }
  hvd::Status make(int member, const hvd::TransportOptions& options, std::unique_ptr<hvd::Transport>* out) {
    const hvd::Interrupt interrupt{&word(), event_[0]};
    if (wire_ == Wire::kShm)
      return hvd::make_shm_transport(page_ + 4096, member, world_ranks_, options, interrupt, out);
    auto mine = std::move(sockets_[static_cast<size_t>(member)]);
    sockets_[static_cast<size_t>(member)].clear();
    return hvd::make_tcp_transport(std::move(mine), member, world_ranks_, options, interrupt, out);
  }
  // In a forked member: the other members' ends must not stay open here, or nobody would see them close.
  void keep_only(int member) {
    for (int m = 0; m < size_; ++m) {
      if (m != member) close_all(sockets_[static_cast<size_t>(m)]);
    }
  }

 private:
  static void close_all(std::vector<std::vector<int>>& sockets) {
    for (auto& of_peer : sockets) {
      for (int fd : of_peer) close(fd);
    }
    sockets.clear();
  }

  const Wire wire_;
  const int size_;
  size_t bytes_;
  std::byte* page_;
  int event_[2];
  std::vector<int> world_ranks_;
  std::vector<std::vector<std::vector<int>>> sockets_;  // [member][peer]
};

using Body = std::function<void(hvd::Transport&)>;

inline void run_one(World& world, int member, const hvd::TransportOptions& options, const Body& body) {
  std::unique_ptr<hvd::Transport> transport;
  const hvd::Status status = world.make(member, options, &transport);
  if (!status.ok()) std::printf("member %d: %s\n", member, status.text().c_str());
  EXPECT(status.ok());
  if (status.ok()) body(*transport);
}

inline void run_threads(World& world, const hvd::TransportOptions& options, const Body& body) {
  std::vector<std::thread> threads;
  for (int m = 0; m < world.size(); ++m) threads.emplace_back([&, m] { run_one(world, m, options, body); });
  for (std::thread& thread : threads) thread.join();
}

inline void run_processes(World& world, const hvd::TransportOptions& options, const Body& body) {
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int m = 0; m < world.size(); ++m) {
    const pid_t child = fork();
    require(child >= 0, "fork");
    if (child == 0) {
      check::failures() = 0;
      alarm(120);  // a member that hangs must not outlive the test
      world.keep_only(m);
      run_one(world, m, options, body);
      std::fflush(stdout);
      _exit(check::failures() == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int m = 0; m < world.size(); ++m) world.keep_only(-1);
  for (pid_t child : children) {
    int status = -1;
    require(waitpid(child, &status, 0) == child, "waitpid");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

}  // namespace members
