// SPDX-License-Identifier: Apache-2.0
// Batches of a simulation: what a rank's log says is ready, and the collectives that follow from it.
#include <algorithm>
#include <utility>

#include "simulate/simulation.h"

namespace hvd {

bool Simulation::applied(int rank, Record record, const Member::Applied& what) {
  using Kind = Member::Applied::What;
  RankState& mine = at(rank);
  switch (what.what) {
    case Kind::kReady:
      note_outcome(rank, static_cast<const Call&>(*what.call).name, false);
      mine.open.push_back(what.call);
      ++mine.open_entries;
      break;
    case Kind::kZeros:
      note_outcome(rank, texts_.name_of(*what.name), false);
      ++mine.open_entries;
      break;
    case Kind::kFailed:
      ++counts_.failed_calls;
      if (step_of(mine).odd_rank < 0) fail("an operation failed: " + what.status.text());
      note_outcome(rank, static_cast<const Call&>(*what.call).name, true);
      finish_all(rank, {what.call});
      break;
    case Kind::kJoined:
      world_.finish(rank, what.call);
      while (!step_of(mine).joins) ++mine.step;
      if (mine.place != judge_.due(mine.step)) fail("joined before all was done");
      mine.waits = true;
      go_on(rank);
      break;
    default:
      break;
  }
  if (record.kind == RecordKind::kClose) close(rank);
  if (record.kind == RecordKind::kLeave) note_leave(rank, static_cast<int>(record.id));
  return false;
}

void Simulation::note_outcome(int rank, uint32_t name, bool failed) {
  RankState& mine = at(rank);
  const std::string problem = judge_.note_outcome(mine.place, name, failed);
  if (!problem.empty()) fail(problem + ": rank " + std::to_string(rank) + ", " + program_.names[name].text);
  const Judge::Item& item = judge_.order()[std::min(mine.place, judge_.order().size() - 1)];
  ++mine.place;
  if (!mine.joined && item.step != mine.step) fail("ready in another step: rank " + std::to_string(rank));
}

// Makes a batch of all that has become ready since the last CLOSE.
void Simulation::close(int rank) {
  RankState& mine = at(rank);
  const size_t entries = std::exchange(mine.open_entries, 0);
  if (entries == 0) return;
  std::vector<ContributionPtr> calls = std::exchange(mine.open, {});
  if (!program_.batches_take_time) return finish_all(rank, std::move(calls));
  const size_t batch = mine.batches + mine.running.size();
  if (batch == batches_.size()) {
    std::vector<int64_t> elements;
    for (size_t place = mine.place - entries; place < mine.place; ++place) {
      elements.push_back(program_.names[judge_.order()[place].name].elements);
    }
    batches_.push_back({.step = judge_.order()[mine.place - 1].step, .elements = std::move(elements)});
  }
  mine.running.push_back(std::move(calls));
  if (mine.running.size() == 1) enter_batch(rank);
}

// The last one to come starts it.
void Simulation::enter_batch(int rank) {
  const uint32_t number = at(rank).batches;
  RunningBatch& batch = batches_[number];
  at(rank).entered_ns = queue_.now_ns();
  if (++batch.entered < ranks_.size()) return;
  batch.began_ns = queue_.now_ns();
  queue_.in(batch_times_.of_entries(batch.elements, 0), What::kBatchEnd, static_cast<int>(number));
}

// A delay that comes while the batch is under way counts as if it had been there before.
void Simulation::end_batch(int batch) {
  if (control_.is_any_cut()) return;  // all wait for that host's data, until they hear why
  RunningBatch& its = batches_[static_cast<size_t>(batch)];
  if (const uint64_t delay_ns = control_.longest_delay_ns(); delay_ns > its.delay_ns) {
    const uint64_t before_ns = batch_times_.of_entries(its.elements, std::exchange(its.delay_ns, delay_ns));
    queue_.in(batch_times_.of_entries(its.elements, delay_ns) - before_ns, What::kBatchEnd, batch);
    return;
  }
  uint64_t frozen_until_ns = 0;
  for (const RankState& rank : ranks_) {
    if (rank.dead) return;  // the others wait in it, until they hear why
    frozen_until_ns = std::max(frozen_until_ns, rank.frozen_until_ns);
  }
  if (frozen_until_ns > queue_.now_ns()) {
    if (frozen_until_ns != kForEver) queue_.at(frozen_until_ns, What::kBatchEnd, batch);
    return;
  }
  const RunningBatch ended = std::exchange(its, {});
  counts_.add_batch(ended.step, queue_.now_ns() - ended.began_ns);
  for (int rank = 0; rank < world_.topology().size(); ++rank) {
    RankState& mine = at(rank);
    if (mine.ended || mine.running.empty()) continue;
    std::vector<ContributionPtr> calls = std::move(mine.running.front());
    mine.running.erase(mine.running.begin());
    spans_.add({Span::What::kWait, rank, mine.batches, mine.entered_ns, ended.began_ns});
    spans_.add({Span::What::kBatch, rank, mine.batches, ended.began_ns, queue_.now_ns()});
    ++mine.batches;
    finish_all(rank, std::move(calls));
  }
  for (int rank = 0; rank < world_.topology().size(); ++rank) {
    if (at(rank).ended) continue;
    const HostMap& map = world_.map(rank);
    if (!at(rank).running.empty()) {
      enter_batch(rank);
    } else if (map.is_leader() && holds_frame_[static_cast<size_t>(map.host)]) {
      take_frame(map.host);
    } else {
      drive_if_free(rank);
    }
  }
}

void Simulation::finish_all(int rank, std::vector<ContributionPtr> calls) {
  for (const ContributionPtr& call : calls) {
    world_.finish(rank, call);
    --at(rank).in_flight;
  }
  go_on(rank);
}

}  // namespace hvd
