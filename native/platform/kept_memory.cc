// SPDX-License-Identifier: Apache-2.0
#include "platform/kept_memory.h"

#include <atomic>
#include <mutex>

namespace hvd {

namespace {

std::atomic<bool> keeping = false;
std::mutex lock;

// Never destroyed, since threads may end after static objects; a leak's finder sees that nothing is lost.
std::vector<void*>& kept() {
  static auto* const blocks = new std::vector<void*>;
  return *blocks;
}

}  // namespace

void keep_memory() { keeping = true; }

bool keeps(void* memory) {
  if (!keeping) return false;
  const std::scoped_lock guard(lock);
  kept().push_back(memory);
  return true;
}

}  // namespace hvd
