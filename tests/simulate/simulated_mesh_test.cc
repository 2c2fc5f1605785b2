// SPDX-License-Identifier: Apache-2.0
// The simulated mesh against sockets: the same messages of the same bytes in the same order, and the same results, for
// every operation that the shipped code has between hosts.
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "communicators/hierarchical/allreduce.h"
#include "communicators/over_mesh.h"
#include "members.h"
#include "recording_mesh.h"
#include "simulate/inside.h"
#include "simulate/mesh.h"

namespace {

using namespace hvd;
using Bytes = std::vector<std::byte>;
using Record = RecordingMesh::Record;

constexpr int kLinks = 2;
constexpr size_t kMi = size_t{1} << 20;

// An operation as one member calls it; returns its result.
struct Operation {
  std::string name;
  std::function<Status(Communicator&, Bytes*)> run;
  bool by_arrival = false;  // messages of different links may change places: what comes is handed on
};

// Different on all members.
std::vector<float> values_of(const Communicator& communicator, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = 0.1f * static_cast<float>(i % 1013) + static_cast<float>(communicator.member());
  }
  return values;
}
const std::byte* bytes_at(const std::vector<float>& values, size_t index = 0) {
  return reinterpret_cast<const std::byte*>(values.data() + index);
}

// In three tensors, so that a message may be in several places.
std::vector<Slice> slices_of(const std::vector<float>& values, Bytes* out) {
  out->resize(values.size() * sizeof(float));
  const size_t ends[] = {0, values.size() / 3, values.size() / 2, values.size()};
  std::vector<Slice> slices;
  for (size_t i = 0; i < 3; ++i) {
    slices.push_back({bytes_at(values, ends[i]), out->data() + ends[i] * sizeof(float),
                      static_cast<int64_t>(ends[i + 1] - ends[i])});
  }
  return slices;
}
Reduction average_of(const Communicator& communicator) { return {HVD_FLOAT32, HVD_SUM, 0.5, 3.0, communicator.size()}; }

Operation allreduce(size_t count) {
  return {"allreduce of " + std::to_string(count), [count](Communicator& communicator, Bytes* out) {
            const std::vector<float> values = values_of(communicator, count);
            return communicator.allreduce(slices_of(values, out), average_of(communicator));
          }};
}
Operation in_pieces(size_t count, Cut cut) {
  return {"allreduce in pieces of " + std::to_string(cut.elements),
          [count, cut](Communicator& communicator, Bytes* out) {
            const std::vector<float> values = values_of(communicator, count);
            const std::vector<Slice> slices = slices_of(values, out);
            const auto operation = communicator.allreduce_in_pieces(slices, average_of(communicator), cut);
            const int64_t pieces = plan::pieces_of(static_cast<int64_t>(count), cut.elements);
            for (int64_t k = 0; k < pieces + cut.ahead; ++k) {
              if (k < pieces) HVD_RETURN_IF_ERROR(operation->offer(k));
              if (k >= cut.ahead) HVD_RETURN_IF_ERROR(operation->finish(k - cut.ahead));
            }
            return Status();
          }};
}
// As the hierarchical communicator does it, with one member on each host.
Operation over_hosts(size_t count, int group_hosts) {
  return {"allreduce over hosts of " + std::to_string(count), [count, group_hosts](Communicator& between, Bytes* out) {
            const CommunicatorRow* row = nullptr;
            std::unique_ptr<Communicator> inside;
            HVD_RETURN_IF_ERROR(choose_communicator("loopback", Topology::on_one_host(1), false, &row));
            HVD_RETURN_IF_ERROR(row->make({}, {}, &inside));
            const std::vector<float> values = values_of(between, count);
            const std::vector<Slice> slices = slices_of(values, out);
            const plan::BetweenHosts way = plan::between_hosts(count * sizeof(float), between.size(), group_hosts);
            return HierarchicalAllreduce({*inside, &between}, way, 1, slices, average_of(between)).run();
          }};
}
Operation broadcast(size_t count) {
  return {"broadcast of " + std::to_string(count),
          [count](Communicator& communicator, Bytes* out) {
            const std::vector<float> values = values_of(communicator, count);
            return communicator.broadcast(slices_of(values, out), sizeof(float), 1);
          },
          true};
}
Operation exchange() {
  return {"exchange", [](Communicator& communicator, Bytes* out) {
            const std::vector<float> values = values_of(communicator, 25);
            out->resize(values.size() * sizeof(float) * static_cast<size_t>(communicator.size()));
            return communicator.exchange(values.data(), values.size() * sizeof(float), out->data());
          }};
}
// Member m has m times as much, so the first one has nothing.
Operation allgather(int64_t bytes) {
  return {"allgather of " + std::to_string(bytes), [bytes](Communicator& communicator, Bytes* out) {
            std::vector<int64_t> of_member;
            for (int m = 0; m < communicator.size(); ++m) of_member.push_back(m * bytes);
            const auto mine = static_cast<size_t>(of_member[static_cast<size_t>(communicator.member())]);
            const std::vector<float> values = values_of(communicator, mine / sizeof(float) + 1);
            out->resize(static_cast<size_t>(std::accumulate(of_member.begin(), of_member.end(), int64_t{0})));
            return communicator.allgather(values.data(), of_member, out->data());
          }};
}
Operation reducescatter(int64_t count) {
  return {"reducescatter of " + std::to_string(count), [count](Communicator& communicator, Bytes* out) {
            const auto size = static_cast<size_t>(communicator.size()),
                       member = static_cast<size_t>(communicator.member());
            const std::vector<float> values = values_of(communicator, static_cast<size_t>(count) * size * size);
            out->resize(static_cast<size_t>(count) * member * sizeof(float));
            std::vector<std::vector<Slice>> parts;
            for (size_t m = 0, at = 0; m < size; at += static_cast<size_t>(count) * m++) {
              parts.push_back(
                  {{bytes_at(values, at), m == member ? out->data() : nullptr, count * static_cast<int64_t>(m)}});
            }
            return communicator.reducescatter(parts, average_of(communicator));
          }};
}
Operation alltoall(int64_t bytes) {
  return {"alltoall of " + std::to_string(bytes), [bytes](Communicator& communicator, Bytes* out) {
            const int size = communicator.size(), member = communicator.member();
            std::vector<int64_t> matrix;
            int64_t mine = 0, all = 0;
            for (int i = 0; i < size * size; ++i) {
              matrix.push_back(bytes * ((i / size + 2 * (i % size)) % 3));
              if (i / size == member) mine += matrix.back();
              if (i % size == member) all += matrix.back();
            }
            const std::vector<float> values = values_of(communicator, static_cast<size_t>(mine) / sizeof(float) + 1);
            out->resize(static_cast<size_t>(all));
            return communicator.alltoall(values.data(), matrix, out->data());
          }};
}
Operation barrier() {
  return {"barrier", [](Communicator& communicator, Bytes*) { return communicator.barrier(); }};
}

// Those that differ among groups of hosts.
std::vector<Operation> allreduces(int group_hosts) {
  return {allreduce(3),
          allreduce(1000),
          allreduce(1001 * 16),
          allreduce(100'003),
          allreduce(kMi + 5),  // 4 MiB: over all links
          in_pieces(5000, {700, 2, group_hosts > 0}),
          in_pieces(kMi / 2, {60'000, 4, group_hosts > 0}),
          over_hosts(kMi / 3, group_hosts)};
}
std::vector<Operation> others() {
  return {broadcast(1000),
          broadcast(kMi / 2),
          exchange(),
          allgather(12),
          allgather(int64_t{kMi} + 4),
          reducescatter(5),
          reducescatter(int64_t{kMi} / 8),
          alltoall(20),
          alltoall(int64_t{kMi} + 12),
          barrier()};
}

struct Outcome {
  Record record;
  Bytes result;
  Status status;
};

void run_one(const Operation& operation, std::unique_ptr<Mesh> mesh, int group_hosts, Outcome* outcome) {
  const int size = mesh->size();
  std::vector<int> hosts(static_cast<size_t>(size));
  std::iota(hosts.begin(), hosts.end(), 0);
  OverMesh communicator(std::make_unique<RecordingMesh>(std::move(mesh), &outcome->record), Topology(hosts), Kernels(),
                        "", group_hosts);
  outcome->status = operation.run(communicator, &outcome->result);
}

std::vector<Outcome> over_sockets(const Operation& operation, int size, int group_hosts) {
  std::vector<std::vector<std::vector<int>>> sockets(static_cast<size_t>(size),
                                                     std::vector<std::vector<int>>(static_cast<size_t>(size)));
  for (size_t a = 0; a < sockets.size(); ++a) {
    for (size_t b = a + 1; b < sockets.size(); ++b) {
      for (int i = 0; i < kLinks; ++i) {
        const members::Pair pair = members::connected_tcp();
        sockets[a][b].push_back(pair.a);
        sockets[b][a].push_back(pair.b);
      }
    }
  }
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t m = 0; m < outcomes.size(); ++m) {
    threads.emplace_back([&, m] {
      auto mesh =
          std::make_unique<TcpMesh>(std::make_shared<DataLinks>(sockets[m]), static_cast<int>(m), ranks, Interrupt{});
      outcomes[m].status = mesh->open();
      if (outcomes[m].status.ok()) run_one(operation, std::move(mesh), group_hosts, &outcomes[m]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> simulated(const Operation& operation, int size, int group_hosts, LinkModel model) {
  Network network(size, model, true);
  std::vector<int> hosts(static_cast<size_t>(size));
  std::iota(hosts.begin(), hosts.end(), 0);
  std::vector<std::unique_ptr<Mesh>> meshes = SimulatedMesh::join(network, hosts);
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  const Status status = network.run([&](int host) {
    const auto h = static_cast<size_t>(host);
    run_one(operation, std::move(meshes[h]), group_hosts, &outcomes[h]);
    return outcomes[h].status;
  });
  if (!status.ok()) std::printf("       %s: %s\n", operation.name.c_str(), status.text().c_str());
  EXPECT(status.ok());
  for (size_t h = 0; h < outcomes.size(); ++h) {
    Network::Sent sent;
    for (const RecordingMesh::Message& message : outcomes[h].record) {
      if (message.is_sent) sent = {sent.messages + 1, sent.bytes + message.bytes};
    }
    EXPECT(network.sent_by(static_cast<int>(h)).messages == sent.messages);
    EXPECT(network.sent_by(static_cast<int>(h)).bytes == sent.bytes);
  }
  return outcomes;
}

// By stream, if that is what has an order.
Record ordered(const Operation& operation, const Record& record) {
  if (!operation.by_arrival) return record;
  std::multimap<decltype(record[0].stream()), RecordingMesh::Message> by_stream;
  for (const RecordingMesh::Message& message : record) by_stream.emplace(message.stream(), message);
  Record sorted;
  for (const auto& [stream, message] : by_stream) sorted.push_back(message);
  return sorted;
}

void expect_the_same(const Operation& operation, int size, int group_hosts) {
  const std::vector<Outcome> real = over_sockets(operation, size, group_hosts);
  // Fast and slow, so that what comes first is not always the same.
  for (const LinkModel& model : {LinkModel{}, LinkModel{0.01, 100, 10, 500, kLinks}}) {
    const std::vector<Outcome> made = simulated(operation, size, group_hosts, model);
    for (size_t m = 0; m < real.size(); ++m) {
      EXPECT(real[m].status.ok());
      const bool same = ordered(operation, real[m].record) == ordered(operation, made[m].record);
      if (!same || real[m].result != made[m].result) {
        std::printf("       %s differs on member %zu of %d: %zu and %zu messages\n", operation.name.c_str(), m, size,
                    real[m].record.size(), made[m].record.size());
      }
      EXPECT(same);
      EXPECT(real[m].result == made[m].result);
      EXPECT(!made[m].record.empty());
    }
  }
}

}  // namespace

TEST(two_to_four_hosts_send_what_they_send_over_sockets) {
  for (const int size : {2, 3, 4}) {
    for (const Operation& operation : allreduces(0)) expect_the_same(operation, size, 0);
    for (const Operation& operation : others()) expect_the_same(operation, size, 0);
  }
}

TEST(groups_of_hosts_send_what_they_send_over_sockets) {
  for (const int size : {4, 5, 7}) {
    for (const Operation& operation : allreduces(2)) expect_the_same(operation, size, 2);
    for (const Operation& operation : {exchange(), allgather(12), allgather(int64_t{kMi} + 4)}) {
      expect_the_same(operation, size, 2);
    }
  }
}

TEST_MAIN
