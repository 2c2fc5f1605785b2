// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "standin.h"
#include "streams.h"

namespace standin {

namespace {

constexpr size_t kArenaBytes = size_t{4} << 30;  // of addresses; memory only where it is written
constexpr size_t kAligned = 512;

struct Arena {
  std::byte* base = nullptr;
  size_t used = 0;
  std::map<std::byte*, size_t> blocks;             // in use
  std::multimap<size_t, std::byte*> free_by_size;  // whole blocks, used again for the same size
};

struct Memory {
  std::mutex mutex;
  std::array<Arena, STANDIN_DEVICES> arenas;
  std::map<std::byte*, size_t> pinned;

  Memory() {
    for (Arena& arena : arenas) {
      void* const base =
          mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base != MAP_FAILED) arena.base = static_cast<std::byte*>(base);
    }
  }
  Arena* arena_of(const void* memory) {
    for (Arena& arena : arenas) {
      const auto* const at = static_cast<const std::byte*>(memory);
      if (arena.base != nullptr && at >= arena.base && at < arena.base + kArenaBytes) return &arena;
    }
    return nullptr;
  }
};

Memory& all() {
  static auto* const memory = new Memory;
  return *memory;
}

}  // namespace

void* allocate(int device, size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAligned - 1) / kAligned * kAligned;
  std::byte* block = nullptr;
  {
    const std::lock_guard lock(all().mutex);
    Arena& arena = all().arenas.at(static_cast<size_t>(device));
    if (const auto found = arena.free_by_size.find(rounded); found != arena.free_by_size.end()) {
      block = found->second;
      arena.free_by_size.erase(found);
    } else {
      if (arena.base == nullptr || arena.used + rounded > kArenaBytes) return nullptr;
      block = arena.base + arena.used;
      arena.used += rounded;
    }
    arena.blocks[block] = rounded;
  }
  std::memset(block, kPoison, rounded);
  // The driver orders a block's next use after its last one.
  const std::lock_guard lock(state().mutex);
  state().order.forget(block, rounded);
  return block;
}

size_t block_bytes(const void* memory) {
  const std::lock_guard lock(all().mutex);
  Arena* const arena = all().arena_of(memory);
  if (arena == nullptr) return 0;
  const auto found = arena->blocks.find(static_cast<std::byte*>(const_cast<void*>(memory)));
  return found == arena->blocks.end() ? 0 : found->second;
}

void give_back(void* memory) {
  const size_t bytes = block_bytes(memory);
  std::memset(memory, kPoison, bytes);
  const std::lock_guard lock(all().mutex);
  Arena* const arena = all().arena_of(memory);
  arena->blocks.erase(static_cast<std::byte*>(memory));
  arena->free_by_size.emplace(bytes, static_cast<std::byte*>(memory));
}

int64_t allocations() {
  const std::lock_guard lock(all().mutex);
  size_t count = 0;
  for (const Arena& arena : all().arenas) count += arena.blocks.size();
  return static_cast<int64_t>(count);
}

int device_of(const void* memory) {
  const std::lock_guard lock(all().mutex);
  Arena* const arena = all().arena_of(memory);
  return arena == nullptr ? -1 : static_cast<int>(arena - all().arenas.data());
}

bool pin(void* memory, size_t bytes) {
  const std::lock_guard lock(all().mutex);
  return all().pinned.emplace(static_cast<std::byte*>(memory), bytes).second;
}

bool unpin(void* memory) {
  const std::lock_guard lock(all().mutex);
  return all().pinned.erase(static_cast<std::byte*>(memory)) == 1;
}

bool is_pinned(const void* memory) {
  const std::lock_guard lock(all().mutex);
  const auto* const at = static_cast<const std::byte*>(memory);
  auto after = all().pinned.upper_bound(const_cast<std::byte*>(at));
  if (after == all().pinned.begin()) return false;
  --after;
  return at < after->first + after->second;
}

int64_t pinned_ranges() {
  const std::lock_guard lock(all().mutex);
  return static_cast<int64_t>(all().pinned.size());
}

}  // namespace standin

extern "C" {

void* standin_allocate(int device, size_t bytes) {
  return standin::planned_failure("standin_allocate") == 0 ? standin::allocate(device, bytes) : nullptr;
}

void standin_free(void* memory) { standin::give_back(memory); }

}  // extern "C"
