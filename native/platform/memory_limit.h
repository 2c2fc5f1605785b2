// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take: of the machine, and of every control group (container, batch job) that
// it is in. Asked before shared memory is allocated, because a group that has none left is not told so: the kernel
// kills one of its processes.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

struct MemoryLeft {
  uint64_t bytes = UINT64_MAX;
  std::string where;  // "this machine", or the group's folder
};

// Memory that can be reclaimed (file caches, swap) counts as left. If nothing can be read: no limit. `root` is put
// before every path, for tests.
MemoryLeft memory_left(const std::string& root = "");

}  // namespace hvd
