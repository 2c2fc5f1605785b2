// SPDX-License-Identifier: Apache-2.0
// A host's leader and its parts: how equal requests become one, and how rank 0 learns who waits on other hosts.
#include "check.h"
#include "liveness/stall.h"
#include "negotiation/request_merger.h"
#include "plain_hosts.h"

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

RequestMerger of_three() {
  RequestMerger merger;
  merger.add_set(0, {4, 5, 6});
  merger.define(7, 0, "x");
  return merger;
}

struct TwoHosts final : PlainHosts {
  TwoHosts() : PlainHosts({0, 0, 1, 1}) {}
};

}  // namespace

TEST(equal_requests_of_a_host_go_up_as_one) {
  RequestMerger merger = of_three();
  for (const int rank : {5, 4}) EXPECT(merger.ask(request_of(rank), 0).empty() && !merger.is_empty());
  const std::vector<RequestFrame> due = merger.ask(request_of(6), 0);
  EXPECT(due.size() == 1 && ranks_of(due[0]) == (std::vector<int>{5, 4, 6}));
  EXPECT(merger.is_empty() && merger.due_ns() == 0);
}

TEST(ranks_that_ask_for_different_things_are_complete_together) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(4), 0).empty() && merger.ask(request_of(5, "otherwise"), 0).empty());
  const std::vector<RequestFrame> due = merger.ask(request_of(6), 0);
  EXPECT(due.size() == 2 && ranks_of(due[0]) == (std::vector<int>{4, 6}) && ranks_of(due[1]) == std::vector<int>{5});
}

// The others have been counted: they will not ask.
TEST(a_recalled_count_completes_a_host) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(5), 0).empty());
  EXPECT(merger.recall(7, {3, 2, false}).size() == 1);
  merger.end_round(7);  // in the next round nobody has been counted
  EXPECT(merger.ask(request_of(5), 0).empty());
}

TEST(nobody_waits_for_a_rank_that_has_joined) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(5), 0).empty() && merger.ask(request_of(6), 0).empty());
  EXPECT(merger.join(4, {}).size() == 1);
  merger.all_have_joined();
  merger.end_round(0, "x");
  EXPECT(merger.ask(request_of(5), 0).empty() && merger.ask(request_of(6), 0).empty());
}

// What it had submitted before it joined has been counted in this round: that is no other rank's arrival.
TEST(a_rank_that_was_counted_and_has_joined_stands_for_itself) {
  RequestMerger merger = of_three();
  EXPECT(merger.join(4, {{7, 3}}).empty() && merger.recall(7, {3, 1, false}).empty());
  EXPECT(merger.ask(request_of(5), 0).empty());
  EXPECT(merger.ask(request_of(6), 0).size() == 1);
}

// A rank that comes late costs a message more, and waits for nobody.
TEST(what_waits_too_long_goes_up_and_the_rest_follows_at_once) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(4), 0).empty() && merger.take_late(merger.due_ns() - 1).empty());
  EXPECT(merger.take_late(merger.due_ns()).size() == 1 && merger.is_empty());
  EXPECT(merger.ask(request_of(5), kLater).empty());
  EXPECT(merger.ask(request_of(6), kLater).size() == 1);
}

TEST(what_a_rank_asked_goes_before_what_it_says_next) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(4), 0).empty());
  EXPECT(merger.take_of(5).empty() && merger.take_of(4).size() == 1);
  EXPECT(merger.take_of(4).empty() && merger.is_empty());
}

// A round that is over, or a set that is gone, leaves nothing behind that would become due.
TEST(what_is_over_is_not_sent) {
  RequestMerger merger = of_three();
  EXPECT(merger.ask(request_of(4), 0).empty());
  merger.end_round(0, "x");
  EXPECT(merger.is_empty() && merger.take_late(kLater).empty());
  EXPECT(merger.ask(request_of(4), 0).empty());
  merger.remove_set(0);
  EXPECT(merger.is_empty() && merger.take_late(kLater).empty());
}

TEST(an_answer_to_a_recall_follows_what_was_complete_and_not_told) {
  TwoHosts hosts;
  for (int rank = 0; rank < 4; ++rank) hosts.submit(rank);
  hosts.settle();
  for (const int rank : {3, 2}) hosts.submit(rank);  // complete on host 1
  EXPECT(hosts.links.empty());                       // which keeps it for a batch
  hosts.submit(0, 4);                                // another shape: rank 0 recalls the entry
  while (hosts.world.take_ring(0, 0)) continue;
  hosts.deliver_one();
  EXPECT(hosts.links.size() == 2 && hosts.links[0].frame.kind == FrameKind::kHostReady);
  EXPECT(hosts.links.size() == 2 && hosts.links[1].frame.kind == FrameKind::kRecalled);
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
  leader.facts().ask_who_waits();
  EXPECT(!leader.facts().all_have_told());
  hosts.deliver();
  EXPECT(leader.facts().all_have_told());
  const std::vector<Undecided> waiting = leader.undecided();
  EXPECT(waiting.size() == 1 && waiting[0].arrived == (std::vector<int>{1, 3}));
  EXPECT(waiting.size() == 1 && waiting[0].missing == (std::vector<int>{0, 2}));
}

// The report waits for the answers, and then names nobody who has come.
TEST(a_stall_report_names_only_ranks_that_are_missing_everywhere) {
  TwoHosts hosts;
  for (int round = 0; round < 2; ++round) {
    for (int rank = 0; rank < 4; ++rank) hosts.submit(rank);
    hosts.settle();
  }
  for (const int rank : {1, 3}) hosts.submit(rank);
  hosts.settle();
  EngineSettings settings;
  settings.stall_warning_ms = settings.stall_shutdown_ms = 1;
  StallReport stall(settings, hosts.world.leader_of(0));
  stall.note_tick();
  EXPECT(stall.report().ok() && !stall.is_answered());
  hosts.deliver();
  EXPECT(stall.is_answered());
  stall.note_tick();
  const Status outcome = stall.report();
  EXPECT(outcome.code() == HVD_ABORTED && outcome.text().find("missing ranks 0, 2,") != std::string::npos);
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
