// SPDX-License-Identifier: Apache-2.0
// What is ready and not closed yet: the calls of the next batch, and since when the first of them waits for company
// (steps 5 and 6). Under the driver's token, except since_ns(), which any thread may read.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/submission.h"

namespace hvd {

class OpenBatch {
 public:
  void add(SubmissionPtr call, uint64_t now_ns) {
    if (calls_.empty()) since_ns_.store(now_ns);
    bytes_ += call->total_bytes;
    calls_.push_back(std::move(call));
  }
  std::vector<SubmissionPtr> take() {
    bytes_ = 0;
    since_ns_.store(0);
    return std::exchange(calls_, {});
  }
  bool is_empty() const { return calls_.empty(); }
  uint64_t bytes() const { return bytes_; }
  uint64_t since_ns() const { return since_ns_.load(); }  // 0: it is empty

 private:
  std::vector<SubmissionPtr> calls_;
  std::atomic<uint64_t> since_ns_{0};
  uint64_t bytes_ = 0;
};

}  // namespace hvd
