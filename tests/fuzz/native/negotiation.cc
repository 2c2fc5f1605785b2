// SPDX-License-Identifier: Apache-2.0
// Fuzz target: members and leaders of a whole world, driven in any order, with any frames between what they say
// themselves. The first byte chooses the world, and whether its hosts form a tree; each piece is an action and its
// arguments. Names are few and numbers fewer, so that they come and go.
//
// As long as nothing was made up, no order of submissions, frames and looks may end the generation, and nothing may be
// told ready that a rank has not submitted. After that the classes may only give up in words.
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "input.h"
#include "simulate/world.h"

using namespace hvd;

namespace {

const std::vector<std::vector<int>> kWorlds = {{0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 1, 2}};
constexpr size_t kNames = 4, kMostCalls = 64;

class Fuzzed final : public PlainWorld::Owner {
 public:
  Fuzzed(const std::vector<int>& host_of_rank, bool is_tree)
      : world_(host_of_rank, {NameLimits{2, 8}}, *this, SIZE_MAX, is_tree ? 1 : ControlTree::kStarHosts),
        ranks_(host_of_rank.size()),
        links_(static_cast<size_t>(world_.topology().hosts())) {
    for (size_t h = 0; h < links_.size(); ++h) links_[h].resize(links_.size());
    std::vector<int> last{world_.topology().size() - 1};
    world_.add_set(1, last);
  }

  bool act(Input* input) {
    const int rank = input->byte() % world_.topology().size();
    const int host = world_.map(rank).host;
    switch (input->byte() % 11) {
      case 0:
      case 1:
        submit(rank, input->byte());
        break;
      case 2:
        join(rank);
        break;
      case 3:
        world_.take_ring(host, world_.map(rank).local_rank);
        break;
      case 4:
        deliver(host, input->byte() % world_.topology().hosts());
        break;
      case 5:
        world_.read(rank);
        break;
      case 6:
        now_ns_ += input->byte() * 1000000ull;
        world_.speak(host);
        break;
      case 7:
        world_.tell_retired(host);
        break;
      case 8:
        now_ns_ += 1000000000;
        world_.leader_of(host).tell_waiting();
        world_.leader_of(0).facts().ask_who_waits();
        world_.leader_of(host).facts().collect_stacks();
        look(rank);
        break;
      case 9:
        made_up_ = true;
        world_.take_from_rank(host, world_.map(rank).local_rank, frame(input));
        break;
      case 10:
        made_up_ = true;
        if (links_.size() > 1) world_.take_from_host(host, neighbour(host, input), frame(input));
        break;
    }
    require(made_up_ || world_.failure().empty());
    return world_.failure().empty();
  }

  // Everything that can happen by itself, happens.
  void settle() {
    for (bool moved = true; moved && world_.failure().empty();) {
      moved = false;
      now_ns_ += 20000000;
      for (int rank = 0; rank < world_.topology().size(); ++rank) {
        const HostMap& map = world_.map(rank);
        while (world_.take_ring(map.host, map.local_rank)) moved = true;
        while (world_.read(rank)) moved = true;
        if (!map.is_leader()) continue;
        for (int from = 0; from < map.hosts(); ++from) moved |= deliver(map.host, from);
        moved |= world_.tell_retired(map.host);
        const bool silent = world_.leader_of(map.host).silence_left_ns() < 0;
        world_.speak(map.host);
        moved |= !silent;
      }
    }
    require(made_up_ || world_.failure().empty());
    if (made_up_) return;
    // What all ranks have submitted, and none of them disagrees about, is done.
    for (int rank = 0; rank < world_.topology().size(); ++rank) world_.member(rank).snapshot();
    for (int host = 0; host < world_.topology().hosts(); ++host) world_.leader_of(host).snapshot();
  }

  // As an engine ends: the ranks leave, what is still in flight is given up, each call once, and the sets go.
  void end() {
    for (int rank = 0; rank < world_.topology().size(); ++rank) world_.leave(rank);
    settle();
    for (int rank = 0; rank < world_.topology().size(); ++rank) {
      std::set<const Contribution*> given_up;
      for (const ContributionPtr& call : world_.member(rank).give_up_all()) {
        require(given_up.insert(call.get()).second);
      }
      world_.member(rank).remove_set(1);
    }
    for (int host = 0; host < world_.topology().hosts(); ++host) world_.leader_of(host).remove_set(1);
  }

 private:
  int neighbour(int host, Input* input) {
    const ControlTree& tree = world_.map(world_.topology().leader_of(host)).tree;
    const std::vector<int> below = tree.below(host);
    return host == 0 || (!below.empty() && input->byte() % 2 == 0) ? below.front() : tree.above(host);
  }
  static Frame frame(Input* input) {
    const auto kind = static_cast<FrameKind>(input->byte());
    return {kind, std::string(input->sized())};
  }

  void submit(int rank, uint8_t choice) {
    Rank& mine = ranks_[static_cast<size_t>(rank)];
    if (mine.joined || mine.calls >= kMostCalls) return;
    auto call = std::make_shared<PlainCall>();
    call->key = std::make_shared<const std::string>("name." + std::to_string(choice % kNames));
    call->set = rank + 1 == world_.topology().size() && (choice & 64) != 0 ? 1 : 0;
    Descriptor descriptor;
    descriptor.process_set = call->set;
    descriptor.kind = (choice & 32) != 0 ? HVD_ALLGATHER : HVD_ALLREDUCE;
    descriptor.tensors = {{HVD_FLOAT32, {(choice & 16) != 0 ? 3 : 4}}};
    call->is_refusal = (choice & 128) != 0;
    if (call->is_refusal) {
      call->refusal = "it failed";
    } else {
      call->text = std::make_shared<const std::string>(descriptor.encode());
      call->descriptor = *call->text;
    }
    call->sync = (choice & 8) != 0;
    call->total_bytes = choice;
    ++mine.calls;
    world_.submit(rank, call);
  }
  void join(int rank) {
    if (std::exchange(ranks_[static_cast<size_t>(rank)].joined, true)) return;
    world_.join(rank);
  }
  bool deliver(int host, int from) {
    auto& link = links_[static_cast<size_t>(from)][static_cast<size_t>(host)];
    if (link.empty()) return false;
    const Frame frame = std::move(link.front());
    link.pop_front();
    world_.take_from_host(host, from, frame);
    return true;
  }
  // As a stall report does.
  void look(int rank) {
    if (rank != 0) return;
    for (const Undecided& item : world_.leader_of(0).undecided()) {
      require(item.arrived.size() + item.missing.size() <= ranks_.size());
    }
    world_.leader_of(0).facts().ask_for_stacks({world_.topology().size() - 1, 0});
  }

  uint64_t now_ns() override { return now_ns_; }
  void sent(int from, int to, Frame frame) override {
    links_[static_cast<size_t>(from)][static_cast<size_t>(to)].push_back(std::move(frame));
  }
  void rang(int) override {}
  bool applied(int rank, Record, const Member::Applied& what) override {
    if (what.what == Member::Applied::What::kJoined) ranks_[static_cast<size_t>(rank)].joined = false;
    if (what.what == Member::Applied::What::kReady) require(!what.call->is_refusal);
    return what.call != nullptr;
  }

  struct Rank {
    size_t calls = 0;
    bool joined = false;
  };
  uint64_t now_ns_ = 1;
  bool made_up_ = false;
  PlainWorld world_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<std::deque<Frame>>> links_;  // from, to
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t choice = input.byte();
  Fuzzed world(kWorlds[choice % kWorlds.size()], choice >= 128);
  while (!input.empty()) {
    if (!world.act(&input)) return 0;
  }
  world.settle();
  world.end();
  return 0;
}
