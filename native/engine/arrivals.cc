// SPDX-License-Identifier: Apache-2.0
#include "engine/arrivals.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "negotiation/member.h"
#include "timeline/json.h"

namespace hvd {
namespace {

std::string seconds(uint64_t ns) { return std::to_string(static_cast<double>(ns) * 1e-9); }

}  // namespace

void Arrivals::note_ready(uint64_t now_ns, uint64_t waited_ns, int last_rank, int32_t set, const std::string& name,
                          uint32_t entry, uint64_t bytes) {
  // One thread at a time writes these.
  count_step(entry, bytes);
  calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  waited_ns_.store(waited_ns_.load(std::memory_order_relaxed) + waited_ns, std::memory_order_relaxed);
  if (waited_ns < kShortWaitNs) return;
  const uint64_t begun_ns = std::max(counted_until_ns_, now_ns - waited_ns);
  if (begun_ns < now_ns) {
    waiting_ns_.store(waiting_ns_.load(std::memory_order_relaxed) + now_ns - begun_ns, std::memory_order_relaxed);
    counted_until_ns_ = now_ns;
  }
  const std::lock_guard lock(mutex_);
  by_rank_[last_rank].add(waited_ns);
  by_set_[set].add(waited_ns);
  by_name_[by_name_.size() < kNames || by_name_.contains(name) ? name : ""].add(waited_ns);
  const uint64_t number = now_ns / kPeriodNs;
  Period& period = periods_[number % kPeriods];
  if (period.number != number) period = {number, {}};
  period.by_rank[last_rank].add(waited_ns);
}

void Arrivals::count_step(uint32_t entry, uint64_t bytes) {
  if (entry >= runs_.size()) runs_.resize(entry + 1);
  const uint64_t runs = ++runs_[entry];
  if (runs * bytes < most_bytes_) return;
  most_bytes_ = runs * bytes;
  steps_.store(runs, std::memory_order_relaxed);
}

void Arrivals::note_blocked(uint64_t for_ranks_ns, uint64_t for_data_ns) {
  blocked_times_.fetch_add(1, std::memory_order_relaxed);
  blocked_for_ranks_ns_.fetch_add(for_ranks_ns, std::memory_order_relaxed);
  blocked_for_data_ns_.fetch_add(for_data_ns, std::memory_order_relaxed);
}

std::string Arrivals::describe(uint64_t now_ns) const {
  std::string text = "{\"seconds\": " + seconds(now_ns - begun_ns_) + ", \"calls\": " + std::to_string(calls_.load()) +
                     ", \"steps\": " + std::to_string(steps_.load()) + ", \"waited_s\": " + seconds(waited_ns_.load()) +
                     ", \"waiting_s\": " + seconds(waiting_ns_.load()) +
                     ", \"blocked_times\": " + std::to_string(blocked_times_.load()) +
                     ", \"blocked_for_ranks_s\": " + seconds(blocked_for_ranks_ns_.load()) +
                     ", \"blocked_for_data_s\": " + seconds(blocked_for_data_ns_.load());
  const std::lock_guard lock(mutex_);
  ByRank lately;
  const uint64_t number = now_ns / kPeriodNs;
  for (const Period& period : periods_) {
    if (period.number + kPeriods <= number) continue;
    for (const auto& [rank, row] : period.by_rank) {
      lately[rank].times += row.times;
      lately[rank].waited_ns += row.waited_ns;
    }
  }
  std::string sets;
  for (const auto& [set, row] : by_set_)
    sets += (sets.empty() ? "\"" : ", \"") + std::to_string(set) + "\": " + in_json(row);
  return text + ", \"by_rank\": " + in_json(by_rank_) + ", \"last_minute\": " + in_json(lately) +
         ", \"by_process_set\": {" + sets + "}, \"by_tensor\": " + longest_waits() + "}";
}

// Of the tensors that were waited for longest.
std::string Arrivals::longest_waits() const {
  std::vector<std::pair<std::string, Row>> rows(by_name_.begin(), by_name_.end());
  const auto shown = rows.begin() + static_cast<std::ptrdiff_t>(std::min(rows.size(), kShownNames));
  std::partial_sort(rows.begin(), shown, rows.end(),
                    [](const auto& a, const auto& b) { return a.second.waited_ns > b.second.waited_ns; });
  std::string text;
  for (auto row = rows.begin(); row != shown; ++row) {
    text += (text.empty() ? "" : ", ") + json_string(row->first) + ": " + in_json(row->second);
  }
  return "{" + text + "}";
}

std::string Arrivals::in_json(const ByRank& rows) {
  std::string text;
  for (const auto& [rank, row] : rows)
    text += (text.empty() ? "\"" : ", \"") + std::to_string(rank) + "\": " + in_json(row);
  return "{" + text + "}";
}

std::string Arrivals::in_json(const Row& row) {
  return "{\"times\": " + std::to_string(row.times) + ", \"waited_s\": " + seconds(row.waited_ns) + "}";
}

}  // namespace hvd
