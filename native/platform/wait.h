// SPDX-License-Identifier: Apache-2.0
// Flag: a counter in shared memory that one side advances and others wait for. The one way to wait inside a host (step
// 7).
//
// Any thread or process that maps the flag may wait; counters wrap, so distances must stay below 2^31. A waiter pauses,
// then yields, then sleeps on a shared futex for at most 100 ms at a time and looks at the interrupt in between; the
// publisher makes a system call only while a waiter sleeps. Ordering: writes before publish() are visible after
// wait_until().
#pragma once

#include <atomic>
#include <cstdint>

#include "platform/interrupt.h"

namespace hvd {

struct Signal {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> waiters{0};  // how many are about to sleep, or do
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Signal) == 8);

// 128 bytes: neighbouring cache lines are fetched in pairs.
struct alignas(128) Flag : Signal {};

// How long to stay awake. If ranks share cores, a long spin takes time from the awaited rank.
struct WaitPolicy {
  int pauses = 100;
  int yields = 100;
};

inline bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }
inline bool reached(const Signal& signal, uint32_t target) {
  return reached(signal.value.load(std::memory_order_acquire), target);
}

void wake_sleepers(Signal& signal);
// Stores the value, then wakes the sleepers. Sequential consistency orders the store before the look at `waiters`, as a
// sleeper orders its announcement before its last look at the value.
inline void publish(Signal& signal, uint32_t value) {
  signal.value.store(value, std::memory_order_seq_cst);
  if (signal.waiters.load(std::memory_order_seq_cst) != 0) wake_sleepers(signal);
}

bool wait_slowly(Signal& signal, uint32_t target, const Interrupt& interrupt, WaitPolicy policy);
// False: the interrupt was raised first.
inline bool wait_until(Signal& signal, uint32_t target, const Interrupt& interrupt, WaitPolicy policy = {}) {
  return reached(signal, target) || wait_slowly(signal, target, interrupt, policy);
}

void cpu_pause();
int online_cpus();
int allowed_cpus();  // that this thread may run on

}  // namespace hvd
