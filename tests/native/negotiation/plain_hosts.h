// SPDX-License-Identifier: Apache-2.0
// Hosts of a PlainWorld whose frames a test delivers.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "simulate/world.h"

namespace hvd {

// Frames wait until the test delivers them.
struct PlainHosts : PlainWorld::Owner {
  explicit PlainHosts(const std::vector<int>& host_of_rank, int star_hosts = ControlTree::kStarHosts)
      : world(host_of_rank, {}, *this, SIZE_MAX, star_hosts) {}

  uint64_t now_ns() override { return time_ns; }
  void sent(int from, int to, Frame frame) override { links.push_back({from, to, std::move(frame)}); }
  void rang(int) override {}
  bool applied(int, Record, const Member::Applied& what) override {
    return what.what == Member::Applied::What::kReady || what.what == Member::Applied::What::kFailed;
  }

  void submit(int rank, int64_t rows = 3, const std::string& name = "x") {
    auto call = std::make_shared<PlainCall>();
    Descriptor descriptor;
    descriptor.tensors = {{HVD_FLOAT32, {rows}}};
    call->key = std::make_shared<const std::string>(name);
    call->text = std::make_shared<const std::string>(descriptor.encode());
    call->descriptor = *call->text;
    world.submit(rank, call);
  }
  int take_one() {
    const Sent sent = std::move(links.front());
    links.pop_front();
    world.take_from_host(sent.to, sent.from, sent.frame);
    return sent.to;
  }
  void deliver_one() { world.pass_on(take_one()); }
  void deliver() {
    while (!links.empty()) deliver_one();
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = !links.empty();
      deliver();
      for (int rank = 0; rank < world.topology().size(); ++rank) {
        while (world.take_ring(world.map(rank).host, world.map(rank).local_rank)) moved = true;
        while (world.read(rank)) moved = true;
      }
      time_ns += 2000000;
      for (int host = 0; host < world.topology().hosts(); ++host) world.speak(host);
      moved |= !links.empty();
    }
    EXPECT(world.failure().empty());
  }

  struct Sent {
    int from, to;
    Frame frame;
  };
  uint64_t time_ns = 1;
  std::deque<Sent> links;
  PlainWorld world;
};

}  // namespace hvd
