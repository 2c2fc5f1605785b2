// SPDX-License-Identifier: Apache-2.0
// How much a mesh has under way at once: to how many peers, and in a socket.
#include "transport/tcp/mesh.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <memory>
#include <vector>

#include "members.h"
#include "transport/steps.h"

namespace {

using hvd::Mesh;
using hvd::TcpMesh;

constexpr size_t kBytes = size_t{8} << 20;  // more than a connection holds whose other end does not read

// Member 0 of four. The test is the other ends of its links.
class Sender {
 public:
  explicit Sender(uint32_t address = INADDR_LOOPBACK + 1)
      : data_(kBytes), mesh_(open_links(address), 0, {0, 1, 2, 3}, {}) {
    EXPECT(mesh_.open().ok());
    mesh_.begin("alltoall");
    for (int peer = 1; peer < 4; ++peer) mesh_.send(peer, 0, data_.data(), kBytes);
  }
  ~Sender() {
    for (int peer = 1; peer < 4; ++peer) close(pairs_[static_cast<size_t>(peer)].b);
  }

  void move() {
    std::vector<Mesh::Arrival> arrivals;
    EXPECT(mesh_.move(&arrivals).ok());
  }
  // Whether anything comes to this peer; it is given the time to come if it must.
  bool reaches(int peer, int timeout_ms) const {
    pollfd polled{pairs_[static_cast<size_t>(peer)].b, POLLIN, 0};
    return poll(&polled, 1, timeout_ms) == 1;
  }
  void take_all(int peer) {
    std::vector<std::byte> block(size_t{1} << 20);
    for (size_t taken = 0; taken < kBytes;) {
      move();
      const ssize_t got = recv(pairs_[static_cast<size_t>(peer)].b, block.data(), block.size(), MSG_DONTWAIT);
      if (got > 0) taken += static_cast<size_t>(got);
    }
  }
  TcpMesh& mesh() { return mesh_; }
  int unsent_bytes(int peer) const {
    int bytes = -1;
    EXPECT(ioctl(pairs_[static_cast<size_t>(peer)].a, SIOCOUTQNSD, &bytes) == 0);
    return bytes;
  }

 private:
  std::shared_ptr<hvd::DataLinks> open_links(uint32_t address) {
    std::vector<std::vector<int>> sockets(4);
    for (size_t peer = 1; peer < 4; ++peer) {
      pairs_[peer] = members::connected_tcp_from(address);
      sockets[peer] = {pairs_[peer].a};
    }
    return std::make_shared<hvd::DataLinks>(sockets);
  }

  members::Pair pairs_[4];
  std::vector<std::byte> data_;
  TcpMesh mesh_;
};

// Member 2 of six sends to 3 first, and to 1 last; 1 is the first that it receives from.
TEST(peers_with_something_pending_are_served_in_order_and_no_others) {
  hvd::Steps steps(2, 6);
  for (const int peer : {1, 3, 0}) steps.add_send(peer);
  for (const int peer : {1, 3, 3}) steps.add_receive(peer);
  EXPECT((steps.busy() == std::vector<int>{1, 4, 5}));
  EXPECT(steps.to(1) == 3 && steps.from(1) == 1 && steps.to(4) == 0 && steps.from(4) == 4);
  EXPECT(steps.to(5) == 1 && steps.from(5) == 3);
  steps.drop_if([](int step) { return step == 4; });
  EXPECT((steps.busy() == std::vector<int>{1, 5}));
  steps.add_send(0);
  EXPECT((steps.busy() == std::vector<int>{1, 4, 5}));
}

TEST(two_peers_are_sent_to_at_once_and_the_next_one_when_a_turn_is_over) {
  Sender sender;
  for (int i = 0; i < 10; ++i) sender.move();
  EXPECT(sender.reaches(1, 10'000) && sender.reaches(2, 10'000));
  EXPECT(!sender.reaches(3, 0));
  sender.take_all(1);  // 2 does not read, and holds up nobody
  sender.move();
  EXPECT(sender.reaches(3, 10'000));
}

TEST(on_one_machine_all_peers_are_sent_to_at_once) {
  Sender sender(INADDR_LOOPBACK);
  for (int i = 0; i < 10; ++i) sender.move();
  EXPECT(sender.reaches(1, 10'000) && sender.reaches(2, 10'000) && sender.reaches(3, 10'000));
}

// Whoever waits for a message that has left waits for its receiver only.
TEST(a_message_has_left_although_a_later_one_has_not) {
  Sender sender;
  const uint64_t first = sender.mesh().queued();
  std::vector<std::byte> later(kBytes);
  sender.mesh().send(1, 0, later.data(), kBytes);
  for (int i = 0; i < 10; ++i) sender.move();
  EXPECT(first == 3);
  EXPECT(sender.mesh().have_left(0, 0));
  EXPECT(!sender.mesh().have_left(0, first));
  for (int peer : {1, 2, 3}) sender.take_all(peer);
  EXPECT(sender.mesh().have_left(0, first));
  EXPECT(!sender.mesh().have_left(0, sender.mesh().queued()));
}

TEST(a_socket_holds_little_that_is_not_under_way) {
  if (kEmulated) return;  // no SIOCOUTQNSD
  Sender sender;
  for (int i = 0; i < 10; ++i) sender.move();
  EXPECT(sender.unsent_bytes(1) > 0);
  EXPECT(sender.unsent_bytes(1) <= 256 << 10);
}

}  // namespace

TEST_MAIN
