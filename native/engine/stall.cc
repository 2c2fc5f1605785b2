// SPDX-License-Identifier: Apache-2.0
// The stall report, by rank 0: what some ranks have waited for so long that somebody should look, and who is missing.
// One report for all that stalls, repeated as long as anything does; the missing ranks are asked first where they
// stand.
#include <algorithm>
#include <cstdio>
#include <map>

#include "engine/engine.h"
#include "negotiation/gradient_lists.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {
namespace {

constexpr size_t kShownNames = 10;
constexpr size_t kShownRanks = 16;
constexpr size_t kShownStacks = 4;
// Ranks that wait for each other: time does not help, so they are reported sooner, and where it is in lists of
// gradients that is a mismatch. Not at once: two lists of one step that nothing orders cross for a moment.
constexpr double kCrossedS = 10;
constexpr uint64_t kStackPatienceNs = 2000000000;  // each rank's monitor looks twice a second

struct Group {  // tensors that the same ranks wait for and the same ranks miss
  std::vector<std::string> names;
  double waited_s = 0;
};
using Groups = std::map<std::pair<std::vector<int>, std::vector<int>>, Group>;

std::string describe(const std::vector<int>& arrived, const std::vector<int>& missing, const Group& group,
                     size_t shown) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", group.waited_s);
  std::string names;
  shown = std::min(shown, group.names.size());
  for (size_t i = 0; i < shown; ++i) names += (i == 0 ? "" : ", ") + group.names[i];
  const size_t others = group.names.size() - shown;
  if (others > 0) names += (shown == 0 ? "" : " and ") + std::to_string(others) + (shown == 0 ? " tensors" : " more");
  return list_ranks(arrived, kShownRanks) + " waited " + seconds + " for " + names + ": missing " +
         list_ranks(missing, kShownRanks) + ", which did not submit " + (group.names.size() == 1 ? "it" : "them");
}

// What has been waited for at least `limit_s`. The time for which the whole job was suspended (Ctrl-Z and fg), until
// `resumed_s`, is nobody's stall.
Groups stalled_for(const std::vector<Undecided>& waiting, double resumed_s, double limit_s) {
  const double now = now_seconds();
  Groups stalled;
  for (const Undecided& item : waiting) {
    const double waited_s = now - std::max(item.since, resumed_s);
    if (item.missing.empty() || waited_s < limit_s) continue;
    Group& group = stalled[{item.arrived, item.missing}];
    group.names.push_back(item.name);
    group.waited_s = std::max(group.waited_s, waited_s);
  }
  return stalled;
}

std::vector<int> all_missing(const Groups& stalled) {
  std::vector<int> all;
  for (const auto& [ranks, _] : stalled) all.insert(all.end(), ranks.second.begin(), ranks.second.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Whether every rank that is missing somewhere waits itself, for something else.
bool is_crossed(const Groups& stalled) {
  return std::ranges::all_of(all_missing(stalled), [&](int rank) {
    return std::ranges::any_of(stalled, [rank](const auto& entry) {
      const std::vector<int>& arrived = entry.first.first;
      return std::ranges::find(arrived, rank) != arrived.end();
    });
  });
}

}  // namespace

// The in-flight rows tell who waits for an entry that is defined; who waits for a new name, the coordinator alone
// knows.
std::vector<Undecided> Engine::undecided_on_this_host() {
  std::vector<Undecided> found;
  std::vector<int> members;
  Undecided item;
  for (uint32_t id = 0; id < kMaxEntries; ++id) {
    bool waited_for = false;
    for (uint32_t r = 0; r < segment_->local_size(); ++r) waited_for |= segment_->in_flight(r, id).load() != 0;
    if (!waited_for || !coordinator_->describe(id, &item, &members)) continue;
    item.arrived.clear();
    item.missing.clear();
    uint64_t oldest_ms = 0;
    for (uint32_t r = 0; r < segment_->local_size(); ++r) {
      if (!std::binary_search(members.begin(), members.end(), ranks_of_host_[r])) continue;
      const uint64_t since_ms = segment_->in_flight(r, id).load();
      if (since_ms == 0 && coordinator_->has_joined(ranks_of_host_[r])) continue;
      (since_ms != 0 ? item.arrived : item.missing).push_back(ranks_of_host_[r]);
      if (since_ms != 0 && (oldest_ms == 0 || since_ms < oldest_ms)) oldest_ms = since_ms;
    }
    item.since = static_cast<double>(oldest_ms) * 1e-3;
    if (!item.arrived.empty() && !item.missing.empty()) found.push_back(item);
  }
  return found;
}

void Engine::report_stalls() {
  const EngineSettings& settings = options_.settings;
  if (settings.stall_warning_ms == 0) return;
  // Asked for before a pause that the monitor has yet to notice: it asks again.
  constexpr uint64_t kStaleNs = 1000000000;
  if (now_ns() - ticked_ns_.load() > kStaleNs) return;
  std::vector<Undecided> waiting = coordinator_->undecided();
  if (!spans_hosts()) {
    for (Undecided& item : undecided_on_this_host()) {
      std::erase_if(waiting, [&](const Undecided& other) { return other.id == item.id; });
      waiting.push_back(std::move(item));
    }
  }
  const double resumed_s = static_cast<double>(resumed_ns_.load()) * 1e-9;
  if (const double quiet_since = now_seconds() - kCrossedS; quiet_since > resumed_s) {
    int culprit = -1;
    if (const std::string text = disagreement_about_gradients(waiting, quiet_since, &culprit); !text.empty()) {
      poison(HVD_MISMATCH, culprit, text);
      return;
    }
  }
  const double limit_s = static_cast<double>(settings.stall_warning_ms) * 1e-3;
  Groups stalled = stalled_for(waiting, resumed_s, std::min(limit_s, kCrossedS));
  const bool crossed = is_crossed(stalled);
  if (!crossed) std::erase_if(stalled, [limit_s](const auto& entry) { return entry.second.waited_s < limit_s; });
  std::string report;
  size_t names_left = kShownNames;
  for (const auto& [ranks, group] : stalled) {
    const auto& [arrived, missing] = ranks;
    const std::string text = describe(arrived, missing, group, names_left);
    if (settings.stall_shutdown_ms > 0 && group.waited_s * 1e3 >= static_cast<double>(settings.stall_shutdown_ms)) {
      poison(HVD_ABORTED, missing.front(), text + " (the stall limit is reached)");
      return;
    }
    names_left -= std::min(names_left, group.names.size());
    report += (report.empty() ? "" : ";\n  ") + text;
  }
  if (report.empty()) stacks_asked_ns_ = 0;
  if (report.empty() || !settings.warnings) return;
  if (stall_reported_ns_ != 0 && now_ns() - stall_reported_ns_ < settings.stall_warning_ms * 1000000) return;
  std::vector<int> asked = all_missing(stalled);
  if (asked.size() > kShownStacks) asked.resize(kShownStacks);
  if (stacks_asked_ns_ == 0) {
    stacks_asked_ns_ = now_ns();
    ask_for_stacks(asked);
    return;
  }
  const bool answered = std::ranges::all_of(asked, [this](int rank) { return stacks_.contains(rank); });
  if (!answered && now_ns() - stacks_asked_ns_ < kStackPatienceNs) return;
  stacks_asked_ns_ = 0;
  stall_reported_ns_ = now_ns();
  warn("stall: " + report + stacks_in_words(asked) + "\nhint: every rank must call the same collectives; look for " +
           (crossed ? "a branch on the rank, or models that differ: ranks wait for each other in different calls"
                    : "a branch on the rank, uneven data, or a rank that is slow"),
       settings.log_time);
}

}  // namespace hvd
