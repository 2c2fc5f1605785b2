// SPDX-License-Identifier: Apache-2.0
// A seeded run of many ranks on many hosts in one thread and in virtual time, over the engine's own Member, Leader and
// Coordinator (simulate/world.h).
//
// A program is a list of steps. In a step a rank submits every name once, waits until all of them are done, and goes
// on. Checked at every event: nothing is ready before all ranks that take part have submitted it, and all ranks see one
// order (judge.h). Checked at the end: no rank sleeps on something it could do, all survivors of a loss have heard of
// it, and nothing has grown without bounds.
//
// Shipped code: negotiation, when leaders speak, what a batch is (fusion/batch.h), and the algorithm whose time a batch
// takes (batch_times.h). Modelled: when threads wake (3 to 50 us), the ways and processors of leaders (control.h), and
// how losses are noticed (liveness.h). As in the engine, a rank that is in a batch reads no log and no frame.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulate/batch_times.h"
#include "simulate/control.h"
#include "simulate/counts.h"
#include "simulate/judge.h"
#include "simulate/liveness.h"
#include "simulate/program.h"
#include "simulate/queue.h"
#include "simulate/spans.h"
#include "simulate/world.h"

namespace hvd {

class Simulation final : public PlainWorld::Owner {
 public:
  explicit Simulation(Program program);
  // Without the time of collectives; names of 400 bytes.
  Simulation(int hosts, int ranks_per_host, int names, std::vector<SimulatedStep> steps, uint64_t seed,
             int star_hosts = ControlTree::kStarHosts);

  // Until nothing happens any more. Empty if all went well.
  std::string run();
  // At most so many events. False: nothing happens any more.
  bool run_for(uint64_t events);
  const std::string& problem() const { return problem_; }

  const Counts& counts() const { return counts_; }
  const Liveness& liveness() const { return liveness_; }
  const EventQueue& queue() const { return queue_; }
  const Spans& spans() const { return spans_; }
  PlainWorld& world() { return world_; }
  // Which ranks some others wait for, as rank 0 knows it.
  std::vector<Undecided> undecided();

 private:
  using What = EventQueue::What;
  struct Call final : PlainCall {
    uint32_t name = 0;
  };
  struct RankState {
    uint32_t step = 0;
    uint32_t submitted = 0;       // names of this step
    std::vector<uint32_t> order;  // of names; empty: as they come
    uint64_t began_ns = 0, pace_ns = 0;
    uint64_t entered_ns = 0;  // the batch that it is in
    double factor = 1;        // slower by
    uint32_t in_flight = 0;
    bool waits = false, joined = false, driving = false, done = false;
    bool dead = false, ended = false;  // gone by a fault; knows that the generation has ended
    bool is_late = false;              // a submission was due while it was frozen
    uint64_t frozen_until_ns = 0;
    std::vector<ContributionPtr> open;                  // ready, not closed
    size_t open_entries = 0;                            // with those to which it gives zeros
    size_t place = 0;                                   // in the one order
    std::vector<EntryRef> refs;                         // by name
    std::vector<std::vector<ContributionPtr>> running;  // batches that it is in, or has to run
    uint32_t batches = 0;                               // ended

    bool is_gone() const { return dead || ended; }
    bool is_frozen(uint64_t now_ns) const { return frozen_until_ns > now_ns; }
  };
  struct RunningBatch {
    size_t entered = 0, step = 0;
    std::vector<int64_t> elements = {};
    uint64_t began_ns = 0, delay_ns = 0;  // which each of its rounds takes longer
  };
  static constexpr uint64_t kForEver = UINT64_MAX;

  RankState& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  const SimulatedStep& step_of(const RankState& rank) const { return program_.steps[rank.step]; }
  void fail(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  // Owner
  uint64_t now_ns() override { return queue_.now_ns() + 1; }
  void rang(int rank) override;
  void sent(int from, int to, Frame frame) override;
  bool applied(int rank, Record record, const Member::Applied& what) override;

  // simulation.cc: the loop, and what ranks and leaders do.
  void happen(const EventQueue::Event& event);
  void begin_step(int rank);
  void enter_step(int rank);
  uint64_t ready_at_ns(const RankState& rank) const;
  void submit(int rank);
  void wait(int rank);
  void join(int rank);
  void leave(int rank);
  void take_frame(int host);
  void drive_if_free(int rank);
  void drive(int rank);
  void go_on(int rank);
  void judge_end();

  // batches.cc: what is ready, and batches.
  void note_outcome(int rank, uint32_t name, bool failed);
  void close(int rank);
  void enter_batch(int rank);
  void end_batch(int batch);
  void finish_all(int rank, std::vector<ContributionPtr> calls);

  // faults.cc
  void arm_faults_of_step(size_t step);
  void arm_faults_of_event();
  void befall(int number);
  void thaw(int rank);
  void end_host(int host);
  void note_leave(int rank, int leaver);

  const Program program_;
  EventQueue queue_;
  Texts texts_;
  PlainWorld world_;
  ControlNetwork control_;
  Liveness liveness_;
  DelayedBatchTimes batch_times_;
  Judge judge_;
  Planted planted_;
  Counts counts_;
  Spans spans_;
  std::vector<RankState> ranks_;
  std::vector<uint64_t> speaking_at_;  // by host
  std::vector<bool> holds_frame_;      // by host: its leader could not take it
  std::vector<RunningBatch> batches_;
  size_t dead_from_step_ = SIZE_MAX, armed_steps_ = 0, most_log_ = 0;
  uint64_t next_event_fault_ = UINT64_MAX;
  bool has_begun_ = false, has_left_ = false;
  std::string problem_;
};

}  // namespace hvd
