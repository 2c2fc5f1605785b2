// SPDX-License-Identifier: Apache-2.0
// Faults of a simulation: when each happens, to which rank or host, and what follows.
#include <algorithm>
#include <utility>

#include "platform/clock.h"
#include "simulate/simulation.h"

namespace hvd {

namespace {

constexpr uint64_t kSoonNs = 300'000;  // after a step's start

}  // namespace

void Simulation::arm_faults_of_step(size_t step) {
  if (step < armed_steps_) return;
  armed_steps_ = step + 1;
  for (size_t i = 0; i < program_.faults.size(); ++i) {
    const Fault& fault = program_.faults[i];
    if (fault.event == 0 && fault.step == step) queue_.in(queue_.draw(0, kSoonNs), What::kFault, static_cast<int>(i));
  }
}

void Simulation::arm_faults_of_event() {
  uint64_t next = UINT64_MAX;
  for (size_t i = 0; i < program_.faults.size(); ++i) {
    const uint64_t event = program_.faults[i].event;
    if (event == next_event_fault_) queue_.in(0, What::kFault, static_cast<int>(i));
    if (event > next_event_fault_) next = std::min(next, event);
  }
  next_event_fault_ = next;
}

void Simulation::befall(int number) {
  const Fault& fault = program_.faults[static_cast<size_t>(number)];
  if (counts_.ranks_done == ranks_.size()) return;
  counts_.came[program_.planned_as(number)] = true;
  const auto amount_ns = static_cast<uint64_t>(fault.amount * kMs);
  switch (fault.kind) {
    case FaultKind::kKillRank:
      if (at(fault.target).dead) return;
      at(fault.target).dead = true;
      return liveness_.lose_process(fault.target);
    case FaultKind::kKillHost:
      for (const int rank : world_.topology().ranks_of(fault.target)) at(rank).dead = true;
      return liveness_.lose_host(fault.target, false);
    case FaultKind::kFreeze:
      at(fault.target).frozen_until_ns = fault.amount == 0 ? kForEver : queue_.now_ns() + amount_ns;
      if (fault.amount != 0) queue_.in(amount_ns, What::kThaw, fault.target);
      return liveness_.freeze(fault.target, fault.amount == 0 ? kForEver : amount_ns);
    case FaultKind::kSlow:
      at(fault.target).factor = fault.amount;
      if (const HostMap& map = world_.map(fault.target); map.is_leader()) control_.slow(map.host, fault.amount);
      return;
    case FaultKind::kCut:
      control_.cut(fault.target);
      return liveness_.lose_host(fault.target, true);
    case FaultKind::kDelay:
      control_.delay(fault.target, amount_ns);
      return liveness_.delay(fault.target, amount_ns);
  }
}

void Simulation::thaw(int rank) {
  RankState& mine = at(rank);
  mine.frozen_until_ns = 0;
  if (at(rank).is_gone()) return;
  if (std::exchange(mine.is_late, false)) queue_.in(0, What::kSubmit, rank);
  const HostMap& map = world_.map(rank);
  if (map.is_leader() && holds_frame_[static_cast<size_t>(map.host)]) take_frame(map.host);
  rang(rank);
}

// Its ranks find that the generation has ended: each operation in flight ends with the cause.
void Simulation::end_host(int host) {
  for (const int rank : world_.topology().ranks_of(host)) {
    if (at(rank).dead || at(rank).done || at(rank).ended) continue;
    at(rank).ended = true;
    const bool survives = !liveness_.is_apart(host) && !at(rank).is_frozen(queue_.now_ns());
    if (survives) liveness_.note_told();
  }
}

// A model of the engine: ranks that would wait for the one that has left end with that as the cause.
void Simulation::note_leave(int rank, int leaver) {
  has_left_ = true;
  if (rank != leaver && !at(rank).done) at(rank).ended = true;
}

}  // namespace hvd
