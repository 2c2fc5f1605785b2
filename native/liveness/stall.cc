// SPDX-License-Identifier: Apache-2.0
#include "liveness/stall.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "liveness/stacks.h"
#include "negotiation/gradient_lists.h"
#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {
namespace {

constexpr const char* kMessages = "; each send needs a receive of its tag, and a send ends when that has come";

constexpr size_t kShownNames = 10;
constexpr size_t kReportedRanks = 16;
constexpr size_t kShownStacks = 4;
constexpr size_t kShownBytes = 400;  // of an error that all ranks get: shared memory has little room for it
// Ranks that wait for each other: time does not help, so they are reported sooner, and where it is in lists of
// gradients that is a mismatch. Not at once: two lists of one step that nothing orders cross for a moment.
constexpr double kCrossedS = 10;
// A rank that has completed an operation may be about to write so into the log.
constexpr uint64_t kCertainNs = 1000000000;
constexpr uint64_t kPatienceNs = 2000000000;  // with an answer: each rank's monitor looks twice a second

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
  if (shown == 0) {
    names = std::to_string(others) + (others == 1 ? " tensor" : " tensors");
  } else if (others > 0) {
    names += " and " + std::to_string(others) + " more";
  }
  return list_ranks(arrived, kReportedRanks) + " waited " + seconds + " for " + names + ": missing " +
         list_ranks(missing, kReportedRanks) + ", which did not call " + (group.names.size() == 1 ? "it" : "them");
}

// The operations that have been waited for at least `limit_s`. The time until `resumed_s`, during which the whole job
// was suspended (Ctrl-Z and fg), does not count.
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

// True if every rank that is missing somewhere waits itself, for something else.
bool is_crossed(const Groups& stalled) {
  return std::ranges::all_of(all_missing(stalled), [&](int rank) {
    return std::ranges::any_of(stalled, [rank](const auto& entry) {
      const std::vector<int>& arrived = entry.first.first;
      return std::ranges::find(arrived, rank) != arrived.end();
    });
  });
}

bool holds_any(const std::vector<int>& ranks, const std::vector<int>& of) {
  return std::ranges::any_of(ranks, [&of](int rank) { return std::ranges::find(of, rank) != of.end(); });
}

// The largest set of blocked ranks each of whose operations needs one of the set that has not submitted it.
std::vector<int> deadlocked(const std::vector<Undecided>& waiting, std::vector<int> blocked) {
  const auto can_go_on = [&](int rank) {
    bool any = false;
    for (const Undecided& item : waiting) {
      if (std::ranges::find(item.arrived, rank) == item.arrived.end()) continue;
      any = true;
      if (!holds_any(item.missing, blocked)) return true;
    }
    return !any;
  };
  for (;;) {
    std::vector<int> left;
    std::ranges::copy_if(blocked, std::back_inserter(left), std::not_fn(can_go_on));
    if (left.size() == blocked.size()) return left;
    blocked = std::move(left);
  }
}

}  // namespace

StallReport::StallReport(const EngineSettings& settings, Leader& leader) : settings_(settings), leader_(leader) {}

uint64_t StallReport::late_ms(const EngineSettings& settings) {
  return std::min(settings.stall_warning_ms, static_cast<uint64_t>(kCrossedS * 1e3));
}

bool StallReport::anything_is_late(double resumed_s) {
  const double limit_s = static_cast<double>(late_ms(settings_)) * 1e-3;
  return !stalled_for(leader_.undecided(), resumed_s, limit_s).empty();
}

// Asks all hosts anew for each report, and waits for the answers. A leader that is inside of a batch gives none.
bool StallReport::knows_who_waits() {
  if (asked_hosts_ns_ == 0) {
    asked_hosts_ns_ = now_ns();
    leader_.facts().ask_who_waits();
  }
  if (!leader_.facts().all_have_told() && now_ns() - asked_hosts_ns_ < kPatienceNs) return false;
  asked_hosts_ns_ = 0;
  return true;
}

Status StallReport::report() {
  if (settings_.stall_warning_ms == 0) return {};
  // Asked for before a pause that the monitor has yet to notice: it asks again.
  constexpr uint64_t kStaleNs = 1000000000;
  if (now_ns() - ticked_ns_.load() > kStaleNs) return {};
  const double resumed_s = static_cast<double>(resumed_ns_.load()) * 1e-9;
  if (!anything_is_late(resumed_s)) {
    asked_hosts_ns_ = asked_ns_ = 0;
    return {};
  }
  if (!knows_who_waits()) return {};
  const std::vector<Undecided> waiting = leader_.undecided();
  if (const double quiet_since = now_seconds() - kCrossedS; quiet_since > resumed_s) {
    int culprit = -1;
    if (const std::string text = disagreement_about_gradients(waiting, quiet_since, &culprit); !text.empty()) {
      return {HVD_MISMATCH, text, culprit};
    }
  }
  const double limit_s = static_cast<double>(settings_.stall_warning_ms) * 1e-3;
  Groups stalled = stalled_for(waiting, resumed_s, std::min(limit_s, kCrossedS));
  const std::vector<int> stuck = deadlocked(waiting, leader_.facts().blocked());
  proven_ns_ = stuck.empty() ? 0 : proven_ns_ == 0 ? now_ns() : proven_ns_;
  const bool crossed = !stuck.empty() || is_crossed(stalled);
  std::erase_if(stalled, [&](const auto& entry) {
    return entry.second.waited_s < limit_s && !(stuck.empty() ? crossed : holds_any(entry.first.first, stuck));
  });
  std::string report;
  size_t names_left = kShownNames;
  for (const auto& [ranks, group] : stalled) {
    const auto& [arrived, missing] = ranks;
    const std::string text = describe(arrived, missing, group, names_left);
    if (settings_.stall_shutdown_ms > 0 && group.waited_s * 1e3 >= static_cast<double>(settings_.stall_shutdown_ms)) {
      return {HVD_ABORTED, text + " (the stall limit is reached)", missing.front()};
    }
    names_left -= std::min(names_left, group.names.size());
    report += (report.empty() ? "" : ";\n  ") + text;
  }
  std::string hint = std::string("\nhint: every rank must call the same collectives; look for ") +
                     (crossed ? "a branch on the rank, unequal numbers of steps, or models that differ: ranks wait for "
                                "each other in different calls"
                              : "a branch on the rank, uneven data, or a rank that is slow");
  if (!stuck.empty() && !report.empty()) {  // the error has the rest
    report = list_ranks(stuck, kReportedRanks) +
             " wait for each other in different calls (the error that follows names them)";
    hint.clear();
  }
  tell(report, hint, all_missing(stalled));
  if (!is_certain()) return {};
  std::string calls;
  for (const auto& [ranks, group] : stalled) {
    if (calls.size() < kShownBytes)
      calls += (calls.empty() ? "" : "; ") + describe(ranks.first, ranks.second, group, 1);
  }
  return {HVD_DEADLOCK, list_ranks(stuck, kReportedRanks) +
                            " wait for each other in different calls, and none of them can go on: " + calls +
                            "\nhint: all ranks must call the same collectives in the same order; look for ranks with "
                            "different numbers of batches (horovodrun --explain uneven-data), or a branch on "
                            "the rank" +
                            (calls.find("`send from") == std::string::npos ? "" : kMessages)};
}

// After a further look, and the report, which has the stacks.
bool StallReport::is_certain() const {
  return proven_ns_ != 0 && now_ns() - proven_ns_ > kCertainNs && (told_ns_ > proven_ns_ || !settings_.warnings);
}

// Once the missing ranks have said where they stand, or have had the time to.
void StallReport::tell(const std::string& report, const std::string& hint, std::vector<int> asked) {
  if (report.empty()) asked_ns_ = 0;
  if (report.empty() || !settings_.warnings) return;
  const bool is_told = told_ns_ != 0 && now_ns() - told_ns_ < settings_.stall_warning_ms * 1000000;
  if (is_told && told_ns_ > proven_ns_) return;
  if (asked.size() > kShownStacks) asked.resize(kShownStacks);
  if (asked_ns_ == 0) {
    asked_ns_ = now_ns();
    leader_.facts().ask_for_stacks(asked);
    return;
  }
  const bool answered =
      std::ranges::all_of(asked, [this](int rank) { return leader_.facts().stacks().contains(rank); });
  if (!answered && now_ns() - asked_ns_ < kStackPatienceS * 1000000000ull) return;
  asked_ns_ = 0;
  told_ns_ = now_ns();
  warn("stall: " + report + stacks_in_words(leader_.facts().stacks(), asked) + hint +
           "\nmore: horovodrun --explain stall",
       settings_.log_time);
}

}  // namespace hvd
