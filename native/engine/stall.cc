// SPDX-License-Identifier: Apache-2.0
// The stall report, by rank 0: what some ranks have waited for so long that somebody should look, and who is missing.
#include <algorithm>
#include <cstdio>

#include "engine/engine.h"
#include "platform/clock.h"

namespace hvd {
namespace {

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

// The in-flight rows tell who waits for an entry that is defined; who waits for a new name, the coordinator alone
// knows.
std::vector<Undecided> Engine::undecided_on_this_host() {
  std::vector<Undecided> found;
  std::vector<int> members;
  Undecided item;
  for (uint32_t id = 0; coordinator_->describe(id, &item.name, &members); ++id) {
    item.arrived.clear();
    item.missing.clear();
    uint64_t oldest_ms = 0;
    for (uint32_t r = 0; r < segment_->local_size(); ++r) {
      if (!std::binary_search(members.begin(), members.end(), ranks_of_host_[r])) continue;
      const uint64_t since_ms = segment_->in_flight(r, id).load();
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
  std::vector<Undecided> waiting = coordinator_->undecided();
  if (!spans_hosts()) {
    for (Undecided& item : undecided_on_this_host()) {
      std::erase_if(waiting, [&](const Undecided& other) { return other.name == item.name; });
      waiting.push_back(std::move(item));
    }
  }
  const double now = now_seconds();
  for (const Undecided& item : waiting) {
    const double waited_ms = (now - item.since) * 1e3;
    if (settings.stall_warning_ms == 0 || waited_ms < static_cast<double>(settings.stall_warning_ms) ||
        item.missing.empty()) {
      continue;
    }
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f s", waited_ms * 1e-3);
    const std::string text = list(item.arrived) + " waited " + seconds + " for " + item.name + ": missing " +
                             list(item.missing) + ", which did not submit it";
    if (settings.stall_shutdown_ms > 0 && waited_ms >= static_cast<double>(settings.stall_shutdown_ms)) {
      poison(HVD_ABORTED, item.missing.front(), text + " (the stall limit is reached)");
      return;
    }
    uint64_t& reported_ns = stall_reported_ns_[item.name];
    if (reported_ns != 0 && now_ns() - reported_ns < settings.stall_warning_ms * 1000000) continue;
    reported_ns = now_ns();
    if (settings.warnings) {
      std::fprintf(
          stderr,
          "horovod: warning: stall: %s\nhint: every rank must call the same collectives; look for a branch on the "
          "rank, uneven data, or a rank that is slow\n",
          text.c_str());
    }
  }
}

}  // namespace hvd
