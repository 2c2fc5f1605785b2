// SPDX-License-Identifier: Apache-2.0
#include "simulate/program.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "platform/clock.h"

namespace hvd {

namespace {

struct Named {
  std::string_view name;
  FaultKind kind;
};
constexpr Named kSudden[] = {{"kill-rank", FaultKind::kKillRank},
                             {"kill-host", FaultKind::kKillHost},
                             {"freeze", FaultKind::kFreeze},
                             {"slow", FaultKind::kSlow},
                             {"cut", FaultKind::kCut},
                             {"delay", FaultKind::kDelay}};

Status invalid(std::string_view kind, const std::string& what) {
  return {HVD_INVALID_ARGUMENT, std::string(kind) + ": " + what};
}
bool is_of_host(std::string_view kind) { return kind == "kill-host" || kind == "cut" || kind == "delay"; }

}  // namespace

std::vector<int> Program::host_of_rank() const {
  std::vector<int> all;
  for (int rank = 0; rank < ranks(); ++rank) all.push_back(rank / ranks_per_host);
  return all;
}

bool Program::is_steady(size_t step) const {
  if (step == 0 || !faults.empty() || plant != Plant::kNone) return false;
  const auto is_plain = [](const SimulatedStep& one) {
    return one.absent.empty() && one.dead.empty() && !one.joins && one.odd_rank < 0 && one.leaver < 0;
  };
  const SimulatedStep &before = steps[step - 1], &now = steps[step];
  return is_plain(before) && is_plain(now) && before.shape == now.shape && before.generation == now.generation;
}

std::vector<uint32_t> Program::takers() const {
  std::vector<uint32_t> all;
  for (const SimulatedStep& step : steps) {
    all.push_back(static_cast<uint32_t>(ranks() - std::count(step.absent.begin(), step.absent.end(), true)));
  }
  return all;
}

Status Program::add_fault(std::string_view kind, int target, int step, uint64_t event, double amount) {
  const auto* const sudden = std::ranges::find(kSudden, kind, &Named::name);
  const int targets = is_of_host(kind) ? hosts : ranks();
  const bool needs_none = kind == "rename" || (kind == "shape" && target == -1);
  if (!needs_none && (target < 0 || target >= targets)) {
    return invalid(kind, std::string("expected a ") + (is_of_host(kind) ? "host" : "rank") + " below " +
                             std::to_string(targets) + ", got " + std::to_string(target));
  }
  if (step < 0 || static_cast<size_t>(step) >= steps.size()) {
    return invalid(kind, "expected a step below " + std::to_string(steps.size()) + ", got " + std::to_string(step));
  }
  if (sudden == std::end(kSudden)) {
    if (event != 0) return invalid(kind, "expected a step, got an event");
    planned.push_back({-1, target, static_cast<size_t>(step)});
    return change(kind, target, static_cast<size_t>(step), amount);
  }
  planned.push_back({static_cast<int>(faults.size()), target, static_cast<size_t>(step)});
  faults.push_back({sudden->kind, target, static_cast<size_t>(step), event, amount});
  return {};
}

void Program::note_begun(int rank, size_t step, std::vector<bool>* came) const {
  for (size_t i = 0; i < planned.size(); ++i) {
    const bool is_its_own = planned[i].target == rank || planned[i].target == -1;
    if (planned[i].fault < 0 && is_its_own && planned[i].step == step) (*came)[i] = true;
  }
}

size_t Program::planned_as(int fault) const {
  return static_cast<size_t>(std::ranges::find(planned, fault, &Planned::fault) - planned.begin());
}

Status Program::change(std::string_view kind, int target, size_t from_step, double amount) {
  SimulatedStep& first = steps[from_step];
  const auto again = [&](int other) {
    return other < 0 ? Status() : invalid(kind, "one rank is it already in step " + std::to_string(from_step));
  };
  const auto rest = std::span(steps).subspan(from_step);
  if (kind == "late") {
    HVD_RETURN_IF_ERROR(again(first.late_rank));
    first.late_rank = target;
    first.late_ns = static_cast<uint64_t>(amount * kMs);
  } else if (kind == "shape" && target >= 0) {
    HVD_RETURN_IF_ERROR(again(first.odd_rank));
    first.odd_rank = target;
  } else if (kind == "shape") {
    for (SimulatedStep& step : rest) ++step.shape;
  } else if (kind == "rename") {
    for (SimulatedStep& step : rest) ++step.generation;
  } else if (kind == "leave") {
    HVD_RETURN_IF_ERROR(again(first.leaver));
    first.leaver = target;
  } else if (kind == "join") {
    for (SimulatedStep& step : rest) {
      step.absent.resize(static_cast<size_t>(ranks()));
      step.absent[static_cast<size_t>(target)] = true;
    }
    steps.back().joins = true;
  } else {
    return invalid(kind, "no such fault");
  }
  return {};
}

const PlainCall::Text& Texts::descriptor_of(int64_t elements) {
  PlainCall::Text& text = descriptors_[elements];
  if (text == nullptr) {
    Descriptor descriptor;
    descriptor.tensors = {{HVD_FLOAT32, {elements}}};
    text = std::make_shared<const std::string>(descriptor.encode());
  }
  return text;
}

const PlainCall::Text& Texts::key_of(size_t name, int generation) {
  std::vector<PlainCall::Text>& keys = keys_[generation];
  if (keys.empty()) {
    for (const SimulatedName& one : names_) {
      std::string text = generation == 0 ? one.text : one.text + "@" + std::to_string(generation);
      names_by_key_[text] = static_cast<uint32_t>(keys.size());
      keys.push_back(std::make_shared<const std::string>(std::move(text)));
    }
  }
  return keys[name];
}

}  // namespace hvd
