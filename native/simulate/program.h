// SPDX-License-Identifier: Apache-2.0
// The program of a simulated job: names, steps, faults, and the model of its machines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "platform/status.h"
#include "simulate/control.h"
#include "simulate/network.h"
#include "simulate/plants.h"
#include "simulate/world.h"

namespace hvd {

struct SimulatedName {
  std::string text;
  int64_t elements = 100;  // of float32
  uint64_t ready_ns = 0;   // after the step's start; all 0: a rank submits one every 2 us
};

struct SimulatedStep {
  int shape = 0;                // of the first name; the others always have the same
  bool shuffled = false;        // each rank submits in an order, and at a pace, of its own
  int late_rank = -1;           // submits its first name late
  std::vector<bool> absent;     // by rank: has joined before; empty: none
  bool joins = false;           // at its end all ranks that have not joined yet do so
  std::vector<bool> dead = {};  // by host: gone before this step, unnoticed; empty: none
  uint64_t late_ns = 5'000'000;
  int odd_rank = -1;   // submits its first name in another shape than all others
  int leaver = -1;     // leaves the job in place of this step
  int generation = 0;  // of the names: those of another one are other names

  bool is_absent(int rank) const { return !absent.empty() && absent[static_cast<size_t>(rank)]; }
};

enum class FaultKind : uint8_t { kKillRank, kKillHost, kFreeze, kSlow, kCut, kDelay };

struct Fault {
  FaultKind kind = FaultKind::kKillRank;
  int target = 0;      // a rank; of kKillHost, kCut and kDelay a host
  size_t step = 0;     // soon after its start ...
  uint64_t event = 0;  // ... or, if this is not 0, when so many events have happened
  double amount = 0;   // kFreeze, kDelay: milliseconds (kFreeze: 0 is for ever); kSlow: a factor
};

// A fault as it was added: of `faults`, or of a step.
struct Planned {
  int fault = -1;
  int target = -1;  // -1: all ranks
  size_t step = 0;
};

struct Program {
  int hosts = 1, ranks_per_host = 1;
  std::vector<SimulatedName> names;
  std::vector<SimulatedStep> steps;
  std::vector<Fault> faults;
  std::vector<Planned> planned;
  uint64_t seed = 1;
  ControlModel control;
  LinkModel link;
  bool batches_take_time = true;
  uint64_t fusion_bytes = uint64_t{128} << 20;
  Plant plant = Plant::kNone;
  int star_hosts = ControlTree::kStarHosts;
  bool keeps_spans = false;

  int ranks() const { return hosts * ranks_per_host; }
  // About as many as ranks ring: one for each name of the first step, some in each of the others.
  uint64_t bells() const { return static_cast<uint64_t>(ranks()) * (names.size() + 3 * steps.size()); }
  // True of a step that repeats the one before it, with all names known.
  bool is_steady(size_t step) const;
  std::vector<int> host_of_rank() const;
  std::vector<uint32_t> takers() const;  // by step, how many ranks submit
  // Marks in `came` what changes the step that the rank begins, by place in `planned`.
  void note_begun(int rank, size_t step, std::vector<bool>* came) const;
  // The place in `planned` of one of `faults`.
  size_t planned_as(int fault) const;
  // Adds what befalls the job, by the words of hvd_simulate_fault (c_api.h).
  Status add_fault(std::string_view kind, int target, int step, uint64_t event, double amount);

 private:
  Status change(std::string_view kind, int target, size_t from_step, double amount);
};

// The texts of a program's calls. All ranks share them.
class Texts {
 public:
  explicit Texts(const std::vector<SimulatedName>& names) : names_(names) {}

  const PlainCall::Text& descriptor_of(int64_t elements);
  const PlainCall::Text& key_of(size_t name, int generation);
  uint32_t name_of(const std::string& key) const { return names_by_key_.at(key); }
  size_t generations() const { return keys_.size(); }

 private:
  const std::vector<SimulatedName>& names_;
  std::map<int64_t, PlainCall::Text> descriptors_;    // by elements
  std::map<int, std::vector<PlainCall::Text>> keys_;  // by generation, then name
  std::unordered_map<std::string, uint32_t> names_by_key_;
};

}  // namespace hvd
