// SPDX-License-Identifier: Apache-2.0
// Ranks and leaders over one name or two of all ranks, in every interleaving (model.h).
//
// A plan says what a rank does: D and E are allreduces of two shapes, G is an allgather, X a refused call, in small
// letters those of the other name; J joins, and j joins without waiting for the calls before it. Between joins the
// names take their ways apart. Checked: no deadlock, no wrong decision (READY exactly where all ranks that have not
// joined gave the same descriptor, and those that have can give zeros), no record under a number that a rank takes for
// another name, and that the fast way is back when all have joined.
#pragma once

#include <cctype>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "negotiation/frames.h"

namespace hvd {

constexpr size_t kNames = 2;

struct Epoch {  // what a rank does between two joins
  std::string letters[kNames];
  char join = 0;  // at its end; the last has none
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

struct Progress {  // of one rank in its plan
  struct Lane {    // its operations under one name, one after the other
    bool in_flight = false;
    size_t round = 0;  // of its epoch, to be decided next
  };
  Lane lanes[kNames];  // as if by two threads
  size_t epoch = 0;
  bool joined = false;

  void put(Writer* text) const {
    for (const Lane& lane : lanes) text->put(lane.in_flight).put(static_cast<uint8_t>(lane.round));
    text->put(static_cast<uint8_t>(epoch)).put(joined);
  }
};

class PlanChecker final : public model::Checker<Progress> {
 public:
  PlanChecker(const std::vector<int>& host_of_rank, const std::vector<std::string>& plans, NameLimits limits,
              int star_hosts = ControlTree::kStarHosts)
      : Checker(host_of_rank, limits, star_hosts) {
    for (const std::string& plan : plans) plans_.push_back(epochs_of(plan));
  }

 private:
  Progress first_plan(int) override { return {}; }

  // What a rank gives to a round of a name; '-': it has joined by then.
  char letter(size_t rank, size_t epoch, size_t name, size_t round) const {
    const std::string& letters = plans_[rank][epoch].letters[name];
    return round < letters.size() ? letters[round] : '-';
  }

  void move_rank(const W& world, int r) override {
    const Progress& mine = at(world.ranks, r).plan;
    const Epoch& epoch = plans_[static_cast<size_t>(r)][mine.epoch];
    if (mine.joined) return;
    bool may_join = epoch.join != 0 && at(world.ranks, r).announcing.empty();
    for (size_t name = 0; name < kNames; ++name) {
      const Progress::Lane& lane = mine.lanes[name];
      const bool is_there = lane.round < epoch.letters[name].size();
      if (!lane.in_flight && is_there) submit(world, r, static_cast<int>(name));
      const size_t submitted = lane.round + (lane.in_flight ? 1 : 0);
      may_join = may_join && submitted == epoch.letters[name].size() && (epoch.join == 'j' || !lane.in_flight);
    }
    if (may_join) join(world, r);
  }

  std::shared_ptr<model::Contributed> contribution(const W& world, int r, int name) override {
    const Progress& mine = at(world.ranks, r).plan;
    const char given = letter(static_cast<size_t>(r), mine.epoch, static_cast<size_t>(name), mine.lanes[name].round);
    auto made = std::make_shared<model::Contributed>();
    made->key = text_of(static_cast<size_t>(name));
    made->is_refusal = is_refusal(given);
    if (made->is_refusal) {
      made->refusal = "refused";
    } else {
      made->text = descriptor_of(given);
    }
    made->descriptor = made->text;
    return made;
  }
  void submitted(W* world, int r, int name) override { at(world->ranks, r).plan.lanes[name].in_flight = true; }
  void joined(W* world, int r) override { at(world->ranks, r).plan.joined = true; }

  bool applied(W* world, int r, Record record, const Member::Applied& what) override {
    using What = Member::Applied::What;
    Progress& mine = at(world->ranks, r).plan;
    if (what.what == What::kJoined) {
      end_epoch(&mine);
      return true;
    }
    if (what.what == What::kNothing && record.kind == RecordKind::kReady) fail("a decision about nothing");
    std::string name;
    if (what.what == What::kZeros) name = *what.name;
    if (what.call != nullptr) name = *what.call->name;
    if (what.what == What::kNothing && record.kind == RecordKind::kError) {
      Failure failure;
      const std::string text = at(world->hosts, map_of(r).host)->value.entries[record.id].error;
      if (!parse_failure(text, static_cast<int>(ranks()), &failure)) fail("an error that cannot be read");
      if (!mine.joined) fail("an error about nothing");
      name = failure.name;
    }
    if (name.empty()) return false;
    const size_t place = name == text_of(1) ? 1 : 0;
    judge(mine, r, place, record.kind == RecordKind::kReady, what);
    mine.lanes[place].in_flight = false;
    ++mine.lanes[place].round;
    return true;
  }

  void end_epoch(Progress* mine) {
    if (!mine->joined) fail("joined before all have");
    for (size_t name = 0; name < kNames; ++name) {
      Progress::Lane& lane = mine->lanes[name];
      if (lane.in_flight) fail("joined before all have");
      for (size_t other = 0; other < plans_.size(); ++other) {
        if (letter(other, mine->epoch, name, lane.round) != '-') fail("joined before all have");
      }
      lane.round = 0;
    }
    mine->joined = false;
    ++mine->epoch;
  }

  void judge(const Progress& mine, int r, size_t name, bool ready, const Member::Applied& what) {
    const size_t round = mine.lanes[name].round;
    char agreed = '-';
    bool can_run = true, some_joined = false;
    for (size_t other = 0; other < plans_.size(); ++other) {
      const char given = letter(other, mine.epoch, name, round);
      can_run = can_run && !is_refusal(given) && (agreed == '-' || given == '-' || given == agreed);
      some_joined = some_joined || given == '-';
      if (given != '-') agreed = given;
    }
    if (agreed == 'G' && some_joined) can_run = false;
    const bool gives_zeros = letter(static_cast<size_t>(r), mine.epoch, name, round) == '-';
    const bool is_there = gives_zeros ? mine.joined && what.call == nullptr : mine.lanes[name].in_flight;
    if (agreed == '-' || ready != can_run || !is_there) fail("wrong decision");
    const std::string_view definition = what.call != nullptr ? what.call->descriptor : what.descriptor;
    if (ready && definition != descriptor_of(agreed)) fail("wrong definition");
  }

  void judge_end(const W& world) override {
    for (size_t r = 0; r < plans_.size(); ++r) {
      const Progress& mine = world.ranks[r].plan;
      if (mine.joined || mine.epoch + 1 != plans_[r].size()) fail("deadlock");
      for (size_t name = 0; name < kNames; ++name) {
        const Progress::Lane& lane = mine.lanes[name];
        if (lane.in_flight || letter(r, mine.epoch, name, lane.round) != '-') fail("deadlock");
      }
    }
    const Epoch& last = plans_[0].back();
    if (plans_[0].size() == 1 || !last.letters[0].empty() || !last.letters[1].empty()) return;
    for (const auto& host : world.hosts) {
      PlainHost copy = host->value;
      for (uint32_t id = 0; id < copy.entries.size(); ++id) {
        if (copy.tally(id).recalled()) fail("still on the slow way");
      }
    }
  }

  std::vector<std::vector<Epoch>> plans_;  // by rank
};

}  // namespace hvd
