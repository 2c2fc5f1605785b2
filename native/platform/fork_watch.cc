// SPDX-License-Identifier: Apache-2.0
#include "platform/fork_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace hvd {
namespace {

std::atomic<bool> forked{false};

struct Watched {
  std::mutex mutex;  // held across a fork, so that the child finds the list whole
  std::vector<int> descriptors;
};

Watched& watched() {
  static Watched* const everything = new Watched;  // never destroyed: a fork may come while the process exits
  return *everything;
}

}  // namespace

void watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { watched().mutex.lock(); }, [] { watched().mutex.unlock(); },
                   [] {
                     for (const int descriptor : watched().descriptors) close(descriptor);
                     watched().descriptors.clear();
                     forked.store(true);
                     watched().mutex.unlock();
                   });
  });
}

bool in_forked_child() { return forked.load(std::memory_order_relaxed); }

void close_on_fork(int descriptor) {
  const std::lock_guard lock(watched().mutex);
  watched().descriptors.push_back(descriptor);
}

void keep_on_fork(int descriptor) {
  const std::lock_guard lock(watched().mutex);
  std::erase(watched().descriptors, descriptor);
}

}  // namespace hvd
