// SPDX-License-Identifier: Apache-2.0
// How long a batch's allreduce takes among simulated hosts, once all of them are there.
//
// Up to kMostExact hosts the shipped algorithm runs on a simulated network (simulated_allreduce.h), at the powers of
// two around the size, once each; between these the time is interpolated. Above, it is a formula: the number of
// messages by collectives/plan.h, the time of the processor for them, and that of the link for the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "simulate/inside.h"
#include "simulate/network.h"

namespace hvd {

struct BatchModel {
  int hosts = 1, ranks_per_host = 1;
  LinkModel link;
  uint64_t fusion_bytes = uint64_t{128} << 20;
  int group_hosts = 0;  // as the setting; as many as there are hosts mean no groups. Of the formula
};

class BatchTimes {
 public:
  static constexpr int kMostExact = 1024;

  explicit BatchTimes(BatchModel model) : model_(model) {}

  // Nanoseconds. Throws std::runtime_error if the algorithm fails.
  uint64_t of(size_t bytes);
  // Of all batches into which the fusion cuts entries of so many float32.
  uint64_t of_entries(const std::vector<int64_t>& elements);
  // Without the table.
  double exact_ns(size_t bytes) const;
  double formula_ns(size_t bytes) const;

 private:
  double at_size(size_t bytes);
  double inside_ns(size_t bytes) const;
  double gathered_ns(size_t bytes) const;
  double direct_ns(size_t bytes, double chunks, double folding_ns) const;
  double groups_ns(size_t bytes, double chunks, double folding_ns) const;

  const BatchModel model_;
  std::map<size_t, double> known_;  // by bytes
};

// The same under delays. That of a host is that of each message: in each of its rounds some wait for that host.
class DelayedBatchTimes {
 public:
  explicit DelayedBatchTimes(BatchModel model) : model_(model) {}

  uint64_t of_entries(const std::vector<int64_t>& elements, uint64_t delay_ns) {
    BatchModel delayed = model_;
    delayed.link.latency_ns += delay_ns;
    return by_delay_.try_emplace(delay_ns, delayed).first->second.of_entries(elements);
  }

 private:
  const BatchModel model_;
  std::map<uint64_t, BatchTimes> by_delay_;
};

}  // namespace hvd
