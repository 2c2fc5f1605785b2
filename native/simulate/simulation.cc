// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulation.h"

#include <algorithm>
#include <utility>

#include "collectives/plan.h"

namespace hvd {

namespace {

// Slots of a log: more than a step needs, since a leader that waits for room cannot be simulated. In a step, a name has
// at most four records: it is retired, defined, ready and closed. The library's log has 8,192 slots, which thousands
// of names may fill.
constexpr size_t kLeastSlots = 512, kSlotsForName = 2 * 4;
constexpr uint64_t kPatienceNs = 2'000'000'000;
constexpr uint64_t kLeastBellNs = 3'000, kMostBellNs = 50'000, kPaceNs = 2'000;
constexpr size_t kTemporaryIds = 512;  // of names that run once (negotiation/decision.h)

size_t slots_for(size_t names) { return std::max(kLeastSlots, kSlotsForName * names); }

uint64_t times(uint64_t ns, double factor) { return static_cast<uint64_t>(static_cast<double>(ns) * factor); }

Program plain(int hosts, int ranks_per_host, int names, std::vector<SimulatedStep> steps, uint64_t seed,
              int star_hosts) {
  Program program{.hosts = hosts, .ranks_per_host = ranks_per_host, .seed = seed};
  for (int name = 0; name < names; ++name) program.names.push_back({"gradient." + std::to_string(name)});
  program.steps = std::move(steps);
  program.batches_take_time = false;
  program.star_hosts = star_hosts;
  return program;
}

}  // namespace

Simulation::Simulation(int hosts, int ranks_per_host, int names, std::vector<SimulatedStep> steps, uint64_t seed,
                       int star_hosts)
    : Simulation(plain(hosts, ranks_per_host, names, std::move(steps), seed, star_hosts)) {}

Simulation::Simulation(Program program)
    : program_(std::move(program)),
      queue_(program_.seed),
      texts_(program_.names),
      world_(program_.host_of_rank(), {.close_bytes = plan::close_bytes(program_.hosts)}, *this,
             slots_for(program_.names.size()), program_.star_hosts),
      control_(queue_, program_.control, program_.hosts),
      liveness_(queue_, world_.topology(), world_.tree(), program_.control),
      batch_times_({program_.hosts, program_.ranks_per_host, program_.link, program_.fusion_bytes}),
      judge_(program_.names.size(), program_.takers()),
      planted_(program_.plant, program_.hosts, program_.bells(), queue_),
      counts_(program_.takers(), static_cast<size_t>(program_.hosts), world_.tree().below(0).size()),
      spans_(program_.keeps_spans),
      ranks_(static_cast<size_t>(program_.ranks())),
      speaking_at_(static_cast<size_t>(program_.hosts), 0),
      holds_frame_(static_cast<size_t>(program_.hosts), false) {
  counts_.came.resize(program_.planned.size());
  for (const Fault& fault : program_.faults) {
    if (fault.event != 0) next_event_fault_ = std::min(next_event_fault_, fault.event);
  }
}

std::string Simulation::run() {
  while (run_for(UINT64_MAX)) continue;
  return problem_;
}

bool Simulation::run_for(uint64_t events) {
  if (!std::exchange(has_begun_, true)) {
    for (int rank = 0; rank < world_.topology().size(); ++rank) begin_step(rank);
  }
  for (uint64_t i = 0; i < events && problem_.empty(); ++i) {
    if (queue_.is_empty()) {
      judge_end();
      return false;
    }
    happen(queue_.next());
    if (queue_.happened() >= next_event_fault_) arm_faults_of_event();
    counts_.note_busy(control_.busy_ns(0));
    if (!world_.failure().empty()) fail(world_.failure());
  }
  return problem_.empty();
}

std::vector<Undecided> Simulation::undecided() {
  world_.leader_of(0).facts().ask_who_waits();
  while (!queue_.is_empty()) happen(queue_.next());
  queue_.in(kPatienceNs, What::kSpeak, 0);  // relays wait so long for hosts that do not answer
  while (!queue_.is_empty()) happen(queue_.next());
  for (int host = 1; host < program_.hosts; ++host) {
    if (!at(world_.topology().leader_of(host)).is_gone()) world_.leader_of(host).tell_waiting();
  }
  while (!queue_.is_empty()) happen(queue_.next());
  return world_.leader_of(0).undecided();
}

void Simulation::rang(int rank) {
  if (at(rank).driving || planted_.loses_bell()) return;
  at(rank).driving = true;
  queue_.in(times(queue_.draw(kLeastBellNs, kMostBellNs), at(rank).factor), What::kDrive, rank);
}

void Simulation::sent(int from, int to, Frame frame) {
  counts_.note_sent(from, to, frame);
  planted_.spoil(&frame, program_.ranks());
  if (!planted_.drops_frame()) control_.send(from, to, std::move(frame));
}

void Simulation::begin_step(int rank) {
  RankState& mine = at(rank);
  if (mine.step == program_.steps.size()) {
    mine.done = true;
    ++counts_.ranks_done;
    return;
  }
  const SimulatedStep& step = step_of(mine);
  counts_.begin(mine.step, queue_.now_ns() + 1);
  arm_faults_of_step(mine.step);
  if (!step.dead.empty() && std::exchange(dead_from_step_, mine.step) == SIZE_MAX) {
    for (int other = 0; other < program_.ranks(); ++other) {
      at(other).dead = step.dead[static_cast<size_t>(world_.map(other).host)];
    }
  }
  if (mine.dead) return;
  program_.note_begun(rank, mine.step, &counts_.came);
  if (step.leaver == rank) return leave(rank);
  if (step.is_absent(rank)) return join(rank);
  enter_step(rank);
}

void Simulation::enter_step(int rank) {
  RankState& mine = at(rank);
  const SimulatedStep& step = step_of(mine);
  if (mine.step > 0 && program_.steps[mine.step - 1].generation != step.generation) mine.refs.clear();
  mine.refs.resize(program_.names.size());
  mine.submitted = 0;
  mine.order.clear();
  if (step.shuffled) {
    for (uint32_t name = 0; name < program_.names.size(); ++name) mine.order.push_back(name);
    std::shuffle(mine.order.begin(), mine.order.end(), queue_.random());
  }
  mine.pace_ns = times(step.shuffled ? queue_.draw(500, 20'000) : kPaceNs, mine.factor);
  mine.began_ns = queue_.now_ns() + (step.late_rank == rank ? step.late_ns : queue_.draw(1'000, 60'000));
  queue_.at(std::max(mine.began_ns, ready_at_ns(mine)), What::kSubmit, rank);
}

// When the rank's next name is ready.
uint64_t Simulation::ready_at_ns(const RankState& rank) const {
  const uint32_t name = rank.order.empty() ? rank.submitted : rank.order[rank.submitted];
  return rank.began_ns + times(program_.names[name].ready_ns, rank.factor);
}

void Simulation::happen(const EventQueue::Event& event) {
  const int target = event.target;
  switch (event.what) {
    case What::kSubmit:
      if (at(target).is_frozen(queue_.now_ns())) {
        at(target).is_late = true;
      } else if (!at(target).is_gone()) {
        submit(target);
      }
      return;
    case What::kDrive:
      at(target).driving = false;
      drive_if_free(target);
      return;
    case What::kThaw:
      return thaw(target);
    case What::kSpeak:
      speaking_at_[static_cast<size_t>(target)] = 0;
      drive_if_free(world_.topology().leader_of(target));
      return;
    case What::kReach:
      return control_.reach(target);
    case What::kTake:
      return take_frame(target);
    case What::kBatchEnd:
      return end_batch(target);
    case What::kFault:
      return befall(target);
    case What::kNotice:
    case What::kPoison:
      if (const int host = liveness_.hear(target); host != Liveness::kNone) end_host(host);
      return;
  }
}

void Simulation::submit(int rank) {
  RankState& mine = at(rank);
  const SimulatedStep& step = step_of(mine);
  const uint32_t name = mine.order.empty() ? mine.submitted : mine.order[mine.submitted];
  const int64_t elements = program_.names[name].elements;
  const int other_shape = name == 0 ? step.shape + (step.odd_rank == rank ? 1 : 0) : 0;
  auto call = std::make_shared<Call>();
  call->name = name;
  call->key = texts_.key_of(name, step.generation);
  call->text = texts_.descriptor_of(elements + other_shape);
  call->descriptor = *call->text;
  call->total_bytes = static_cast<uint64_t>(elements) * sizeof(float);
  ++mine.in_flight;
  judge_.note_submit(mine.step, name);
  world_.submit(rank, call, &mine.refs[name]);
  if (++mine.submitted < program_.names.size()) {
    queue_.at(std::max(queue_.now_ns() + mine.pace_ns, ready_at_ns(mine)), What::kSubmit, rank);
    return;
  }
  mine.waits = true;
  wait(rank);
}

// As in the engine, a rank that waits drives, and lets its leader know.
void Simulation::wait(int rank) {
  world_.at_board(rank).waiting = 1;
  rang(world_.map(rank).ranks_here.front());
  rang(rank);
}

void Simulation::join(int rank) {
  at(rank).joined = true;
  world_.join(rank);
  wait(rank);
}

void Simulation::leave(int rank) {
  at(rank).done = true;
  ++counts_.ranks_done;
  world_.leave(rank);
  rang(rank);
}

void Simulation::take_frame(int host) {
  const int leader = world_.topology().leader_of(host);
  const bool is_busy = at(leader).is_frozen(queue_.now_ns()) || !at(leader).running.empty();
  holds_frame_[static_cast<size_t>(host)] = is_busy && !at(leader).is_gone();
  if (is_busy && !at(leader).is_gone()) return;
  const ControlNetwork::Arriving arriving = control_.take(host);
  if (!at(leader).is_gone()) {
    world_.take_from_host(host, arriving.from, arriving.frame);
    if (control_.ends_turn(host)) drive(leader);
  }
  control_.go_on(host);
}

// A leader whose processor has frames to handle drives after each of them.
void Simulation::drive_if_free(int rank) {
  const HostMap& map = world_.map(rank);
  if (at(rank).is_gone() || at(rank).is_frozen(queue_.now_ns()) || !at(rank).running.empty()) return;
  if (map.is_leader() && control_.busy_until_ns(map.host) > queue_.now_ns()) {
    if (control_.is_serving(map.host) || std::exchange(at(rank).driving, true)) return;
    queue_.at(control_.busy_until_ns(map.host), What::kDrive, rank);
    return;
  }
  drive(rank);
}

// Does what a thread with the driver's token does, until there is nothing left.
void Simulation::drive(int rank) {
  const HostMap& map = world_.map(rank);
  const auto& running = at(rank).running;
  for (bool moved = true; moved && problem_.empty() && running.empty();) {
    moved = false;
    if (map.is_leader()) {
      for (uint32_t local = 0; local < map.ranks_here.size(); ++local) {
        while (world_.take_ring(map.host, local)) moved = true;
      }
      moved |= world_.tell_retired(map.host);
      world_.speak(map.host);
    }
    while (running.empty() && world_.read(rank)) moved = true;
  }
  if (!map.is_leader() || !running.empty()) return;
  world_.board_of(map.host).trim();
  most_log_ = std::max(most_log_, world_.board_of(map.host).log.size());
  const int64_t left_ns = world_.leader_of(map.host).silence_left_ns();
  uint64_t& speaking_at = speaking_at_[static_cast<size_t>(map.host)];
  if (left_ns < 0 || speaking_at != 0) return;
  speaking_at = queue_.now_ns() + static_cast<uint64_t>(left_ns) + 1;
  queue_.at(speaking_at, What::kSpeak, map.host);
}

// If all of its operations of the step are done.
void Simulation::go_on(int rank) {
  RankState& mine = at(rank);
  if (!mine.waits || mine.in_flight > 0) return;
  mine.waits = false;
  if (!std::exchange(mine.joined, false)) {
    counts_.end(mine.step, queue_.now_ns());
    spans_.add({Span::What::kStep, rank, mine.step, mine.began_ns, queue_.now_ns()});
    if (step_of(mine).joins) return join(rank);
  }
  world_.at_board(rank).waiting = 0;
  ++mine.step;
  begin_step(rank);
}

// Nothing happens any more. The others may wait for a dead host that is unnoticed, and for nothing else; those behind
// it for anything.
void Simulation::judge_end() {
  const bool has_ended = liveness_.cause() != nullptr || has_left_;
  for (int rank = 0; rank < world_.topology().size() && problem_.empty(); ++rank) {
    const RankState& mine = at(rank);
    const int above = world_.tree().above(world_.map(rank).host);
    if (mine.is_gone() || mine.frozen_until_ns == kForEver || at(world_.topology().leader_of(above)).is_gone())
      continue;
    if (!mine.done && mine.step != dead_from_step_) {
      fail("rank " + std::to_string(rank) + " sleeps for ever in step " + std::to_string(mine.step));
    }
    if (has_ended) continue;
    if (world_.has_record(rank)) fail("rank " + std::to_string(rank) + " sleeps on a record");
    if (!world_.at_board(rank).ring.empty()) fail("a leader sleeps on a frame of rank " + std::to_string(rank));
  }
  for (size_t step = 0; step < program_.steps.size() && problem_.empty(); ++step) {
    if (program_.is_steady(step)) problem_ = counts_.judge_steady(step, program_.names.size());
  }
  const bool has_lost = has_ended || dead_from_step_ != SIZE_MAX || !program_.faults.empty();
  if (problem_.empty() && !has_lost) problem_ = counts_.judge_relays();
  const bool is_too_long = most_log_ > slots_for(program_.names.size());
  if (is_too_long) fail("a log has grown to " + std::to_string(most_log_) + " records");
  const size_t most_ids = program_.names.size() * std::max<size_t>(1, texts_.generations()) + 1;
  for (int host = 0; host < program_.hosts; ++host) {
    if (world_.board_of(host).entries.size() > most_ids + (texts_.generations() > 1 ? kTemporaryIds : 0)) {
      fail("numbers are not given back");
    }
  }
}

}  // namespace hvd
