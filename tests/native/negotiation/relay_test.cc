// SPDX-License-Identifier: Apache-2.0
// The tree of leaders: who speaks with whom, what a relay makes of its hosts' words, and a world with one.
#include "negotiation/relay/relay.h"

#include <set>

#include "check.h"
#include "liveness/stall.h"
#include "plain_hosts.h"

using namespace hvd;

namespace {

constexpr uint32_t kId = 3;

// Host 1 relays for host 2; two ranks are on each host.
struct Relayed {
  Relayed() : topology({0, 0, 1, 1, 2, 2, 3, 3, 4, 4}), map(topology, 2, 1), relay(map) {
    relay.add_set(0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    define(0);
  }
  void define(int32_t set) {
    Descriptor descriptor;
    descriptor.process_set = set;
    descriptor.tensors = {{HVD_FLOAT32, {3}}};
    relay.note({RecordKind::kDefine, kId, true, Writer().put_string("x").put_string(descriptor.encode()).take()});
  }
  bool ready(size_t place) { return relay.host_ready(place, {kId, static_cast<int>(place)}, &answers); }
  bool recalled(size_t place, Recalled found) { return relay.recalled(place, {kId, found, {}}, &answers); }
  bool is_silent() const { return answers.is_empty(); }

  const Topology topology;
  const HostMap map;
  Relay relay;
  Relay::Answers answers;
};

struct FiveHosts final : PlainHosts {
  FiveHosts() : PlainHosts({0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, 1) {}
  void submit_all(const std::string& name = "x") {
    for (int rank = 0; rank < 10; ++rank) submit(rank, 3, name);
    settle();
  }
  // All leaders report the name as complete.
  void report(const std::string& name) {
    for (int rank = 0; rank < 10; ++rank) {
      submit(rank, 3, name);
      while (world.take_ring(rank / 2, static_cast<uint32_t>(rank % 2))) continue;
    }
    time_ns += 2000000;
    for (int host = 0; host < 5; ++host) world.speak(host);
  }
  // Takes the messages that are there, and none that comes of these; where they went.
  std::set<int> take_all() {
    std::set<int> takers;
    for (size_t left = links.size(); left > 0; --left) takers.insert(take_one());
    return takers;
  }
  Leader& rank_0() { return world.leader_of(0); }
};

}  // namespace

TEST(every_host_of_a_tree_reaches_rank_0_and_no_leader_has_many_links) {
  for (const int star_hosts : {2, 8, 256}) {
    for (int hosts = 1; hosts <= 600; ++hosts) {
      const ControlTree tree(hosts, star_hosts);
      std::multiset<int> reached;
      for (int host = 0; host < hosts; ++host) {
        for (const int below : tree.below(host)) {
          reached.insert(below);
          EXPECT(tree.above(below) == host && below > host);
        }
        const int group = tree.group_of(host);
        EXPECT(tree.relay_of(group) <= host && host < tree.end_of(group) && group < tree.groups());
        EXPECT(host == 0 || tree.above(tree.relay_of(group)) == 0);
        if (hosts <= star_hosts) continue;
        const auto links = static_cast<int>(tree.below(host).size());
        EXPECT((links - 1) * (links - 1) < hosts);
      }
      EXPECT(reached.size() == static_cast<size_t>(hosts - 1));
      EXPECT(std::set<int>(reached.begin(), reached.end()).size() == reached.size());
      if (hosts <= star_hosts) EXPECT(tree.groups() == hosts);
    }
  }
}

TEST(an_entry_is_ready_in_a_group_once_it_is_on_all_of_its_hosts) {
  Relayed group;
  EXPECT(group.ready(1) && group.ready(1) && group.is_silent());
  EXPECT(group.ready(0) && group.answers.ready.size() == 1);
  EXPECT(group.answers.ready[0].id == kId && group.answers.ready[0].last_rank == 0);  // of the host that came last
  group.answers = {};
  group.relay.note({RecordKind::kReady, kId, true, {}});
  EXPECT(group.ready(0) && group.is_silent());  // the next round
}

TEST(only_hosts_with_members_of_the_set_count_in_a_group) {
  Relayed group;
  EXPECT(group.relay.add_set(5, {1, 4, 5, 8}) == (std::vector<int>{4, 5}));
  group.define(5);
  EXPECT(!group.ready(0) && group.ready(1) && group.answers.ready.size() == 1);
  EXPECT(group.relay.ask_recall(kId) && !group.relay.counts_on(kId, 0) && group.relay.counts_on(kId, 1));
  group.relay.add_set(6, {0, 1});
  group.define(6);
  EXPECT(!group.relay.ask_recall(kId) && !group.relay.ask_may_retire(kId) && !group.ready(1));
}

TEST(a_group_answers_a_recall_with_the_counts_of_all_hosts) {
  Relayed group;
  EXPECT(!group.recalled(0, {}));  // nobody has asked
  EXPECT(group.ready(1) && group.relay.ask_recall(kId));
  EXPECT(!group.recalled(0, {7, 3, false}));  // more than it has
  EXPECT(group.recalled(0, {7, 1, false}) && !group.recalled(0, {7, 1, false}) && group.is_silent());
  EXPECT(group.recalled(1, {7, 0, true}) && group.answers.recalled.size() == 1);
  const RecalledFrame& answer = group.answers.recalled[0];
  EXPECT(answer.found.round == 7 && answer.found.count == 3 && !answer.found.complete && answer.others.empty());
}

// Rank 0 must not decide before such a host has said that it was complete.
TEST(a_group_answers_a_recall_once_hosts_that_were_complete_have_said_so) {
  Relayed group;
  EXPECT(group.relay.ask_recall(kId) && group.recalled(0, {7, 0, true}) && group.recalled(1, {7, 0, true}));
  EXPECT(group.is_silent() && group.ready(0) && group.is_silent());
  EXPECT(group.ready(1) && group.answers.ready.size() == 1 && group.answers.recalled.size() == 1);
  EXPECT(group.answers.recalled[0].found.complete && group.answers.recalled[0].found.count == 0);
}

// An id that another set had on some of these hosts only.
TEST(hosts_may_number_a_round_differently) {
  Relayed group;
  EXPECT(group.relay.ask_recall(kId) && group.recalled(1, {9, 1, false}) && group.recalled(0, {7, 1, false}));
  const RecalledFrame& answer = group.answers.recalled.at(0);
  EXPECT(answer.found.round == 7 && answer.found.count == 2);
  EXPECT(answer.others == (RoundOfRank{{4, 9}, {5, 9}}));
  RecalledFrame read;
  EXPECT(parse_recalled(recalled_payload(answer), 10, &read) && read.others == answer.others);
  EXPECT(!parse_recalled(recalled_payload(answer), 5, &read));
  // Rank 4 had been counted in that round before it joined, rank 3 in an earlier one.
  Coordinator coordinator({0, 0, 1, 1, 1, 1});
  Effects effects;
  const std::string descriptor = [] {
    Descriptor one;
    one.tensors = {{HVD_FLOAT32, {3}}};
    return one.encode();
  }();
  for (int rank = 0; rank < 6; ++rank) EXPECT(coordinator.request({{rank, true}}, 0, "x", descriptor, 0, &effects));
  effects = {};
  EXPECT(coordinator.join(3, {{0, 9}}, 0, &effects) && coordinator.join(4, {{0, 9}}, 0, &effects));
  EXPECT(effects.recalls.size() == 1 && coordinator.recalled(0, 0, {7, 2, false}, &effects));
  EXPECT(coordinator.request({{2, true}}, 0, "x", descriptor, 0, &effects));
  EXPECT(coordinator.request({{5, true}}, 0, "x", descriptor, 0, &effects) && effects.decisions.empty());
  EXPECT(coordinator.recalled(1, 0, {7, 1, false}, &effects, {{4, 9}, {5, 9}}));
  EXPECT(effects.decisions.size() == 1 && effects.decisions[0].kind == RecordKind::kReady);
}

TEST(a_name_of_a_group_may_go_if_all_hosts_let_it_and_its_number_once_all_have_read_so) {
  for (const bool other_is_idle : {true, false}) {
    Relayed group;
    EXPECT(!group.relay.may_retire(0, {kId, true}, &group.answers));
    EXPECT(group.relay.ask_may_retire(kId) && group.relay.may_retire(1, {kId, other_is_idle}, &group.answers));
    EXPECT(group.is_silent() && group.relay.may_retire(0, {kId, true}, &group.answers));
    EXPECT(group.answers.may_retire.at(0).idle == other_is_idle);
  }
  Relayed group;
  EXPECT(!group.relay.retired(0, kId, &group.answers));
  group.relay.note({RecordKind::kRetire, kId, false, {}});
  EXPECT(group.relay.retired(0, kId, &group.answers) && group.is_silent());
  EXPECT(group.relay.retired(1, kId, &group.answers) && group.answers.retired == std::vector<uint32_t>{kId});
}

TEST(rank_0_hears_one_word_of_a_group) {
  FiveHosts hosts;
  hosts.submit_all();
  for (int rank = 2; rank < 10; ++rank) hosts.submit(rank);
  for (int rank = 2; rank < 10; ++rank) {
    while (hosts.world.take_ring(rank / 2, static_cast<uint32_t>(rank % 2))) continue;
  }
  hosts.time_ns += 2000000;
  for (int host = 1; host < 5; ++host) hosts.world.speak(host);
  size_t to_rank_0 = 0;
  for (; !hosts.links.empty(); hosts.deliver_one()) to_rank_0 += hosts.links.front().to == 0 ? 1 : 0;
  EXPECT(to_rank_0 == 2);
  for (const int rank : {0, 1}) hosts.submit(rank);
  hosts.settle();
  EXPECT(hosts.rank_0().undecided().empty());
}

TEST(reports_that_are_there_together_go_on_as_one_message) {
  FiveHosts hosts;
  for (const char* const name : {"x", "y"}) hosts.submit_all(name);
  for (const char* const name : {"x", "y"}) hosts.report(name);
  EXPECT(hosts.links.size() == 4 && hosts.take_all() == (std::set<int>{1, 3}) && hosts.links.empty());
  for (const int relay : {1, 3}) hosts.world.pass_on(relay);
  EXPECT(hosts.links.size() == 2 && hosts.take_all() == std::set<int>{0} && hosts.links.empty());
  EXPECT(hosts.rank_0().has_to_pass_on());
  hosts.world.pass_on(0);
  EXPECT(hosts.links.size() == 2);  // one to each relay, with both names
  hosts.settle();
  EXPECT(hosts.rank_0().undecided().empty());
}

TEST(any_other_message_passes_reports_on_first) {
  FiveHosts hosts;
  hosts.submit_all();
  hosts.report("x");
  hosts.take_all();
  hosts.world.pass_on(3);
  EXPECT(hosts.world.leader_of(1).has_to_pass_on() && hosts.links.size() == 1);
  hosts.world.take_from_host(1, 2, {FrameKind::kLeave, leave_payload(4)});
  EXPECT(hosts.links.size() == 3 && hosts.links[1].frame.kind == FrameKind::kHostReady);
  EXPECT(hosts.links[2].frame.kind == FrameKind::kLeave);
  hosts.take_all();
  std::vector<RecordKind> first;  // of each message to relay 1
  for (const auto& sent : hosts.links) {
    std::vector<Decision> decisions;
    EXPECT(parse_records(sent.frame.payload, 10, &decisions));
    if (sent.to == 1) first.push_back(decisions.front().kind);
  }
  EXPECT(first == (std::vector{RecordKind::kReady, RecordKind::kLeave}));
}

TEST(a_stall_report_names_ranks_of_a_group_and_not_the_group) {
  FiveHosts hosts;
  for (int round = 0; round < 2; ++round) hosts.submit_all();
  for (const int rank : {1, 5, 6, 7, 9}) hosts.submit(rank);
  hosts.settle();
  hosts.rank_0().facts().ask_who_waits();
  hosts.deliver();
  EXPECT(hosts.rank_0().facts().all_have_told());
  const std::vector<Undecided> waiting = hosts.rank_0().undecided();
  EXPECT(waiting.size() == 1 && waiting[0].arrived == (std::vector<int>{1, 5, 6, 7, 9}));
  EXPECT(waiting.size() == 1 && waiting[0].missing == (std::vector<int>{0, 2, 3, 4, 8}));
  hosts.rank_0().facts().ask_for_stacks({4, 8});
  hosts.deliver();
  for (int host = 1; host < 5; ++host) hosts.world.leader_of(host).facts().collect_stacks();
  hosts.deliver();
  EXPECT(hosts.rank_0().facts().stacks().contains(4) && hosts.rank_0().facts().stacks().contains(8));
  EXPECT(hosts.world.failure().empty());
}

// Its leader may be inside of a batch. Rank 0 waits for 2 s.
TEST(a_relay_answers_for_a_silent_host_after_a_second) {
  FiveHosts hosts;
  hosts.submit_all();
  hosts.submit(2);
  hosts.settle();
  hosts.rank_0().facts().ask_who_waits();
  while (!hosts.links.empty()) {
    if (hosts.links.front().to == 2) hosts.links.pop_front();
    if (!hosts.links.empty()) hosts.deliver_one();
  }
  Leader& relay = hosts.world.leader_of(1);
  relay.tell_waiting();
  EXPECT(hosts.links.empty() && !hosts.rank_0().facts().all_have_told());
  hosts.time_ns += 1000000000;
  relay.tell_waiting();
  hosts.deliver();
  EXPECT(hosts.rank_0().facts().all_have_told());
  EXPECT(hosts.rank_0().undecided().at(0).arrived == std::vector<int>{2});
}

TEST(a_relay_takes_no_word_of_a_host_about_others) {
  const auto is_refused = [](int from, FrameKind kind, const std::string& payload) {
    FiveHosts hosts;
    hosts.submit_all();
    hosts.world.take_from_host(1, from, {kind, payload});
    return hosts.world.failure().find("cannot be read") != std::string::npos;
  };
  EXPECT(!is_refused(2, FrameKind::kHostReady, host_ready_payload({{0, 4}})));
  EXPECT(is_refused(3, FrameKind::kHostReady, host_ready_payload({{0, 6}})));  // of another group
  EXPECT(is_refused(2, FrameKind::kHostReady, host_ready_payload({{7, 4}})));  // no such entry
  EXPECT(is_refused(2, FrameKind::kRecalled, recalled_payload({0, {1, 1, false}, {}})));
  EXPECT(is_refused(2, FrameKind::kRetired, ids_payload({0})));
  EXPECT(is_refused(2, FrameKind::kMayRetire, may_retire_payload({{0, true}})));
  EXPECT(is_refused(2, FrameKind::kLeave, leave_payload(3)));
  EXPECT(is_refused(2, FrameKind::kJoin, join_payload({3, {}})));
  EXPECT(is_refused(2, FrameKind::kStack, stack_payload(3, "here")));
  EXPECT(is_refused(2, FrameKind::kWaiting, waiting_payload({{{0, 1, {3}}}, {}})));
  EXPECT(is_refused(2, FrameKind::kRecords, records_payload({})));
}

TEST_MAIN
