// SPDX-License-Identifier: Apache-2.0
// One shipped allreduce over simulated hosts, and how long it takes. All hosts share the memory of the tensors, and
// nothing is moved.
#pragma once

#include <memory>
#include <numeric>
#include <vector>

#include "communicators/hierarchical/allreduce.h"
#include "communicators/over_mesh.h"
#include "simulate/inside.h"
#include "simulate/mesh.h"

namespace hvd {

inline std::vector<int> all_of(const Network& network) {
  std::vector<int> hosts(static_cast<size_t>(network.hosts()));
  std::iota(hosts.begin(), hosts.end(), 0);
  return hosts;
}

enum class Way : uint8_t { kFlat, kInPieces };
struct Taken {
  Status status;
  double ms = 0;                     // until the last host is done
  uint64_t messages = 0, bytes = 0;  // that host 0 has sent
  uint64_t events = 0;
};
// `batches` of so many bytes, one after the other. `group_hosts`: as the setting; as many as there are hosts mean no
// groups.
inline Taken allreduce(Way way, int hosts, size_t bytes, LinkModel model, int group_hosts = 0, int batches = 1) {
  Network network(hosts, model, false);
  std::vector<std::unique_ptr<Mesh>> meshes = SimulatedMesh::join(network, all_of(network));
  const Topology topology(all_of(network));
  std::vector<std::unique_ptr<OverMesh>> between;
  for (auto& mesh : meshes) {
    between.push_back(std::make_unique<OverMesh>(std::move(mesh), topology, Kernels(), "", group_hosts));
  }
  std::vector<std::byte> input(bytes), output(bytes);
  const Slice slice{input.data(), output.data(), static_cast<int64_t>(bytes / sizeof(float))};
  Taken taken;
  taken.status = network.run([&](int host) {
    OverMesh& mine = *between[static_cast<size_t>(host)];
    SimulatedInside inside(network, host, {});
    const plan::BetweenHosts cut = plan::between_hosts(bytes, hosts, group_hosts);
    Status status;
    for (int batch = 0; batch < batches && status.ok(); ++batch) {
      status = way == Way::kFlat ? mine.allreduce({&slice, 1}, {})
                                 : HierarchicalAllreduce({inside, &mine}, cut, 1, {&slice, 1}, {}).run();
    }
    return status;
  });
  const Network::Sent& sent = network.sent_by(0);
  taken.ms = static_cast<double>(network.end_ns()) * 1e-6;
  taken.messages = sent.messages;
  taken.bytes = sent.bytes;
  taken.events = network.events();
  return taken;
}
// Time that the link alone needs.
inline double bound_ms(int hosts, size_t bytes, const LinkModel& model) {
  return 2.0 * (hosts - 1) / hosts * static_cast<double>(bytes) / model.bytes_per_ns * 1e-6;
}

}  // namespace hvd
