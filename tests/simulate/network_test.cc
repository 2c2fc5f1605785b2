// SPDX-License-Identifier: Apache-2.0
// Time in the simulated network: of one message, of messages that meet, and of the shipped allreduces over many hosts,
// whose memory all hosts share.
#include "simulate/network.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "simulate/simulated_allreduce.h"

using namespace hvd;

namespace {

constexpr size_t kKi = 1024, kMi = kKi * kKi;
constexpr LinkModel kSlow{0.5, 1000, 30, 70, 2};  // 2 ns for a byte

// Each of these hosts sends so many messages to host 0, which takes them all.
struct Incast {
  Network network;
  std::vector<std::unique_ptr<Mesh>> meshes;
  Status status;
  Incast(int senders, int messages, size_t bytes)
      : network(senders + 1, kSlow, false), meshes(SimulatedMesh::join(network, all_of(network))) {
    status = network.run([&](int host) {
      Mesh& mesh = *meshes[static_cast<size_t>(host)];
      for (int i = 0; i < messages; ++i) {
        if (host != 0) mesh.send(0, 0, nullptr, bytes);
        for (int from = 1; host == 0 && from <= senders; ++from) mesh.receive(from, 0, nullptr, bytes);
      }
      return mesh.drain();
    });
    EXPECT(status.ok());
  }
};

}  // namespace

TEST(a_message_takes_both_processors_the_link_and_the_way) {
  const Incast one(1, 1, 100);
  EXPECT(one.network.now_ns(1) == 30 + 200);  // it has left
  EXPECT(one.network.now_ns(0) == 30 + 200 + 1000 + 70);
  EXPECT(one.network.sent_by(1).messages == 1 && one.network.sent_by(1).bytes == 100);
  EXPECT(one.network.sent_by(0).messages == 0);
}

TEST(messages_wait_for_the_senders_link_or_its_processor) {
  EXPECT(Incast(1, 3, 100).network.now_ns(0) == 30 + 3 * 200 + 1000 + 70);
  EXPECT(Incast(1, 3, 1).network.now_ns(0) == 30 + 2 + 1000 + 3 * 70);  // the receiver's is the slowest
}

TEST(messages_of_several_hosts_wait_for_the_receivers_link) {
  EXPECT(Incast(4, 1, 1000).network.now_ns(0) == 30 + 4 * 2000 + 1000 + 70);
  EXPECT(Incast(4, 1, 1000).network.now_ns(4) == 30 + 2000);
}

TEST(two_meshes_of_a_host_share_its_link) {
  Network network(3, kSlow, false);
  const std::vector<std::unique_ptr<Mesh>> left = SimulatedMesh::join(network, {0, 1}),
                                           right = SimulatedMesh::join(network, {0, 2});
  const Status status = network.run([&](int host) {
    if (host != 0) {
      Mesh& mesh = host == 1 ? *left[1] : *right[1];
      mesh.receive(0, 0, nullptr, 1000);
      return mesh.drain();
    }
    left[0]->send(1, 0, nullptr, 1000);
    right[0]->send(1, 0, nullptr, 1000);
    const Status first = left[0]->drain();
    return first.ok() ? right[0]->drain() : first;
  });
  EXPECT(status.ok());
  EXPECT(network.now_ns(1) == 30 + 2000 + 1000 + 70);
  EXPECT(network.now_ns(2) == 30 + 2 * 2000 + 1000 + 70);
}

TEST(a_host_that_waits_for_ever_is_named) {
  Network network(2, kSlow, false);
  const std::vector<std::unique_ptr<Mesh>> meshes = SimulatedMesh::join(network, all_of(network));
  const Status status = network.run([&](int host) {
    meshes[static_cast<size_t>(host)]->begin("allgather");
    if (host == 1) meshes[1]->receive(0, 1, nullptr, 24);
    return meshes[static_cast<size_t>(host)]->drain();
  });
  EXPECT(status.text() == "host 1: allgather: waits for ever for a message of 24 bytes from member 0 on link 1");
}

TEST(a_message_of_another_size_is_a_failure) {
  Network network(2, kSlow, false);
  const std::vector<std::unique_ptr<Mesh>> meshes = SimulatedMesh::join(network, all_of(network));
  const Status status = network.run([&](int host) {
    if (host == 0) meshes[0]->send(1, 0, nullptr, 23);
    if (host == 1) meshes[1]->receive(0, 0, nullptr, 24);
    return meshes[static_cast<size_t>(host)]->drain();
  });
  EXPECT(status.text() == "host 1: start: got a message of 23 bytes from member 0, expected 24");
}

TEST(what_a_host_throws_comes_out_and_the_others_end) {
  Network network(2, kSlow, false);
  const std::vector<std::unique_ptr<Mesh>> meshes = SimulatedMesh::join(network, all_of(network));
  bool has_ended = false, is_thrown = false;
  try {
    static_cast<void>(network.run([&](int host) {
      if (host == 0) throw std::runtime_error("thrown on a fiber");
      meshes[1]->receive(0, 0, nullptr, 1);
      Status drained = meshes[1]->drain();
      has_ended = true;
      return drained;
    }));
  } catch (const std::runtime_error& error) {
    is_thrown = std::string(error.what()) == "thrown on a fiber";
  }
  EXPECT(is_thrown && has_ended);
}

// 4 hosts at 10 Gbit/s: the link decides. 64 hosts and one chunk: 4 x 63 messages of 3 us are less than the link's time
// for 1 MiB, and decide for less, or over a faster link. In two chunks, 8 x 63 would decide in all three.
TEST(the_direct_exchange_takes_the_links_time_or_that_of_its_messages) {
  const LinkModel usual, fast{.bytes_per_ns = 12.5};
  struct {
    int hosts;
    size_t bytes;
    LinkModel model;
    uint64_t messages;
    double least_ms, most_ms;
  } const rows[] = {{4, 16 * kMi, usual, 96, 20.1, 20.4},   {16, 1 * kMi, usual, 60, 1.57, 1.66},
                    {16, 16 * kMi, usual, 120, 25.1, 25.5}, {64, 64 * kKi, usual, 126, 0.75, 0.80},
                    {64, 1 * kMi, usual, 126, 1.65, 1.80},  {64, 1 * kMi, fast, 126, 0.75, 0.85}};
  for (const auto& row : rows) {
    const Taken taken = allreduce(Way::kFlat, row.hosts, row.bytes, row.model, row.hosts);
    EXPECT(taken.status.ok());
    const double bound = bound_ms(row.hosts, row.bytes, row.model);
    std::printf("       %2d hosts, %8zu bytes, %5.1f Gbit/s: %7.3f ms, the link's %7.3f, %llu messages a host\n",
                row.hosts, row.bytes, row.model.bytes_per_ns * 8, taken.ms, bound,
                static_cast<unsigned long long>(taken.messages));
    EXPECT(taken.messages == row.messages);
    EXPECT(taken.bytes == 2 * (row.bytes - row.bytes / static_cast<size_t>(row.hosts)));
    EXPECT(taken.ms >= bound && taken.ms >= row.least_ms && taken.ms <= row.most_ms);
  }
}

// Each chunk of 2 (columns - 1 + groups - 1) messages, in equal groups and in uneven ones. The bytes are those of the
// direct exchange, but for the members that uneven groups have more.
TEST(groups_of_many_hosts_take_little_more_than_the_link) {
  struct {
    Way way;
    int hosts;
    size_t bytes;
    uint64_t messages;
    double most;  // times the link's time
  } const rows[] = {{Way::kFlat, 64, 64 * kKi, 28, 2.8},
                    {Way::kFlat, 256, 1 * kMi, 60, 1.15},
                    {Way::kInPieces, 256, 1 * kMi, 120, 1.3},
                    {Way::kFlat, 257, 1 * kMi, 60, 1.25}};
  for (const auto& row : rows) {
    const Taken taken = allreduce(row.way, row.hosts, row.bytes, {});
    EXPECT(taken.status.ok());
    const double bound = bound_ms(row.hosts, row.bytes, {});
    std::printf("       %2d hosts, %8zu bytes: %7.3f ms, the link's %7.3f, %llu messages a host\n", row.hosts,
                row.bytes, taken.ms, bound, static_cast<unsigned long long>(taken.messages));
    EXPECT(taken.messages == row.messages);
    if (row.hosts != 257) EXPECT(taken.bytes == 2 * (row.bytes - row.bytes / static_cast<size_t>(row.hosts)));
    EXPECT(taken.ms >= bound && taken.ms <= row.most * bound);
  }
}

TEST(pieces_take_hardly_longer_than_the_whole) {
  const Taken whole = allreduce(Way::kFlat, 4, 16 * kMi, {}), pieces = allreduce(Way::kInPieces, 4, 16 * kMi, {});
  EXPECT(whole.status.ok() && pieces.status.ok());
  EXPECT(pieces.bytes == whole.bytes);
  EXPECT(pieces.ms > whole.ms && pieces.ms < 1.03 * whole.ms);
}

TEST(a_better_network_is_never_slower) {
  for (const size_t bytes : {size_t{64}, 4 * kKi, 256 * kKi, 4 * kMi}) {
    const double usual = allreduce(Way::kFlat, 8, bytes, {}).ms;
    EXPECT(allreduce(Way::kFlat, 8, bytes, {.bytes_per_ns = 5}).ms <= usual);
    EXPECT(allreduce(Way::kFlat, 8, bytes, {.latency_ns = 3000}).ms <= usual);
    EXPECT(allreduce(Way::kFlat, 8, bytes, {.send_ns = 500, .receive_ns = 500}).ms < usual);
    EXPECT(allreduce(Way::kFlat, 4, bytes, {}).ms < usual);
  }
  // A small input goes once: 7 messages are sent, the way is gone, and they are taken.
  EXPECT(allreduce(Way::kFlat, 8, 64, {.latency_ns = 3000}).ms < allreduce(Way::kFlat, 8, 64, {}).ms);
}

TEST(the_same_hosts_make_the_same_run) {
  const Taken once = allreduce(Way::kInPieces, 9, 3 * kMi + 44, {}),
              again = allreduce(Way::kInPieces, 9, 3 * kMi + 44, {});
  EXPECT(once.ms == again.ms && once.events == again.events && once.events > 0);
}

TEST_MAIN
