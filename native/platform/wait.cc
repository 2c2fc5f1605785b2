// SPDX-License-Identifier: Apache-2.0
// Waiting: pause, yield, sleep on a shared futex (step 7).
#include "platform/wait.h"

#include <sched.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "platform/futex.h"

namespace hvd {

constexpr int64_t kSleepNs = 100'000'000;  // the longest time until an interrupt is seen

void cpu_pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int online_cpus() {
  static const long count = sysconf(_SC_NPROCESSORS_ONLN);
  return count > 0 ? static_cast<int>(count) : 1;
}

int allowed_cpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) != 0) return online_cpus();  // more than the set has room for
  return CPU_COUNT(&cpus);
}

void wake_sleepers(Signal& signal) { futex_wake(signal.value); }

bool wait_slowly(Signal& signal, uint32_t target, const Interrupt& interrupt, WaitPolicy policy) {
  for (int i = 0; i < policy.pauses; ++i) {
    cpu_pause();
    if (reached(signal, target)) return true;
  }
  for (int i = 0; i < policy.yields; ++i) {
    sched_yield();
    if (reached(signal, target)) return true;
    if (interrupt.raised()) return false;
  }
  if (interrupt.before_sleep != nullptr) (*interrupt.before_sleep)();
  signal.waiters.fetch_add(1, std::memory_order_seq_cst);
  bool arrived = false;
  while (!interrupt.raised()) {
    const uint32_t seen = signal.value.load(std::memory_order_seq_cst);
    arrived = reached(seen, target);
    if (arrived) break;
    futex_wait(signal.value, seen, kSleepNs);  // woken, timed out: the loop looks again
  }
  signal.waiters.fetch_sub(1, std::memory_order_seq_cst);
  return arrived;
}

}  // namespace hvd
