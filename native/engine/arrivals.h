// SPDX-License-Identifier: Apache-2.0
// Arrivals: for which ranks this rank's calls have waited, and how long. Each rank measures its own waits by its own
// clock, and learns from negotiation who came last, so no clocks are compared.
//
// note_ready() under the driver's token; the rest from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace hvd {

class Arrivals {
 public:
  explicit Arrivals(uint64_t now_ns) : begun_ns_(now_ns) {}

  // A call is ready that has waited for other ranks. `last_rank`: -1 if it is unknown. `entry`: the number of its name.
  void note_ready(uint64_t now_ns, uint64_t waited_ns, int last_rank, int32_t set, const std::string& name,
                  uint32_t entry, uint64_t bytes);
  // A caller was blocked in a wait until its call was done.
  void note_blocked(uint64_t for_ranks_ns, uint64_t for_data_ns);
  // JSON: an object.
  std::string describe(uint64_t now_ns) const;

 private:
  struct Row {
    uint64_t times = 0;
    uint64_t waited_ns = 0;
    void add(uint64_t ns) {
      ++times;
      waited_ns += ns;
    }
  };
  using ByRank = std::map<int, Row>;
  struct Period {  // of a part of the last minute
    uint64_t number = 0;
    ByRank by_rank;
  };
  static constexpr uint64_t kPeriodNs = 5'000'000'000;
  static constexpr uint64_t kPeriods = 12;
  static constexpr size_t kNames = 1000;  // later ones are summed up as one
  static constexpr size_t kShownNames = 10;

  void count_step(uint32_t entry, uint64_t bytes);
  std::string longest_waits() const;
  static std::string in_json(const ByRank& rows);
  static std::string in_json(const Row& row);

  const uint64_t begun_ns_;
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> waited_ns_{0};
  std::atomic<uint64_t> waiting_ns_{0};  // at least one call waited
  std::atomic<uint64_t> steps_{0};
  std::atomic<uint64_t> blocked_times_{0};
  std::atomic<uint64_t> blocked_for_ranks_ns_{0};
  std::atomic<uint64_t> blocked_for_data_ns_{0};

  // Of the driver alone. A step is a run of the tensor that has moved the most bytes.
  std::vector<uint32_t> runs_;  // by entry
  uint64_t most_bytes_ = 0;
  uint64_t counted_until_ns_ = 0;  // of waiting_ns_

  mutable std::mutex mutex_;  // of what follows
  ByRank by_rank_;
  std::map<int32_t, Row> by_set_;
  std::unordered_map<std::string, Row> by_name_;
  std::array<Period, kPeriods> periods_;
};

}  // namespace hvd
