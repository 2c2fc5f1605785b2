// SPDX-License-Identifier: Apache-2.0
#include "platform/private_descriptors.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace hvd {
namespace {

std::atomic<bool> forked{false};
std::atomic<int> watches{0};

struct Registry {
  std::mutex mutex;
  std::vector<int> descriptors;
};
// Never destroyed: a fork may come while the program exits.
Registry& registry() {
  static auto* const only = new Registry;
  return *only;
}

void before_fork() { registry().mutex.lock(); }
void after_fork_in_parent() { registry().mutex.unlock(); }
void after_fork_in_child() {
  if (watches.load() > 0) forked.store(true);
  for (const int descriptor : registry().descriptors) close(descriptor);
  registry().descriptors.clear();
  registry().mutex.unlock();
}

}  // namespace

ForkWatch::ForkWatch() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); });
  ++watches;
}

ForkWatch::~ForkWatch() { --watches; }

bool in_forked_child() { return forked.load(std::memory_order_relaxed); }

void keep_private(int descriptor) {
  const std::lock_guard lock(registry().mutex);
  registry().descriptors.push_back(descriptor);
}

void close_private(int descriptor) {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().descriptors, descriptor);
  close(descriptor);
}

}  // namespace hvd
