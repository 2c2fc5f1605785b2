// SPDX-License-Identifier: Apache-2.0
// Interrupt: why a wait inside a collective may end before its peers have answered.
//
// A generation is poisoned once and for all by storing a non-zero value into `word` (shared memory of the host) and,
// where sockets are waited for, by making `event_fd` readable. Waits look at `word` at least every 100 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace hvd {

struct Interrupt {
  const std::atomic<uint64_t>* word = nullptr;
  int event_fd = -1;  // -1 if no thread polls sockets
  // Called before a wait inside a host sleeps: those that are waited for may sleep, too. May be null.
  const std::function<void()>* before_sleep = nullptr;

  bool raised() const { return word != nullptr && word->load(std::memory_order_acquire) != 0; }
};

}  // namespace hvd
