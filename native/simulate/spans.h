// SPDX-License-Identifier: Apache-2.0
// Spans of time of each rank, for a picture of a small simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

struct Span {
  // A step; the wait for the last rank of a batch; its collectives.
  enum class What : uint8_t { kStep, kWait, kBatch } what = What::kStep;
  int rank = 0;
  size_t number = 0;  // of the step or the batch
  uint64_t begin_ns = 0, end_ns = 0;
};

class Spans {
 public:
  explicit Spans(bool keeps) : keeps_(keeps) {}

  void add(const Span& span) {
    if (keeps_) all_.push_back(span);
  }
  const std::vector<Span>& all() const { return all_; }

 private:
  const bool keeps_;
  std::vector<Span> all_;
};

}  // namespace hvd
