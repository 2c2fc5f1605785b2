// SPDX-License-Identifier: Apache-2.0
// A tally's word as a plain integer, for programs whose ranks are steps of one thread (hosts.h).
#pragma once

#include <cstdint>
#include <utility>

namespace hvd {

class PlainWord {
 public:
  explicit PlainWord(uint64_t& word) : word_(&word) {}
  uint64_t load() const { return *word_; }
  void store(uint64_t value) { *word_ = value; }
  uint64_t fetch_add(uint64_t delta) { return std::exchange(*word_, *word_ + delta); }
  bool compare_exchange(uint64_t& expected, uint64_t desired) {
    if (*word_ != expected) {
      expected = *word_;
      return false;
    }
    *word_ = desired;
    return true;
  }

 private:
  uint64_t* word_;
};

}  // namespace hvd
