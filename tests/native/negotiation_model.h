// SPDX-License-Identifier: Apache-2.0
// Ranks and leaders over one entry or two, with the engine's own Tally, Arrival, Retirement and Coordinator, in every
// interleaving.
//
// A state is the tally words, the in-flight rows, each rank's place in its plan, the logs, rings and links, and the
// coordinator. A step is one shared-memory operation, or one message taken. A plan says what a rank does: D and E are
// allreduces of two shapes, G is an allgather, X a refused call, in small letters those of the other name; J joins, and
// j joins without waiting for the calls before it. Between joins the names take their ways apart. Checked: no deadlock,
// no wrong decision (READY exactly where all ranks that have not joined gave the same descriptor, and those that have
// can give zeros), no record under a number that a rank takes for another name, and that the fast way is back when all
// have joined.
#pragma once

#include <array>
#include <cctype>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "negotiation/coordinator.h"
#include "negotiation/frames.h"
#include "negotiation/tally.h"
#include "plain_word.h"

namespace hvd {

// Short, and copied with each state: what a deque allocates in advance would be most of the time.
template <class Item>
using Queue = std::vector<Item>;

template <class Item>
void pop_front(Queue<Item>* queue) {
  queue->erase(queue->begin());
}

// Changed by few steps, copied by all.
template <class Value>
class Shared {
 public:
  explicit Shared(Value value = {}) : value_(std::make_shared<const Value>(std::move(value))) {}
  const Value& operator*() const { return *value_; }
  const Value* operator->() const { return value_.get(); }
  template <class Change>
  void change(Change&& by) {
    Value changed = *value_;
    by(changed);
    value_ = std::make_shared<const Value>(std::move(changed));
  }

 private:
  std::shared_ptr<const Value> value_;
};

// With its part of a state's key.
struct Records {
  std::vector<Decision> all;
  std::string key;

  void append(const Decision& record) {
    all.push_back(record);
    key += Writer().put(record.kind).put(record.id).put_string(record.payload).take();
  }
};

struct Coordinating {
  Coordinator coordinator{{0}};
  std::string key = coordinator.snapshot();
};

enum class LaneState : uint8_t { kIdle, kArriving, kWaiting };

constexpr size_t kNames = 2;
constexpr uint32_t kIds = 4;  // as many as plans of three rounds take where none is given back

struct Known {  // what the log has defined, as far as this rank has read
  uint32_t id = kNoId;
  std::string descriptor;
};

struct Epoch {  // what a rank does between two joins
  std::string letters[kNames];
  char join = 0;  // at its end; the last has none
};

struct Lane {  // a rank's operations under one name, one after the other
  LaneState state = LaneState::kIdle;
  uint8_t arrival = 0;  // Arrival<>::State
  size_t round = 0;     // of its epoch, to be decided next
  uint32_t id = kNoId;  // while it arrives
  std::optional<uint32_t> counted_in;

  // The engine's mutex, which a submission and the reader of the log take.
  bool holds_mutex() const {
    return state == LaneState::kArriving && arrival != static_cast<uint8_t>(Arrival<>::State::kAnnounce);
  }
};

struct Rank {
  Lane lanes[kNames];  // as if by two threads
  size_t epoch = 0;
  bool joined = false;
  size_t read = 0;    // records applied
  size_t cursor = 0;  // ... as the others see it
  Known known[kNames];
  bool in_flight[kIds] = {};
};

struct Event {  // to the coordinator, over a host's way up
  FrameKind kind = FrameKind::kRequest;
  int rank = -1;
  std::string name = {}, text = {};
  uint32_t id = kNoId;
  Recalled found = {};
  bool idle = false;
  CountedIn counted = {};
};

struct Micro {  // a leader's next shared-memory operation
  enum Kind : uint8_t { kRecall, kReset, kShut, kBackToTheFastWay, kAppend, kMayRetire } kind;
  Decision decision;
  uint8_t retirement = 0;  // Retirement<>::State, and its place
  uint32_t next = 0;
};

struct RetiredHere {
  size_t position;
  uint32_t id;
};

struct World {
  std::vector<Rank> ranks;
  std::vector<std::array<uint64_t, kIds>> cells;  // by host
  std::vector<Queue<RetiredHere>> retired;        // by host
  std::vector<Shared<Records>> logs;              // by host
  std::vector<Queue<Event>> rings;                // by rank
  std::vector<Queue<Event>> up;                   // by host
  std::vector<Queue<Micro>> down;                 // by host
  Shared<Coordinating> coordinating;

  std::string key() const {
    Writer text;
    for (const Rank& rank : ranks) {
      for (const Lane& lane : rank.lanes) {
        text.put(lane.state).put(lane.arrival).put(lane.round).put(lane.id).put(lane.counted_in.value_or(UINT32_MAX));
      }
      text.put(rank.epoch).put(rank.joined);
      text.put(rank.read).put(rank.cursor);
      for (const Known& known : rank.known) text.put(known.id).put_string(known.descriptor);
      for (const bool flies : rank.in_flight) text.put(flies);
    }
    for (const auto& words : cells) {
      for (const uint64_t word : words) text.put(word);
    }
    for (const auto& queue : retired) {
      text.put(queue.size());
      for (const RetiredHere& gone : queue) text.put(gone.position).put(gone.id);
    }
    for (const Shared<Records>& log : logs) text.put_string(log->key);
    auto events = [&](const Queue<Event>& queue) {
      text.put(queue.size());
      for (const Event& event : queue) {
        text.put(event.kind).put(event.rank).put_string(event.name).put_string(event.text).put(event.id);
        text.put(event.found.round).put(event.found.count).put(event.found.complete).put(event.idle);
        for (const auto& [id, round] : event.counted) text.put(id).put(round);
      }
    };
    for (const auto& ring : rings) events(ring);
    for (const auto& queue : up) events(queue);
    for (const auto& queue : down) {
      text.put(queue.size());
      for (const Micro& micro : queue) {
        text.put(micro.kind).put(micro.decision.kind).put(micro.decision.id).put(micro.decision.stays_recalled);
        text.put(micro.retirement).put(micro.next);
      }
    }
    text.put_string(coordinating->key);
    return text.take();
  }
};

inline std::string descriptor_of(char letter) {
  Descriptor descriptor;
  descriptor.kind = letter == 'G' ? HVD_ALLGATHER : HVD_ALLREDUCE;
  descriptor.tensors = {{HVD_FLOAT32, {std::toupper(letter) == 'D' ? 3 : 4}}};
  return descriptor.encode();
}

inline bool is_refusal(char letter) { return std::toupper(letter) == 'X'; }
inline size_t name_of_letter(char letter) { return std::islower(letter) != 0 ? 1 : 0; }
inline std::string text_of(size_t name) { return name == 0 ? "one" : "other"; }

inline std::vector<Epoch> epochs_of(const std::string& plan) {
  std::vector<Epoch> epochs(1);
  for (const char letter : plan) {
    if (letter == 'J' || letter == 'j') {
      epochs.back().join = letter;
      epochs.emplace_back();
    } else {
      epochs.back().letters[name_of_letter(letter)] += letter;
    }
  }
  return epochs;
}

template <class Bugs>
class Checker {
 public:
  Checker(std::vector<int> host_of_rank, const std::vector<std::string>& plans, NameLimits limits)
      : hosts_(host_of_rank), limits_(limits) {
    for (const std::string& plan : plans) plans_.push_back(epochs_of(plan));
    for (const int host : hosts_) {
      if (static_cast<size_t>(host) >= members_.size()) members_.resize(host + 1, 0);
      ++members_[host];
    }
  }

  // Empty where all interleavings end well.
  std::string run() {
    World first;
    first.ranks.resize(hosts_.size());
    first.rings.resize(hosts_.size());
    first.cells.resize(members_.size());
    first.retired.resize(members_.size());
    first.logs.resize(members_.size());
    first.up.resize(members_.size());
    first.down.resize(members_.size());
    first.coordinating.change([&](Coordinating& with) { with.coordinator = Coordinator(hosts_, limits_); });
    push(std::move(first));
    while (!stack_.empty() && problem_.empty()) {
      const World world = std::move(stack_.back());
      stack_.pop_back();
      expand(world);
    }
    return problem_;
  }
  size_t states() const { return seen_.size(); }

 private:
  void push(World world) {
    if (seen_.insert(std::hash<std::string>()(world.key())).second) stack_.push_back(std::move(world));
  }

  void expand(const World& world) {
    bool moved = false;
    for (size_t r = 0; r < world.ranks.size() && problem_.empty(); ++r) moved |= step_rank(world, static_cast<int>(r));
    for (size_t h = 0; h < members_.size() && problem_.empty(); ++h) moved |= step_leader(world, static_cast<int>(h));
    if (moved || !problem_.empty()) return;
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      const Rank& rank = world.ranks[r];
      if (rank.joined || rank.epoch + 1 != plans_[r].size()) problem_ = "deadlock";
      for (size_t name = 0; name < kNames; ++name) {
        const Lane& lane = rank.lanes[name];
        if (lane.state != LaneState::kIdle || letter(r, rank.epoch, name, lane.round) != '-') problem_ = "deadlock";
      }
    }
    const Epoch& last = plans_[0].back();
    if (plans_[0].size() == 1 || !last.letters[0].empty() || !last.letters[1].empty()) return;
    World end = world;
    for (size_t h = 0; h < members_.size(); ++h) {
      for (uint32_t id = 0; id < kIds; ++id) {
        if (tally(&end, static_cast<int>(h), id).recalled()) problem_ = "still on the slow way";
      }
    }
  }

  bool across_hosts() const { return members_.size() > 1; }

  // What a rank gives to a round of a name; '-': it has joined by then.
  char letter(size_t rank, size_t epoch, size_t name, size_t round) const {
    const std::string& letters = plans_[rank][epoch].letters[name];
    return round < letters.size() ? letters[round] : '-';
  }

  Tally<PlainWord, Bugs> tally(World* world, int host, uint32_t id) const {
    return {PlainWord(world->cells[host].at(id)), members_[host], across_hosts()};
  }

  static void append(World* world, int host, const Decision& record) {
    world->logs[host].change([&](Records& log) { log.append(record); });
  }

  bool step_rank(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    for (size_t name = 0; name < kNames; ++name) {
      if (rank.lanes[name].holds_mutex()) return submit(world, r, name);
    }
    bool moved = false;
    if (rank.cursor != rank.read) {
      World next = world;
      next.ranks[r].cursor = rank.read;
      push(std::move(next));
      moved = true;
    } else {
      moved = consume(world, r);
    }
    for (size_t name = 0; name < kNames; ++name) moved |= submit(world, r, name);
    return join(world, r) || moved;
  }

  bool join(const World& world, int r) {
    const Rank& rank = world.ranks[r];
    const Epoch& epoch = plans_[r][rank.epoch];
    if (rank.joined || epoch.join == 0) return false;
    CountedIn counted;
    for (size_t name = 0; name < kNames; ++name) {
      const Lane& lane = rank.lanes[name];
      const bool in_flight = lane.state != LaneState::kIdle;
      if (lane.round + (in_flight ? 1 : 0) != epoch.letters[name].size()) return false;
      if (in_flight && (epoch.join == 'J' || lane.state != LaneState::kWaiting)) return false;
      if (lane.counted_in.has_value() && !Bugs::kForgetWhatWasCounted) counted[rank.known[name].id] = *lane.counted_in;
    }
    World next = world;
    next.ranks[r].joined = true;
    next.rings[r].push_back({.kind = FrameKind::kJoin, .rank = r, .counted = std::move(counted)});
    push(std::move(next));
    return true;
  }

  bool submit(const World& world, int r, size_t name) {
    const Lane& lane = world.ranks[r].lanes[name];
    const char letter = this->letter(r, world.ranks[r].epoch, name, lane.round);
    if (lane.state == LaneState::kWaiting) return false;
    if (lane.state == LaneState::kIdle && (letter == '-' || world.ranks[r].joined)) return false;
    World next = world;
    Rank& mine = next.ranks[r];
    const Known& known = mine.known[name];
    if (lane.state == LaneState::kIdle) {
      if (known.id != kNoId) mine.in_flight[known.id] = true;
      if (!is_refusal(letter) && known.id != kNoId && known.descriptor == descriptor_of(letter)) {
        mine.lanes[name].state = LaneState::kArriving;
        mine.lanes[name].arrival = 0;
        mine.lanes[name].id = known.id;
        // Where names never go nobody looks at the rows: one step less.
        if (limits_.names >= kNames) return submit(next, r, name);
      } else {
        ask(&next, r, name);
      }
      push(std::move(next));
      return true;
    }
    const int host = hosts_[r];
    auto counted = tally(&next, host, lane.id);
    Arrival<Bugs> arrival(static_cast<typename Arrival<Bugs>::State>(lane.arrival));
    arrival.step(counted, [&] {
      if (!across_hosts()) {
        append(&next, host, {RecordKind::kReady, lane.id, false, {}});
      } else {
        next.up[host].push_back({.kind = FrameKind::kHostReady, .rank = r, .id = lane.id});
      }
    });
    if (lane.arrival == 0 && arrival.state() != Arrival<Bugs>::State::kSlow) {
      mine.lanes[name].counted_in = arrival.round();
    }
    mine.lanes[name].arrival = static_cast<uint8_t>(arrival.state());
    if (arrival.finished()) {
      mine.lanes[name].state = LaneState::kWaiting;
      if (arrival.state() == Arrival<Bugs>::State::kSlow) ask(&next, r, name);
    }
    push(std::move(next));
    return true;
  }

  void ask(World* world, int r, size_t name) {
    Lane& lane = world->ranks[r].lanes[name];
    const char letter = this->letter(r, world->ranks[r].epoch, name, lane.round);
    lane.state = LaneState::kWaiting;
    const FrameKind kind = is_refusal(letter) ? FrameKind::kRefuse : FrameKind::kRequest;
    const std::string text = is_refusal(letter) ? "refused" : descriptor_of(letter);
    world->rings[r].push_back({.kind = kind, .rank = r, .name = text_of(name), .text = text});
  }

  // True where there was a record to apply.
  bool consume(const World& world, int r) {
    const std::vector<Decision>& log = world.logs[hosts_[r]]->all;
    if (world.ranks[r].read == log.size()) return false;
    World next = world;
    Rank& mine = next.ranks[r];
    const Decision& record = log[mine.read++];
    // Only for a RETIRE it matters when the others see how far this rank has read.
    if (record.kind != RecordKind::kRetire || limits_.names >= kNames) mine.cursor = mine.read;
    if (record.kind == RecordKind::kDefine) {
      Definition definition;
      parse_definition(record.payload, &definition);
      mine.known[definition.name == text_of(1) ? 1 : 0] = {record.id, definition.descriptor};
    } else if (record.kind == RecordKind::kRetire) {
      retire(&mine, record.id);
    } else if (record.kind == RecordKind::kJoin) {
      end_epoch(&mine);
    } else {
      finish_round(&mine, r, record);
    }
    push(std::move(next));
    return true;
  }

  void retire(Rank* rank, uint32_t id) {
    for (size_t name = 0; name < kNames; ++name) {
      if (rank->known[name].id != id) continue;
      rank->known[name] = {};
      rank->lanes[name].counted_in.reset();
    }
    rank->in_flight[id] = false;
  }

  void end_epoch(Rank* rank) {
    if (!rank->joined) problem_ = "joined before all have";
    for (size_t name = 0; name < kNames; ++name) {
      Lane& lane = rank->lanes[name];
      if (lane.state != LaneState::kIdle) problem_ = "joined before all have";
      for (size_t other = 0; other < plans_.size(); ++other) {
        if (letter(other, rank->epoch, name, lane.round) != '-') problem_ = "joined before all have";
      }
      lane.round = 0;
    }
    rank->joined = false;
    ++rank->epoch;
  }

  void finish_round(Rank* rank, int r, const Decision& record) {
    const bool ready = record.kind == RecordKind::kReady;
    Failure failure;
    size_t name = kNames;
    for (size_t n = 0; n < kNames && ready; ++n) name = rank->known[n].id == record.id ? n : name;
    if (!ready && parse_failure(record.payload, static_cast<int>(hosts_.size()), &failure)) {
      name = failure.name == text_of(1) ? 1 : 0;
    }
    if (name == kNames) {
      problem_ = "a decision about nothing";
      return;
    }
    Lane& lane = rank->lanes[name];
    const Known& known = rank->known[name];
    judge(*rank, r, name, ready);
    if (known.id != kNoId) rank->in_flight[known.id] = false;
    lane.counted_in.reset();
    ++lane.round;
    lane.state = LaneState::kIdle;
  }

  void judge(const Rank& rank, int r, size_t name, bool ready) {
    const Lane& lane = rank.lanes[name];
    char agreed = '-';
    bool can_run = true, some_joined = false;
    for (size_t other = 0; other < plans_.size(); ++other) {
      const char seen = letter(other, rank.epoch, name, lane.round);
      can_run = can_run && !is_refusal(seen) && (agreed == '-' || seen == '-' || seen == agreed);
      some_joined = some_joined || seen == '-';
      if (seen != '-') agreed = seen;
    }
    if (agreed == 'G' && some_joined) can_run = false;
    const bool gives_zeros = letter(r, rank.epoch, name, lane.round) == '-';
    const bool is_there =
        gives_zeros ? rank.joined && lane.state == LaneState::kIdle : lane.state == LaneState::kWaiting;
    if (agreed == '-' || ready != can_run || !is_there) problem_ = "wrong decision";
    if (ready && rank.known[name].descriptor != descriptor_of(agreed)) problem_ = "wrong definition";
  }

  bool step_leader(const World& world, int host) {
    bool moved = tell_retired(world, host);
    if (!world.down[host].empty()) {
      World next = world;
      step_micro(&next, host);
      push(std::move(next));
      return true;
    }
    for (size_t r = 0; r < hosts_.size(); ++r) {
      if (hosts_[r] != host || world.rings[r].empty()) continue;
      World next = world;
      next.up[host].push_back(next.rings[r].front());
      pop_front(&next.rings[r]);
      push(std::move(next));
      moved = true;
    }
    if (host != 0) return moved;
    for (size_t h = 0; h < members_.size(); ++h) {
      if (world.up[h].empty()) continue;
      World next = world;
      const Event event = next.up[h].front();
      pop_front(&next.up[h]);
      if (!coordinate(&next, event, static_cast<int>(h))) problem_ = "a message that the coordinator refuses";
      push(std::move(next));
      moved = true;
    }
    return moved;
  }

  bool tell_retired(const World& world, int host) {
    if (world.retired[host].empty()) return false;
    const RetiredHere gone = world.retired[host].front();
    for (size_t r = 0; r < hosts_.size() && !Bugs::kReuseUnread; ++r) {
      if (hosts_[r] == host && world.ranks[r].cursor <= gone.position) return false;
    }
    World next = world;
    pop_front(&next.retired[host]);
    next.up[host].push_back({.kind = FrameKind::kRetired, .id = gone.id});
    push(std::move(next));
    return true;
  }

  void step_micro(World* world, int host) {
    Micro& micro = world->down[host].front();
    auto counted = tally(world, host, micro.decision.id);
    if (micro.kind == Micro::kMayRetire) {
      using Retiring = Retirement<Bugs>;
      Retiring retirement(members_[host], static_cast<typename Retiring::State>(micro.retirement), micro.next);
      retirement.step(counted, [&](uint32_t member) {
        for (size_t r = 0; r < hosts_.size(); ++r) {
          if (hosts_[r] == host && member-- == 0) return world->ranks[r].in_flight[micro.decision.id];
        }
        return false;
      });
      micro.retirement = static_cast<uint8_t>(retirement.state());
      micro.next = retirement.next();
      if (!retirement.finished()) return;
      const bool idle = retirement.state() == Retiring::State::kIdle;
      world->up[host].push_back({.kind = FrameKind::kMayRetire, .id = micro.decision.id, .idle = idle});
    } else if (micro.kind == Micro::kRecall) {
      world->up[host].push_back({.kind = FrameKind::kRecalled, .id = micro.decision.id, .found = counted.recall()});
    } else if (micro.kind == Micro::kReset) {
      counted.reset(micro.decision.stays_recalled);
    } else if (micro.kind == Micro::kBackToTheFastWay) {
      if (counted.recalled()) counted.reset(false);
    } else if (micro.kind == Micro::kShut) {
      counted.retire();
    } else {
      if (micro.decision.kind == RecordKind::kRetire) {
        world->retired[host].push_back({world->logs[host]->all.size(), micro.decision.id});
      }
      append(world, host, micro.decision);
    }
    pop_front(&world->down[host]);
  }

  bool coordinate(World* world, const Event& event, int host) {
    Effects effects;
    bool fine = true;
    world->coordinating.change([&](Coordinating& with) {
      fine = take(&with.coordinator, event, host, &effects);
      with.key = with.coordinator.snapshot();
    });
    send_down(world, effects);
    return fine;
  }

  static bool take(Coordinator* coordinator, const Event& event, int host, Effects* effects) {
    switch (event.kind) {
      case FrameKind::kRequest:
        coordinator->request(event.rank, 0, event.name, event.text, true, 0, effects);
        return true;
      case FrameKind::kRefuse:
        coordinator->refuse(event.rank, 0, event.name, event.text, 0, effects);
        return true;
      case FrameKind::kHostReady:
        return coordinator->host_ready(host, event.id, 0, effects);
      case FrameKind::kRecalled:
        return coordinator->recalled(host, event.id, event.found, effects);
      case FrameKind::kMayRetire:
        return coordinator->may_retire(host, event.id, event.idle, effects);
      case FrameKind::kJoin:
        return coordinator->join(event.rank, event.counted, 0, effects);
      default:
        return coordinator->retired(host, event.id, effects);
    }
  }

  static void send_down(World* world, const Effects& effects) {
    for (auto& queue : world->down) {
      for (const uint32_t id : effects.recalls) queue.push_back({Micro::kRecall, {RecordKind::kNone, id, false, {}}});
      for (const uint32_t id : effects.retires) {
        queue.push_back({Micro::kMayRetire, {RecordKind::kNone, id, false, {}}});
      }
      for (const Decision& decision : effects.decisions) {
        const bool opens = decision.kind == RecordKind::kDefine || decision.kind == RecordKind::kError;
        if (decision.reset) queue.push_back({Micro::kReset, decision});
        if (!decision.reset && opens) queue.push_back({Micro::kShut, decision});
        for (uint32_t id = 0; id < kIds && decision.kind == RecordKind::kJoin; ++id) {
          queue.push_back({Micro::kBackToTheFastWay, {RecordKind::kNone, id, false, {}}});
        }
        queue.push_back({Micro::kAppend, decision});
      }
    }
  }

  std::vector<int> hosts_;
  std::vector<uint32_t> members_;
  std::vector<std::vector<Epoch>> plans_;  // by rank
  NameLimits limits_;
  std::vector<World> stack_;
  std::unordered_set<size_t> seen_;  // keys' hashes: some ten thousand of 2^64
  std::string problem_;
};

}  // namespace hvd
