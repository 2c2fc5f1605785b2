// SPDX-License-Identifier: Apache-2.0
// What the library's kernels (native/device/kernels.py) do, in C++, by name.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

namespace standin {

struct Piece {
  const std::byte* from;
  std::byte* to;
  uint64_t count;
};
constexpr size_t kPiecesOfTable = 160;

struct Twin {
  std::string_view name;
  size_t element_bytes;
  void (*element)(const std::byte* from, std::byte* to, double factor);
};

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}
// To nearest, ties to even.
inline uint16_t narrowed(float value) {
  if (std::isnan(value)) return 0x7FC0;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline constexpr Twin kTwins[] = {
    {"hvd_copy_16", 16, [](const std::byte* from, std::byte* to, double) { std::memcpy(to, from, 16); }},
    {"hvd_copy_1", 1, [](const std::byte* from, std::byte* to, double) { *to = *from; }},
    {"hvd_scale_f16", 2,
     [](const std::byte* from, std::byte* to, double factor) {
       store(to, static_cast<_Float16>(static_cast<float>(load<_Float16>(from)) * static_cast<float>(factor)));
     }},
    {"hvd_scale_bf16", 2,
     [](const std::byte* from, std::byte* to, double factor) {
       store(to, narrowed(widened(load<uint16_t>(from)) * static_cast<float>(factor)));
     }},
    {"hvd_scale_f32", 4,
     [](const std::byte* from, std::byte* to, double factor) {
       store(to, load<float>(from) * static_cast<float>(factor));
     }},
    {"hvd_scale_f64", 8,
     [](const std::byte* from, std::byte* to, double factor) { store(to, load<double>(from) * factor); }},
};

}  // namespace standin
