// SPDX-License-Identifier: Apache-2.0
// The structs of horovod.h as callers of other versions lay them out (step 4). A caller's struct is copied into ours:
// fields that an older caller lacks are zero; fields of a newer caller that we lack must be zero, else it asks for
// something that this library cannot do. Pure; nothing here owns memory of the caller.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "horovod/horovod.h"
#include "platform/status.h"

namespace hvd {

// `size`: how large the caller's struct is; `least`: the shortest that makes sense.
template <class Struct>
Status read_struct(const void* given, uint32_t size, size_t least, const char* name, Struct* out) {
  if (size < least) {
    return {HVD_INVALID_ARGUMENT, std::string(name) + " has " + std::to_string(size) + " bytes, expected at least " +
                                      std::to_string(least) + "\nhint: set its size to sizeof(" + name + ")"};
  }
  const auto* const bytes = static_cast<const unsigned char*>(given);
  *out = Struct{};
  std::memcpy(static_cast<void*>(out), bytes, std::min<size_t>(size, sizeof(Struct)));
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return {HVD_INVALID_ARGUMENT, std::string(name) +
                                      " sets a field that this library does not have\nhint: the caller was built for a "
                                      "newer version of Horovod"};
  }
  return {};
}

// An array whose elements are `stride` bytes apart; 0 stands for the layout of the first version.
template <class Struct>
Status read_structs(const void* given, uint32_t count, uint32_t stride, size_t first_bytes, const char* name,
                    std::vector<Struct>* out) {
  if (count > 0 && given == nullptr) {
    return {HVD_INVALID_ARGUMENT, "expected " + std::to_string(count) + " of " + name + ", got NULL"};
  }
  out->resize(count);
  const auto each = static_cast<uint32_t>(stride == 0 ? first_bytes : stride);
  for (uint32_t i = 0; i < count; ++i) {
    const auto* const element = static_cast<const unsigned char*>(given) + static_cast<size_t>(i) * each;
    HVD_RETURN_IF_ERROR(read_struct(element, each, first_bytes, name, &(*out)[i]));
  }
  return {};
}

// Copies as many fields as fit into the caller's struct. Its `size` stays.
template <class Struct>
void write_struct(const Struct& ours, Struct* given) {
  const size_t end = std::min<size_t>(given->size, sizeof(Struct));
  constexpr size_t kSize = sizeof ours.size;
  if (end <= kSize) return;
  std::memcpy(reinterpret_cast<unsigned char*>(given) + kSize, reinterpret_cast<const unsigned char*>(&ours) + kSize,
              end - kSize);
}

}  // namespace hvd
