// SPDX-License-Identifier: Apache-2.0
// The engine's parts one by one, without an engine: how a generation ends, who drives and who is woken, what a batch
// collects, what a leader's process serves, what a batch of submissions gives.
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "communicators/registry.h"
#include "engine/serve.h"
#include "execution/execute.h"
#include "negotiation/frames.h"
#include "platform/clock.h"
#include "wakeup/ending.h"
#include "wakeup/wakeup.h"

using namespace hvd;

namespace {

bool is_readable(int fd) {
  pollfd watched{fd, POLLIN, 0};
  return poll(&watched, 1, 0) == 1;
}

// One rank's place in a world, with the memory of its host.
struct Place {
  explicit Place(const std::vector<int>& host_of_rank, int rank = 0) : topology(host_of_rank), map(topology, rank) {
    EXPECT(Segment::create(1, static_cast<uint32_t>(map.ranks_here.size()), 0, &segment).ok());
    board = std::make_unique<SegmentBoard>(*segment, map.local_rank, map.spans_hosts());
    bells = std::make_unique<Bells>(*segment, map.local_rank, nullptr);
    ending = std::make_unique<Ending>(map, *segment, *bells);
    EXPECT(ending->make_descriptor().ok());
  }
  const Topology topology;
  const HostMap map;
  std::unique_ptr<Segment> segment;
  std::unique_ptr<SegmentBoard> board;
  std::unique_ptr<Bells> bells;
  std::unique_ptr<Ending> ending;
};

struct NobodyReads final : Readers {
  bool wait_until(const std::function<bool()>& have_read, bool) override { return have_read(); }
};

struct PlainDriver final : Driver {
  bool drive(bool) override {
    ++times;
    if (on_drive) on_drive(times);
    return false;
  }
  bool has_work() override { return work; }
  int64_t linger_left_ns() const override { return 1000; }  // nobody sleeps for long
  bool has_calls_in_flight() const override { return in_flight; }

  std::function<void(int)> on_drive;
  int times = 0;
  bool work = false, in_flight = false;
};

SubmissionPtr submission_of_bytes(uint64_t bytes) {
  auto made = std::make_shared<Submission>();
  made->total_bytes = bytes;
  return made;
}

}  // namespace

TEST(a_generation_that_goes_on_has_no_reason_to_be_over) {
  Place place({0, 0});
  EXPECT(place.ending->why_over().ok() && place.ending->seen().ok() && !place.ending->poisoned());
  EXPECT(!is_readable(place.ending->poison_fd()) && !place.ending->interrupt().raised());
}

TEST(the_first_cause_wins_over_a_rank_that_left_and_wakes_polls) {
  Place place({0, 0});
  place.ending->note_left(1);
  EXPECT(place.ending->why_over().code() == HVD_RANK_LEFT && place.ending->why_over().failed_rank() == 1);
  place.ending->poison(HVD_RANK_LOST, 7, "first");  // no such rank: nobody is named
  place.ending->poison(HVD_ABORTED, 1, "second");
  EXPECT(is_readable(place.ending->poison_fd()) && place.ending->interrupt().raised());
  const Status why = place.ending->why_over();
  EXPECT(why.code() == HVD_RANK_LOST && why.failed_rank() == -1 && why.text() == "first");
  EXPECT(place.ending->begin_spreading() && !place.ending->begin_spreading() && place.ending->is_spread());
}

TEST(a_rank_that_stops_is_told_so_whatever_else_has_happened) {
  Place place({0, 0});
  place.ending->note_left(1);
  EXPECT(place.ending->begin_stop(5) && !place.ending->begin_stop(6) && place.ending->stop_deadline_ns() == 5);
  EXPECT(place.ending->why_over().code() == HVD_NOT_RUNNING);
  EXPECT(place.ending->stopping() && !place.ending->stopped());
}

TEST(its_own_leave_stands_where_the_other_ranks_monitors_look) {
  Place place({0, 0}, 1);
  place.ending->note_left(0);
  EXPECT(place.segment->rank(1).left.load() == 0);
  place.ending->note_left(1);
  EXPECT(place.segment->rank(1).left.load() == 1 && place.ending->left() == (std::vector<bool>{true, true}));
  place.ending->note_left(99);  // no rank of this world
  EXPECT(place.ending->left().size() == 2);
}

TEST(only_ends_of_the_job_are_remembered_and_the_first_stays) {
  Place place({0, 0});
  place.ending->remember({HVD_MISMATCH, "a shape"});
  EXPECT(place.ending->seen().ok());
  place.ending->remember({HVD_RANK_LEFT, "left", 1});
  place.ending->remember({HVD_ABORTED, "later"});
  EXPECT(place.ending->seen().code() == HVD_RANK_LEFT);
}

TEST(a_cause_that_cannot_be_read_names_its_sender) {
  Place place({0, 1});
  place.ending->take_abort(1, "x");
  EXPECT(place.ending->cause().failed_rank() == 1 && place.ending->cause().code() == HVD_RANK_LOST);
}

TEST(a_caller_drives_until_it_is_done_and_lets_the_token_go) {
  Place place({0, 0});
  std::atomic<bool> done{false};
  PlainDriver driver;
  driver.on_drive = [&](int times) { done.store(times == 500); };  // it has slept on its bell by then
  Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
  wakeup.begin_waiting();
  wakeup.wait(done, UINT64_MAX);
  wakeup.end_waiting();
  EXPECT(driver.times == 500 && !wakeup.somebody_drives());
}

TEST(a_caller_gives_up_at_its_deadline) {
  Place place({0, 0});
  std::atomic<bool> done{false};
  PlainDriver driver;
  Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
  const uint64_t deadline_ns = now_ns() + 5000000;
  wakeup.wait(done, deadline_ns);
  EXPECT(now_ns() >= deadline_ns && !wakeup.somebody_drives());
}

// It does not drive, and a completion wakes it.
TEST(a_second_caller_sleeps_until_a_completion) {
  Place place({0, 0});
  std::atomic<bool> done{false}, ended{false};
  PlainDriver driver;
  Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
  EXPECT(wakeup.take_token() && !wakeup.take_token() && wakeup.somebody_drives());
  std::thread other([&] {
    wakeup.wait(done, UINT64_MAX);
    ended.store(true);
  });
  EXPECT(!ended.load());
  done.store(true);
  wakeup.completed();
  other.join();
  EXPECT(driver.times == 0);
  wakeup.drop_token();
  EXPECT(wakeup.take_token());
}

TEST(nobody_takes_a_turn_from_whoever_drives_or_stops) {
  Place place({0, 0});
  PlainDriver driver;
  Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
  {
    Wakeup::Turn first(wakeup), second(wakeup);
    EXPECT(first.drives() && !second.drives() && wakeup.callers_wait());
  }
  EXPECT(!wakeup.callers_wait() && !wakeup.somebody_drives());
  place.ending->begin_stop(UINT64_MAX);
  EXPECT(!Wakeup::Turn(wakeup).drives());
  place.ending->finish_stop();
  EXPECT(Wakeup::Turn(wakeup).drives());
}

TEST(a_caller_that_waits_shows_on_its_host) {
  Place place({0, 0});
  PlainDriver driver;
  Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
  EXPECT(!wakeup.callers_wait() && !place.board->anybody_waits());
  wakeup.begin_waiting();
  EXPECT(wakeup.callers_wait() && place.board->anybody_waits());
  wakeup.end_waiting();
  EXPECT(!wakeup.callers_wait() && !place.board->anybody_waits());
}

// The engine's thread, which slept without the sockets, has to sleep with them from now on.
TEST(a_caller_that_leaves_something_in_flight_rings_only_if_there_are_sockets) {
  for (const bool sockets : {false, true}) {
    Place place({0, 0});
    if (sockets) place.bells->watch({0});
    PlainDriver driver;
    Wakeup wakeup(*place.board, *place.bells, *place.ending, driver);
    const auto rung = [&] { return place.segment->rank(0).bell[0].load(); };
    wakeup.hand_over();
    EXPECT(rung() == 0);
    driver.in_flight = true;
    wakeup.hand_over();
    EXPECT(rung() == (sockets ? 1u : 0u));
    driver.in_flight = false;
    driver.work = true;
    wakeup.hand_over();
    EXPECT(rung() == (sockets ? 2u : 1u));
  }
}

TEST(a_batch_waits_since_its_first_call) {
  OpenBatch batch;
  EXPECT(batch.is_empty() && batch.since_ns() == 0);
  batch.add(submission_of_bytes(10), 100);
  batch.add(submission_of_bytes(20), 200);
  EXPECT(batch.since_ns() == 100 && batch.bytes() == 30 && !batch.is_empty());
  EXPECT(batch.take().size() == 2 && batch.is_empty() && batch.since_ns() == 0 && batch.bytes() == 0);
  batch.add(submission_of_bytes(5), 300);
  EXPECT(batch.since_ns() == 300 && batch.bytes() == 5);
}

TEST(a_leader_serves_its_hosts_ranks) {
  Place place({0, 0});
  NobodyReads readers;
  SteadyClock clock;
  EngineSettings settings;
  HostService service(settings, place.map, *place.segment, *place.board, clock, *place.bells, *place.ending, readers);
  std::vector<EngineOptions::Link> none;
  EXPECT(service.take_links(&none).ok() && service.is_alone());
  EXPECT(!service.has_work() && !service.serve());
  RingSender ring;
  ring.attach(&place.segment->ring(1));
  ring.send(FrameKind::kLeave, leave_payload(1));
  EXPECT(service.has_work() && service.serve() && !service.has_work());
  Record record;
  EXPECT(place.segment->peek(0, &record) && record.kind == RecordKind::kLeave && record.id == 1);
  service.tick();
  EXPECT(service.has_work());
  service.serve();
  EXPECT(!service.has_work() && !place.ending->poisoned());
  ring.send(FrameKind::kLeave, leave_payload(0));  // of another rank than its own
  service.serve();
  EXPECT(place.ending->poisoned() && place.ending->cause().failed_rank() == 1);
}

TEST(the_end_of_a_link_is_a_loss_unless_the_rank_has_left) {
  Place place({0, 1});
  NobodyReads readers;
  SteadyClock clock;
  EngineSettings settings;
  HostService service(settings, place.map, *place.segment, *place.board, clock, *place.bells, *place.ending, readers);
  std::vector<EngineOptions::Link> links;
  EXPECT(!service.take_links(&links).ok());
  int fds[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  links.push_back({1, HVD_LINK_CONTROL, fds[0], 0});
  EXPECT(service.take_links(&links).ok() && links[0].fd == -1 && !service.is_alone());
  EXPECT(!service.serve() && !place.ending->poisoned());
  close(fds[1]);
  EXPECT(service.serve());
  EXPECT(place.ending->cause().code() == HVD_RANK_LOST && place.ending->cause().failed_rank() == 1);
}

TEST(a_batch_of_submissions_is_averaged_into_their_outputs) {
  auto set = std::make_shared<ProcessSet>();
  set->ranks = {0};
  set->member = 0;
  set->topology = Topology({0});
  EXPECT(choose_communicator("auto", set->topology, true, &set->row).ok());
  EXPECT(set->row->make({set->ranks, 0, set->topology}, {}, &set->communicator).ok());
  float input[2] = {3, 5}, output[2] = {};
  auto prepared = std::make_shared<Prepared>();
  prepared->descriptor.op = HVD_AVERAGE;
  prepared->descriptor.tensors = prepared->tensors = {{HVD_FLOAT32, {2}}};
  prepared->descriptor.postscale = 2;
  prepared->set = set;
  auto submission = std::make_shared<Submission>();
  submission->inputs = {input};
  submission->outputs = {output};
  submission->prepared = prepared;
  Execution execution(0, InstructionSet::kBest);
  const Descriptor* descriptors[] = {&prepared->descriptor};
  for (const Batch& batch : plan_batches(descriptors, 1 << 20)) EXPECT(execution.run(batch, {submission}).ok());
  EXPECT(output[0] == 6 && output[1] == 10);
  EXPECT(execution.counts().batches.load() == 1 && execution.counts().bytes.load() == 8);
}

TEST_MAIN
