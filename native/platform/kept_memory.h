// SPDX-License-Identifier: Apache-2.0
// Memory into which peers' data come. If a wait for them was given up, MPI may write into it whenever it likes, so
// nothing of it is freed from then on: the process is about to end. Any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace hvd {

// From now on, for all memory of the types below.
void keep_memory();
// True if `memory` is kept; if not, the caller frees it.
bool keeps(void* memory);

template <class T>
struct KeepingAllocator {
  using value_type = T;
  KeepingAllocator() = default;
  template <class Other>
  KeepingAllocator(const KeepingAllocator<Other>&) {}
  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, size_t count) {
    if (!keeps(memory)) std::allocator<T>().deallocate(memory, count);
  }
  bool operator==(const KeepingAllocator&) const { return true; }
};
template <class T>
using Exchanged = std::vector<T, KeepingAllocator<T>>;

struct KeepingDelete {
  void operator()(std::byte* memory) const {
    if (!keeps(memory)) delete[] memory;
  }
};
using ExchangedBytes = std::unique_ptr<std::byte[], KeepingDelete>;
inline ExchangedBytes exchanged_bytes(size_t bytes) { return ExchangedBytes(new std::byte[bytes]); }

}  // namespace hvd
