// SPDX-License-Identifier: Apache-2.0
// Counts of a simulation by step: messages by kind, bytes, batches, and times of the simulated job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "simulate/control.h"

namespace hvd {

class Counts {
 public:
  struct Step {
    std::map<FrameKind, uint64_t> up, down;  // messages by kind, to rank 0's host and from it
    std::map<FrameKind, uint64_t> relayed;   // between a relay and its group
    uint64_t bytes_up = 0, bytes_down = 0;
    uint64_t batches = 0;                 // of records, to each host
    uint64_t most_up_from_a_host = 0;     // HostReady
    uint64_t began_ns = 0, ended_ns = 0;  // when the first rank began it, and the last one ended it; 0: not at all
    uint64_t busy_ns = 0;                 // of rank 0's processor, with frames
    uint64_t reduced = 0;                 // batches that have ended
    uint64_t collective_ns = 0;           // of these
    uint32_t ranks_ended = 0;
  };

  // `takers`: by step, how many ranks take part. `speakers`: the hosts that rank 0's speaks with.
  Counts(std::vector<uint32_t> takers, size_t hosts, size_t speakers)
      : speakers_(speakers),
        takers_(std::move(takers)),
        steps_(takers_.size()),
        ups_(takers_.size(), std::vector<uint32_t>(hosts)) {}

  const Step& of(size_t step) const { return steps_[step]; }
  size_t steps() const { return steps_.size(); }
  size_t current() const { return current_; }  // the last one that a rank has begun

  void begin(size_t step, uint64_t now_ns) {
    if (steps_[step].began_ns == 0) steps_[step].began_ns = now_ns;
    current_ = std::max(current_, step);
  }
  // By a rank that has taken part.
  void end(size_t step, uint64_t now_ns) {
    if (++steps_[step].ranks_ended == takers_[step]) steps_[step].ended_ns = now_ns;
  }
  void add_batch(size_t step, uint64_t ns) {
    ++steps_[step].reduced;
    steps_[step].collective_ns += ns;
  }
  void note_busy(uint64_t since_start_ns) {
    steps_[current_].busy_ns += since_start_ns - std::exchange(busy_ns_, since_start_ns);
  }
  void note_sent(int from, int to, const Frame& frame) {
    Step& step = steps_[current_];
    if (to != 0 && from != 0) {
      ++step.relayed[frame.kind];
    } else {
      ++(to == 0 ? step.up : step.down)[frame.kind];
      (to == 0 ? step.bytes_up : step.bytes_down) += frame.payload.size() + ControlNetwork::kHeaderBytes;
    }
    if (frame.kind == FrameKind::kRecords && to == 1) ++step.batches;
    if (frame.kind != FrameKind::kHostReady) return;
    const uint64_t of_host = ++ups_[current_][static_cast<size_t>(from)];
    step.most_up_from_a_host = std::max(step.most_up_from_a_host, of_host);
  }

  // Of a step whose names all hosts know: nothing but "ready" goes up, at most once for a name, and every host that
  // rank 0's speaks with gets the records of each batch once. Returns what is wrong; empty: nothing is.
  std::string judge_steady(size_t step, size_t names) const {
    const Step& counts = steps_[step];
    const std::string where = "step " + std::to_string(step) + ": ";
    for (const auto& [kind, count] : counts.up) {
      if (kind != FrameKind::kHostReady) return where + "a name that all know was asked for again";
    }
    if (counts.most_up_from_a_host > names) return where + "a host told rank 0 more often than it has names";
    const uint64_t sent = count_of(counts.down, FrameKind::kRecords);
    if (counts.down.size() > 1 || sent != counts.batches * speakers_)
      return where + "not one message to each host and batch";
    return "";
  }
  // Of a whole job without losses: relays may pass a batch's records on when the next step has begun.
  std::string judge_relays() const {
    const size_t others = ups_.front().size() - 1;
    uint64_t batches = 0, relayed = 0;
    for (const Step& step : steps_) {
      batches += step.batches;
      relayed += count_of(step.relayed, FrameKind::kRecords);
    }
    return relayed == batches * (others - speakers_) ? "" : "relays did not pass each batch on to each host once";
  }

  size_t ranks_done = 0, failed_calls = 0;
  std::vector<bool> came;  // each fault of the program, in the order in which they were added

 private:
  static uint64_t count_of(const std::map<FrameKind, uint64_t>& by_kind, FrameKind kind) {
    const auto found = by_kind.find(kind);
    return found == by_kind.end() ? 0 : found->second;
  }

  const size_t speakers_;
  const std::vector<uint32_t> takers_;
  std::vector<Step> steps_;
  std::vector<std::vector<uint32_t>> ups_;  // by step and host
  size_t current_ = 0;
  uint64_t busy_ns_ = 0;
};

}  // namespace hvd
