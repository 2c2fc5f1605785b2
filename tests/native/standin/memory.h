// SPDX-License-Identifier: Apache-2.0
// The stand-in's device memory: a range of addresses for each device, given out in blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace standin {

constexpr unsigned char kPoison = 0xFD;

// Poisoned. Null if the device is full.
void* allocate(int device, size_t bytes);
// The size of the block that begins here, 0: there is none.
size_t block_bytes(const void* memory);
void give_back(void* memory);
int64_t allocations();

// Host memory that the driver knows.
bool pin(void* memory, size_t bytes);
bool unpin(void* memory);
bool is_pinned(const void* memory);
int64_t pinned_ranges();

}  // namespace standin
