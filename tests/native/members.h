// SPDX-License-Identifier: Apache-2.0
// Runs n members of a communicator, as threads over one mapping (what a thread sanitizer can see) or as forked
// processes over a shared one. Sockets are TCP over loopback on ports the kernel chooses.
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
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "communicators/hierarchical/hierarchical.h"
#include "communicators/mpi/mesh.h"
#include "communicators/registry.h"
#include "platform/interrupt.h"
#include "stand_in_mpi.h"

namespace members {

enum class Wire { kShm, kTcp, kHierarchical, kMpi, kHierarchicalMpi };

inline const hvd::CommunicatorRow& row_of(Wire wire) {
  constexpr const char* kNames[] = {"shm", "tcp", "hierarchical", "mpi", "hierarchical-mpi"};
  const char* const name = kNames[static_cast<size_t>(wire)];
  for (const hvd::CommunicatorRow* row : hvd::communicator_rows()) {
    if (std::string(row->name) == name) return *row;
  }
  std::abort();
}

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::abort();
}

struct Pair {
  int a, b;
};
inline Pair connected_tcp_from(uint32_t from) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  require(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 1) == 0, "listen");
  require(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  Pair pair{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1};
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(from);
  require(bind(pair.a, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0, "bind");
  require(connect(pair.a, reinterpret_cast<sockaddr*>(&address), length) == 0, "connect");
  pair.b = accept(listener, nullptr, nullptr);
  require(pair.b >= 0, "accept");
  close(listener);
  return pair;
}
// The ends have different addresses, as on two machines.
inline Pair connected_tcp() { return connected_tcp_from(INADDR_LOOPBACK + 1); }

// The stand-in's library, of the thread of a member.
inline thread_local const hvd::mpi::Library* mpi_of_thread = nullptr;
inline hvd::Status make_over_stand_in(const hvd::Members& members, const hvd::CommunicatorParts& parts,
                                      std::unique_ptr<hvd::Communicator>* out) {
  return hvd::mpi::make_over_mpi(*mpi_of_thread, members, parts, out);
}

// By member; none: all are on one host.
using Hosts = std::vector<int>;

// What n members share: memory, by host, sockets, the interrupt. World ranks are 10, 11, ... so that they are not
// mistaken for members.
class World {
 public:
  int helper_threads = 0;  // of each member, in every operation

  World(Wire wire, int n, int links = 1, std::function<Pair()> connect = connected_tcp, Hosts hosts = {})
      : wire_(wire), row_(row_of(wire)), size_(n), topology_(hosts.empty() ? Hosts(static_cast<size_t>(n), 0) : hosts) {
    bytes_ = 4096;
    for (int host = 0; host < topology_.hosts(); ++host) {
      areas_.push_back(bytes_);
      bytes_ += row_.shared_bytes(topology_, topology_.leader_of(host));
    }
    void* mapped = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(mapped != MAP_FAILED, "mmap");
    page_ = static_cast<std::byte*>(mapped);
    require(pipe(event_) == 0, "pipe");
    for (int m = 0; m < n; ++m) world_ranks_.push_back(10 + m);
    for (int m = 0; m < n; ++m) mpi_ranks_.push_back({&mpi_, 10 + m});
    for (stand_in_mpi::Rank& rank : mpi_ranks_) mpis_.push_back(stand_in_mpi::library_of(&rank));
    sockets_.assign(static_cast<size_t>(n), std::vector<std::vector<int>>(static_cast<size_t>(n)));
    for (int a = 0; a < n; ++a) {
      for (int b = a + 1; b < n; ++b) {
        for (int i = 0; row_.needs_link(topology_, a, b) && i < links; ++i) {
          const Pair pair = connect();
          sockets_[static_cast<size_t>(a)][static_cast<size_t>(b)].push_back(pair.a);
          sockets_[static_cast<size_t>(b)][static_cast<size_t>(a)].push_back(pair.b);
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

  World(Wire wire, Hosts hosts, int links = 1)
      : World(wire, static_cast<int>(hosts.size()), links, connected_tcp, hosts) {}

  int size() const { return size_; }
  stand_in_mpi::Mpi& mpi() { return mpi_; }  // of ranks that are threads
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  std::atomic<uint64_t>& word() { return *reinterpret_cast<std::atomic<uint64_t>*>(page_); }
  std::atomic<uint64_t>& scratch() { return *reinterpret_cast<std::atomic<uint64_t>*>(page_ + 128); }
  void raise() {
    word().store(1);
    require(write(event_[1], "x", 1) == 1, "write");
  }
  hvd::Status make(int member, const hvd::CommunicatorSettings& options, std::unique_ptr<hvd::Communicator>* out) {
    std::vector<std::vector<int>> of_rank(10);
    for (auto& sockets : sockets_[static_cast<size_t>(member)]) of_rank.push_back(std::move(sockets));
    sockets_[static_cast<size_t>(member)].clear();
    hvd::CommunicatorParts parts;
    parts.area = page_ + areas_[static_cast<size_t>(topology_.host_of(member))];
    parts.links = std::make_shared<hvd::DataLinks>(std::move(of_rank));
    parts.settings = options;
    if (helper_threads > 0) {
      parts.settings.helpers = std::make_shared<hvd::Helpers>(helper_threads);
      parts.settings.helpers->always_help();
    }
    parts.interrupt = {&word(), event_[0]};
    const hvd::Members members{world_ranks_, member, topology_};
    if (wire_ != Wire::kMpi && wire_ != Wire::kHierarchicalMpi) return row_.make(members, parts, out);
    stand_in_mpi::of_thread = &mpi_;
    mpi_of_thread = &mpis_[static_cast<size_t>(member)];
    return wire_ == Wire::kMpi ? make_over_stand_in(members, parts, out)
                               : hvd::make_over_hosts(members, parts, make_over_stand_in, out);
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
  const hvd::CommunicatorRow& row_;
  const int size_;
  const hvd::Topology topology_;
  size_t bytes_;
  std::vector<size_t> areas_;  // by host, from the page
  std::byte* page_;
  int event_[2];
  std::vector<int> world_ranks_;
  stand_in_mpi::Mpi mpi_;
  std::vector<stand_in_mpi::Rank> mpi_ranks_;           // by member
  std::vector<hvd::mpi::Library> mpis_;                 // by member
  std::vector<std::vector<std::vector<int>>> sockets_;  // [member][peer]
};

using Body = std::function<void(hvd::Communicator&)>;

inline void run_one(World& world, int member, const hvd::CommunicatorSettings& options, const Body& body) {
  std::unique_ptr<hvd::Communicator> communicator;
  const hvd::Status status = world.make(member, options, &communicator);
  if (!status.ok()) std::printf("member %d: %s\n", member, status.text().c_str());
  EXPECT(status.ok());
  if (status.ok()) body(*communicator);
}

inline void run_threads(World& world, const hvd::CommunicatorSettings& options, const Body& body) {
  std::vector<std::thread> threads;
  for (int m = 0; m < world.size(); ++m) threads.emplace_back([&, m] { run_one(world, m, options, body); });
  for (std::thread& thread : threads) thread.join();
}

inline void run_processes(World& world, const hvd::CommunicatorSettings& options, const Body& body) {
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
