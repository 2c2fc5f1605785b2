// SPDX-License-Identifier: Apache-2.0
// Data links that are opened when a collective first uses them: which ones are, and how an operation ends whose links
// cannot be.
#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "members.h"
#include "platform/clock.h"

namespace {

using hvd::Communicator;
using hvd::Slice;
using hvd::Status;
using members::Wire;

constexpr int kLinksPerPeer = 2;

void reply(int socket, int32_t rank, const std::vector<int>& sockets, const std::string& why = {}) {
  iovec parts[] = {{&rank, sizeof rank}, {const_cast<char*>(why.data()), why.size()}};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  if (!sockets.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sockets.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sockets.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), sockets.data(), sockets.size() * sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

// Members of a TCP communicator with an opener each: threads that stand for Python's.
class LazyWorld {
 public:
  // `open(asking rank, other rank)`: the sockets for it, or the reason why not.
  using Open = std::function<std::string(int, int, std::vector<int>*)>;

  explicit LazyWorld(int n, Open open = {}) : open_(std::move(open)) {
    require_pipe();
    for (int m = 0; m < n; ++m) {
      world_ranks_.push_back(10 + m);
      int ends[2];
      members::require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      ends_.push_back({ends[0], ends[1]});
      openers_.emplace_back([this, m, socket = ends[1]] { serve(10 + m, socket); });
    }
  }
  ~LazyWorld() {
    for (std::thread& opener : openers_) opener.join();  // the communicators have closed their ends
    for (auto& [pair, sockets] : parked_) {
      for (int fd : sockets) close(fd);
    }
    close(event_[0]);
    close(event_[1]);
  }

  void run(const std::function<void(Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (size_t m = 0; m < world_ranks_.size(); ++m) {
      threads.emplace_back([&, m] {
        hvd::CommunicatorParts parts;
        parts.links = std::make_shared<hvd::DataLinks>(std::vector<std::vector<int>>(), ends_[m].first, kLinksPerPeer);
        parts.interrupt = {&word_, event_[0]};
        std::unique_ptr<Communicator> communicator;
        const hvd::Topology apart(members::Hosts(world_ranks_.size(), 0));
        const Status made =
            members::row_of(Wire::kTcp).make({world_ranks_, static_cast<int>(m), apart}, parts, &communicator);
        EXPECT(made.ok());
        if (made.ok()) body(*communicator);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void raise() {
    word_.store(1);
    members::require(write(event_[1], "x", 1) == 1, "write");
  }
  std::set<std::pair<int, int>> opened() {
    const std::lock_guard lock(mutex_);
    return opened_;
  }

 private:
  void require_pipe() { members::require(pipe(event_) == 0, "pipe"); }

  void serve(int rank, int socket) {
    int32_t other = -1;
    while (recv(socket, &other, sizeof other, 0) == sizeof other) {
      std::vector<int> sockets;
      const std::string why = open_ ? open_(rank, other, &sockets) : pair_with(rank, other, &sockets);
      if (why != "later") reply(socket, other, sockets, why);
      for (int fd : sockets) close(fd);
    }
    close(socket);
  }
  // The first of two that ask makes the sockets, and parks the other's ends.
  std::string pair_with(int rank, int other, std::vector<int>* sockets) {
    const std::lock_guard lock(mutex_);
    opened_.insert({std::min(rank, other), std::max(rank, other)});
    if (const auto parked = parked_.find({rank, other}); parked != parked_.end()) {
      *sockets = parked->second;
      parked_.erase(parked);
      return {};
    }
    for (int i = 0; i < kLinksPerPeer; ++i) {
      const members::Pair pair = members::connected_tcp();
      sockets->push_back(pair.a);
      parked_[{other, rank}].push_back(pair.b);
    }
    return {};
  }

  Open open_;
  std::vector<int> world_ranks_;
  std::vector<std::pair<int, int>> ends_;
  std::vector<std::thread> openers_;
  std::mutex mutex_;
  std::set<std::pair<int, int>> opened_;
  std::map<std::pair<int, int>, std::vector<int>> parked_;
  std::atomic<uint64_t> word_{0};
  int event_[2];
};

Status sum(Communicator& communicator, size_t floats) {
  std::vector<float> values(floats, 1.0f);
  std::byte* const data = reinterpret_cast<std::byte*>(values.data());
  const Slice slice{data, data, static_cast<int64_t>(floats)};
  const Status status = communicator.allreduce({&slice, 1}, {HVD_FLOAT32, HVD_SUM});
  if (status.ok()) {
    EXPECT(std::ranges::all_of(values, [&](float v) { return v == static_cast<float>(communicator.size()); }));
  }
  return status;
}

TEST(a_broadcast_opens_the_links_of_its_tree_or_its_line_alone) {
  using Links = std::set<std::pair<int, int>>;
  for (const auto& [floats, links] :
       {std::pair<size_t, Links>{1000, {{10, 11}, {10, 12}, {12, 13}}}, {1'000'000, {{10, 11}, {11, 12}, {12, 13}}}}) {
    LazyWorld world(4);
    world.run([length = floats](Communicator& communicator) {
      std::vector<float> values(length, static_cast<float>(communicator.member()));
      std::byte* const data = reinterpret_cast<std::byte*>(values.data());
      const Slice slice{data, data, static_cast<int64_t>(values.size())};
      EXPECT(communicator.broadcast({&slice, 1}, 4, 0).ok());
      EXPECT(std::ranges::all_of(values, [](float v) { return v == 0.0f; }));
    });
    EXPECT(world.opened() == links);
  }
}

TEST(without_an_operation_no_link_is_opened_and_an_allreduce_opens_all_pairs_once) {
  LazyWorld idle(3);
  idle.run([](Communicator& communicator) { EXPECT(communicator.size() == 3); });
  EXPECT(idle.opened().empty());
  LazyWorld world(3);
  world.run([](Communicator& communicator) {
    for (const size_t floats : {3, 2000, 3'000'000, 3}) EXPECT(sum(communicator, floats).ok());
  });
  EXPECT(world.opened().size() == 3);
}

TEST(a_link_that_cannot_be_opened_is_an_error_of_the_operation_that_names_the_rank) {
  const auto refuse = [](int rank, int other, std::vector<int>*) -> std::string {
    return rank == 11 ? "rank 11 cannot reach rank " + std::to_string(other) + " at 10.0.0.7:99" : "later";
  };
  LazyWorld world(2, refuse);
  world.run([&](Communicator& communicator) {
    const Status status = sum(communicator, 3);
    if (communicator.member() == 1) {
      EXPECT(status.code() == HVD_RANK_LOST && status.failed_rank() == 10);
      EXPECT(status.text() == "allreduce: rank 11 cannot reach rank 10 at 10.0.0.7:99");
      world.raise();  // as the engine does
    } else {
      EXPECT(status.code() == HVD_ABORTED);
    }
  });
}

TEST(an_interrupt_ends_the_wait_for_a_link) {
  LazyWorld world(2, [](int, int, std::vector<int>*) -> std::string { return "later"; });
  std::atomic<int64_t> raised_ns{0};
  world.run([&](Communicator& communicator) {
    if (communicator.member() == 0) {
      raised_ns = static_cast<int64_t>(hvd::now_ns());
      world.raise();
      return;
    }
    EXPECT(sum(communicator, 3).code() == HVD_ABORTED);
    EXPECT(static_cast<int64_t>(hvd::now_ns()) - raised_ns.load() < promised_ns(500));
  });
}

TEST(what_the_opener_gives_is_checked) {
  for (const int32_t given : {10, 12, -1, 1 << 30}) {
    for (const int count : {0, 1, 3}) {
      int ends[2];
      members::require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
      hvd::DataLinks links({}, ends[0], kLinksPerPeer);
      EXPECT(links.want(10).ok() && links.take().ok() && links.to(10).empty());
      const std::vector<int> sockets(static_cast<size_t>(count), ends[1]);
      reply(ends[1], given, sockets);
      EXPECT(links.take().code() == HVD_INTERNAL);
      EXPECT(links.to(10).empty());
      close(ends[1]);
    }
  }
}

TEST(an_opener_that_has_ended_is_an_error) {
  int ends[2];
  members::require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
  hvd::DataLinks links({}, ends[0], kLinksPerPeer);
  EXPECT(links.want(10).ok());
  close(ends[1]);
  EXPECT(links.take().code() == HVD_UNAVAILABLE);
  EXPECT(links.want(11).code() == HVD_UNAVAILABLE);
}

}  // namespace

TEST_MAIN
