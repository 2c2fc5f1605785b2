// SPDX-License-Identifier: Apache-2.0
// How operations end that cannot be completed: interrupted members return soon, a lost TCP peer is named; and sockets
// that carry a byte at a time only cost time.
#include <linux/filter.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "members.h"
#include "platform/clock.h"
#include "transport/tcp/mesh.h"

namespace {

using hvd::Communicator;
using hvd::Slice;
using hvd::Status;
using members::Wire;
using members::World;

using Values = std::vector<float>;

struct Operation {
  const char* name;
  size_t floats;  // what `values` holds beforehand, for one member
  bool gathers;   // `values` holds that much of every member
  std::function<Status(Communicator&, Values&, const Values& mine)> run;

  Status prepare_and_run(Communicator& communicator, std::atomic<int>* inside) const {
    const Values mine(floats, 1.0f);
    Values values(gathers ? floats * static_cast<size_t>(communicator.size()) : floats, 1.0f);
    if (inside != nullptr) ++*inside;
    return run(communicator, values, mine);
  }
};

Slice whole(Values& values) {
  std::byte* const data = reinterpret_cast<std::byte*>(values.data());
  return {data, data, static_cast<int64_t>(values.size())};
}

Status allreduce(Communicator& communicator, Values& values, const Values&) {
  const Slice slice = whole(values);
  return communicator.allreduce({&slice, 1}, {HVD_FLOAT32, HVD_SUM});
}
Status broadcast(Communicator& communicator, Values& values, const Values&) {
  const Slice slice = whole(values);
  return communicator.broadcast({&slice, 1}, 4, 0);
}
Status exchange(Communicator& communicator, Values& values, const Values& mine) {
  return communicator.exchange(mine.data(), mine.size() * 4, values.data());
}
Status allgather(Communicator& communicator, Values& values, const Values& mine) {
  const std::vector<int64_t> bytes(static_cast<size_t>(communicator.size()), static_cast<int64_t>(mine.size()) * 4);
  return communicator.allgather(mine.data(), bytes, values.data());
}
Status barrier(Communicator& communicator, Values&, const Values&) { return communicator.barrier(); }

// Each of them needs member 0.
std::vector<Operation> operations() {
  return {{"allreduce", 3, false, allreduce},
          {"allreduce", 2000, false, allreduce},
          {"allreduce", 3'000'000, false, allreduce},
          {"broadcast", 1'000'000, false, broadcast},
          {"exchange", 1000, true, exchange},
          {"allgather", 1'000'000, true, allgather},
          {"barrier", 0, false, barrier}};
}

// Member 0 keeps out of the operation; once all others are in it, the generation is poisoned.
void interrupt_one(Wire wire, const members::Hosts& hosts, const Operation& operation,
                   const hvd::CommunicatorSettings& settings = {}) {
  const int n = static_cast<int>(hosts.size());
  World world(wire, hosts);
  std::atomic<int> inside{0};
  std::atomic<int64_t> raised_ns{0};
  members::run_threads(world, settings, [&](Communicator& communicator) {
    if (communicator.member() == 0) {
      while (inside.load() < n - 1) std::this_thread::yield();
      raised_ns = static_cast<int64_t>(hvd::now_ns());
      world.raise();
      return;
    }
    const Status status = operation.prepare_and_run(communicator, &inside);
    const int64_t ended_ns = static_cast<int64_t>(hvd::now_ns());
    EXPECT(status.code() == HVD_ABORTED || status.code() == HVD_RANK_LOST);
    EXPECT(status.text().find(operation.name) != std::string::npos);
    EXPECT(ended_ns - raised_ns.load() < promised_ns(500));
  });
}

TEST(a_raised_interrupt_ends_every_operation_on_every_member) {
  for (Wire wire : {Wire::kShm, Wire::kTcp}) {
    for (const Operation& operation : operations()) {
      for (size_t n : {2, 4}) interrupt_one(wire, members::Hosts(n, 0), operation);
    }
  }
  for (const members::Hosts& hosts :
       {members::Hosts{0, 0, 1, 1}, members::Hosts{0, 0, 0, 1}, members::Hosts{0, 1, 1}}) {
    for (const Operation& operation : operations()) interrupt_one(Wire::kHierarchical, hosts, operation);
  }
  hvd::CommunicatorSettings in_groups;
  in_groups.group_hosts = 2;
  for (const members::Hosts& hosts : {members::Hosts{0, 1, 2, 3, 4}, members::Hosts{0, 0, 1, 1, 2, 2, 3, 3}}) {
    const Wire wire = hosts[1] == 0 ? Wire::kHierarchical : Wire::kTcp;
    for (const Operation& operation : operations()) interrupt_one(wire, hosts, operation, in_groups);
  }
}

// At any moment of a stream of operations, not only when everybody has been waiting for long.
TEST(an_interrupt_amid_running_operations_ends_all_members) {
  struct Case {
    Wire wire;
    members::Hosts hosts;
    int group_hosts;
  };
  for (const Case& one :
       {Case{Wire::kShm, {0, 0, 0}, 0}, Case{Wire::kTcp, {0, 0, 0}, 0}, Case{Wire::kTcp, {0, 1, 2, 3, 4}, 2}}) {
    hvd::CommunicatorSettings settings;
    settings.group_hosts = one.group_hosts;
    for (int enough : {1, 7, 40}) {
      World world(one.wire, one.hosts, 2);
      std::atomic<int64_t> raised_ns{0};
      members::run_threads(world, settings, [&](Communicator& communicator) {
        Status status;
        for (int i = 0; status.ok(); ++i) {
          if (i == enough && communicator.member() == 1) {
            raised_ns = static_cast<int64_t>(hvd::now_ns());
            world.raise();
          }
          if (raised_ns.load() != 0 && communicator.member() == 1) return;
          status = operations()[static_cast<size_t>(i % 2)].prepare_and_run(communicator, nullptr);
        }
        EXPECT(status.code() == HVD_ABORTED || status.code() == HVD_RANK_LOST);
        EXPECT(static_cast<int64_t>(hvd::now_ns()) - raised_ns.load() < promised_ns(500));
      });
    }
  }
}

TEST(an_interrupt_ends_the_start_of_shared_memory) {
  World world(Wire::kShm, 2);
  std::thread other([&] { world.raise(); });
  std::unique_ptr<Communicator> communicator;
  const Status status = world.make(0, {}, &communicator);
  other.join();
  EXPECT(status.code() == HVD_ABORTED && status.text().find("rank 11") != std::string::npos);
}

void close_one(const members::Hosts& hosts, int group_hosts) {
  const int n = static_cast<int>(hosts.size());
  hvd::CommunicatorSettings settings;
  settings.group_hosts = group_hosts;
  for (const Operation& operation : operations()) {
    World world(Wire::kTcp, hosts);
    std::atomic<int> inside{0};
    members::run_threads(world, settings, [&](Communicator& communicator) {
      if (communicator.member() == 0) {
        while (inside.load() < n - 1) std::this_thread::yield();
        return;  // closes its sockets
      }
      const Status status = operation.prepare_and_run(communicator, &inside);
      // Another member may see member 1 leave first, after that one has failed because of member 0.
      EXPECT(status.code() == HVD_RANK_LOST);
      EXPECT(status.failed_rank() >= 10 && status.failed_rank() < 10 + n);
      EXPECT(status.text().find("rank " + std::to_string(status.failed_rank())) != std::string::npos);
      EXPECT(status.text().find(operation.name) != std::string::npos);
      if (status.failed_rank() != 10) return;
      ++world.scratch();
    });
    EXPECT(world.scratch().load() >= 1);  // whoever failed first named the culprit
  }
}

TEST(a_tcp_peer_that_closes_is_named) {
  close_one({0, 0, 0}, 0);
  close_one({0, 1, 2, 3, 4}, 2);
}

// Its kernel drops what comes for this socket, as if the machine were cut off; what it sends still goes out.
void cut_off(int fd) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop};
  EXPECT(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
}

TEST(a_peer_whose_machine_is_silent_is_lost_after_the_time_that_was_set_and_not_before) {
  struct Case {
    uint64_t timeout_ms;
    bool is_cut_off;
    int silent_ms;
    bool is_lost;
  };
  // A machine that has nothing to acknowledge is not silent. The last: for ever.
  for (const Case& one :
       {Case{300, true, 60'000, true}, {300, false, 3500, false}, {6000, true, 3000, false}, {0, true, 800, false}}) {
    if (kEmulated && one.is_cut_off) continue;  // no SO_ATTACH_FILTER
    const members::Pair pair = members::connected_tcp();
    auto links = std::make_shared<hvd::DataLinks>(std::vector<std::vector<int>>{{}, {pair.a}});
    links->lose_after(one.timeout_ms);
    hvd::TcpMesh mesh(links, 0, {0, 1}, {});
    EXPECT(mesh.open().ok());
    if (one.is_cut_off) cut_off(pair.b);
    mesh.begin("allreduce");
    std::array<std::byte, 4> data{};
    mesh.receive(1, 0, data.data(), data.size());
    std::atomic<bool> is_lost{false};
    std::thread peer([&] {
      for (int turn = 0; turn < one.silent_ms / 10 && !is_lost; ++turn) hvd::sleep_ms(10);
      EXPECT(write(pair.b, "1234", 4) == 4);
    });
    const Status status = mesh.drain();
    is_lost = true;
    peer.join();
    EXPECT(status.ok() != one.is_lost);
    if (!status.ok()) {
      EXPECT(status.code() == HVD_RANK_LOST && status.failed_rank() == 1);
      EXPECT(status.text().find("its host has acknowledged nothing for ") != std::string::npos);
    }
    close(pair.b);
  }
}

TEST(a_full_window_is_no_silence) {
  const members::Pair pair = members::connected_tcp();
  auto links = std::make_shared<hvd::DataLinks>(std::vector<std::vector<int>>{{}, {pair.a}});
  links->lose_after(300);
  hvd::TcpMesh mesh(links, 0, {0, 1}, {});
  EXPECT(mesh.open().ok());
  mesh.begin("allreduce");
  std::vector<std::byte> data(size_t{32} << 20);  // more than the windows hold
  mesh.send(1, 0, data.data(), data.size());
  std::thread peer([&, read_by_peer = std::vector<std::byte>(data.size())]() mutable {
    hvd::sleep_ms(4500);  // the kernel asks after 0.2, 0.6, 1.4 and 3 s, and then at 6.2
    for (size_t done = 0; done < data.size();) {
      const ssize_t count = read(pair.b, read_by_peer.data(), read_by_peer.size());
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
  });
  EXPECT(mesh.drain().ok());
  shutdown(pair.b, SHUT_RDWR);
  peer.join();
  close(pair.b);
}

TEST(data_links_that_do_not_fit_are_refused) {
  World world(Wire::kTcp, 2, 0);
  std::unique_ptr<Communicator> communicator;
  const Status status = world.make(0, {}, &communicator);
  EXPECT(status.code() == HVD_INVALID_ARGUMENT && status.text().find("rank 11") != std::string::npos);
}

// ---- a wire that carries one byte at a time

class Relays {
 public:
  ~Relays() {
    for (std::thread& thread : threads_) thread.join();
  }
  members::Pair connect() {
    const members::Pair near = members::connected_tcp(), far = members::connected_tcp();
    forward(near.b, far.a);
    forward(far.a, near.b);
    return {near.a, far.b};
  }

 private:
  void forward(int from, int to) {
    threads_.emplace_back([from = dup(from), to = dup(to)] {
      const int on = 1;
      setsockopt(to, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      std::byte byte;
      while (read(from, &byte, 1) == 1 && send(to, &byte, 1, MSG_NOSIGNAL) == 1) {
      }
      shutdown(to, SHUT_WR);
      close(from);
      close(to);
    });
    close_later_.push_back(from);
    if (close_later_.size() % 2 == 0) {
      close(close_later_[close_later_.size() - 1]);
      close(close_later_[close_later_.size() - 2]);
    }
  }
  std::vector<std::thread> threads_;
  std::vector<int> close_later_;
};

TEST(a_wire_that_carries_single_bytes_changes_no_result) {
  Relays relays;
  World world(Wire::kTcp, 3, 1, [&] { return relays.connect(); });
  members::run_threads(world, {}, [&](Communicator& communicator) {
    for (int count : {1, 7, 2500, 5003}) {
      std::vector<int32_t> values(static_cast<size_t>(count));
      for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = i * (communicator.member() + 1);
      std::byte* const data = reinterpret_cast<std::byte*>(values.data());
      const Slice slices[] = {{data, data, count / 2}, {data + count / 2 * 4, data + count / 2 * 4, count - count / 2}};
      EXPECT(communicator.allreduce(slices, {HVD_INT32, HVD_SUM}).ok());
      int wrong = 0;
      for (int i = 0; i < count; ++i) wrong += values[static_cast<size_t>(i)] != 6 * i;
      EXPECT(wrong == 0);
      EXPECT(communicator.broadcast(slices, 4, 2).ok());
      EXPECT(communicator.barrier().ok());
    }
  });
}

}  // namespace

TEST_MAIN
