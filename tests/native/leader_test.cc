// SPDX-License-Identifier: Apache-2.0
// A host's leader and its parts: how equal requests become one, and how rank 0 learns who waits on other hosts.
#include <deque>

#include "check.h"
#include "negotiation/gathering.h"
#include "plain_world.h"

using namespace hvd;

namespace {

constexpr uint64_t kLater = 1000000000;

RequestFrame request_of(int rank, const std::string& descriptor = "as agreed") {
  return {{{rank, true}}, 0, "x", descriptor};
}

std::vector<int> ranks_of(const RequestFrame& request) {
  std::vector<int> ranks;
  for (const Requester& from : request.ranks) ranks.push_back(from.rank);
  return ranks;
}

Gathering of_three() {
  Gathering gathering;
  gathering.add_set(0, {4, 5, 6});
  gathering.define(7, 0, "x");
  return gathering;
}

// Frames wait until the test delivers them.
struct TwoHosts final : PlainWorld::Owner {
  TwoHosts() : world({0, 0, 1, 1}, {}, *this) {}

  uint64_t now_ns() override { return time_ns; }
  void sent(int from, int to, Frame frame) override { links.push_back({from, to, std::move(frame)}); }
  void rang(int) override {}
  bool applied(int, Record, const Member::Applied& what) override {
    return what.what == Member::Applied::What::kReady || what.what == Member::Applied::What::kFailed;
  }

  void submit(int rank) {
    auto call = std::make_shared<PlainCall>();
    Descriptor descriptor;
    descriptor.tensors = {{HVD_FLOAT32, {3}}};
    call->key = "x";
    call->text = descriptor.encode();
    call->descriptor = call->text;
    world.submit(rank, call);
  }
  void deliver() {
    for (; !links.empty(); links.pop_front())
      world.take_from_host(links.front().to, links.front().from, links.front().frame);
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = !links.empty();
      deliver();
      for (int rank = 0; rank < 4; ++rank) {
        while (world.take_ring(rank / 2, static_cast<uint32_t>(rank % 2))) moved = true;
        while (world.read(rank)) moved = true;
      }
      time_ns += 2000000;
      for (int host = 0; host < 2; ++host) world.speak(host);
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

}  // namespace

TEST(equal_requests_of_a_host_go_up_as_one) {
  Gathering gathering = of_three();
  for (const int rank : {5, 4}) {
    gathering.ask(request_of(rank), 0);
    EXPECT(gathering.take_due(1).empty() && !gathering.is_empty());
  }
  gathering.ask(request_of(6), 0);
  const std::vector<RequestFrame> due = gathering.take_due(1);
  EXPECT(due.size() == 1 && ranks_of(due[0]) == (std::vector<int>{5, 4, 6}));
  EXPECT(gathering.is_empty() && gathering.due_ns() == 0);
}

TEST(ranks_that_ask_for_different_things_are_complete_together) {
  Gathering gathering = of_three();
  gathering.ask(request_of(4), 0);
  gathering.ask(request_of(5, "otherwise"), 0);
  EXPECT(gathering.take_due(1).empty());
  gathering.ask(request_of(6), 0);
  const std::vector<RequestFrame> due = gathering.take_due(1);
  EXPECT(due.size() == 2 && ranks_of(due[0]) == (std::vector<int>{4, 6}) && ranks_of(due[1]) == std::vector<int>{5});
}

// The others have been counted: they will not ask.
TEST(a_recalled_count_completes_a_host) {
  Gathering gathering = of_three();
  gathering.ask(request_of(5), 0);
  EXPECT(gathering.take_due(1).empty());
  gathering.recall(7, {3, 2, false});
  EXPECT(gathering.take_due(1).size() == 1);
  gathering.end_round(7);  // in the next round nobody has been counted
  gathering.ask(request_of(5), 0);
  EXPECT(gathering.take_due(1).empty());
}

TEST(nobody_waits_for_a_rank_that_has_joined) {
  Gathering gathering = of_three();
  gathering.ask(request_of(5), 0);
  gathering.ask(request_of(6), 0);
  EXPECT(gathering.take_due(1).empty());
  gathering.join(4, {});
  EXPECT(gathering.take_due(1).size() == 1);
  gathering.all_have_joined();
  gathering.end_round(0, "x");
  gathering.ask(request_of(5), 0);
  gathering.ask(request_of(6), 0);
  EXPECT(gathering.take_due(1).empty());
}

// What it had submitted before it joined has been counted in this round: that is no other rank's arrival.
TEST(a_rank_that_was_counted_and_has_joined_stands_for_itself) {
  Gathering gathering = of_three();
  gathering.join(4, {{7, 3}});
  gathering.recall(7, {3, 1, false});
  gathering.ask(request_of(5), 0);
  EXPECT(gathering.take_due(1).empty());
  gathering.ask(request_of(6), 0);
  EXPECT(gathering.take_due(1).size() == 1);
}

// A rank that comes late costs a message more, and waits for nobody.
TEST(what_waits_too_long_goes_up_and_the_rest_follows_at_once) {
  Gathering gathering = of_three();
  gathering.ask(request_of(4), 0);
  EXPECT(gathering.due_ns() > 0 && gathering.take_due(gathering.due_ns()).size() == 1);
  gathering.ask(request_of(5), kLater);
  EXPECT(gathering.take_due(kLater).empty());
  gathering.ask(request_of(6), kLater);
  EXPECT(gathering.take_due(kLater).size() == 1);
}

// Rank 1 of one host and rank 3 of the other wait; nothing of that is complete anywhere.
TEST(rank_0_learns_who_waits_on_another_host_by_asking) {
  TwoHosts hosts;
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 4; ++rank) hosts.submit(rank);
    hosts.settle();
  }
  Leader& leader = hosts.world.leader_of(0);
  EXPECT(leader.undecided().empty());
  for (const int rank : {1, 3}) hosts.submit(rank);
  hosts.settle();
  EXPECT(leader.undecided().size() == 1 && leader.undecided()[0].missing == (std::vector<int>{0, 2, 3}));
  leader.ask_who_waits();
  EXPECT(!leader.all_have_told());
  hosts.deliver();
  EXPECT(leader.all_have_told());
  const std::vector<Undecided> waiting = leader.undecided();
  EXPECT(waiting.size() == 1 && waiting[0].arrived == (std::vector<int>{1, 3}));
  EXPECT(waiting.size() == 1 && waiting[0].missing == (std::vector<int>{0, 2}));
}

// ... and unasked only what is late, once, and once that it is over.
TEST(a_leader_says_by_itself_only_what_is_late) {
  TwoHosts hosts;
  for (int rank = 0; rank < 4; ++rank) hosts.submit(rank);
  hosts.settle();
  hosts.submit(3);
  Leader& other = hosts.world.leader_of(1);
  other.tell_waiting();
  EXPECT(hosts.links.empty());
  hosts.time_ns += kLater;
  other.tell_waiting();
  EXPECT(hosts.links.size() == 1 && hosts.links.front().frame.kind == FrameKind::kWaiting);
  hosts.deliver();
  EXPECT(hosts.world.leader_of(0).undecided().size() == 1);
  for (const int rank : {0, 1, 2}) hosts.submit(rank);
  hosts.settle();
  other.tell_waiting();
  hosts.deliver();
  EXPECT(hosts.world.leader_of(0).undecided().empty());
  other.tell_waiting();
  EXPECT(hosts.links.empty());
}

TEST_MAIN
