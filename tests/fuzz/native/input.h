// SPDX-License-Identifier: Apache-2.0
// What fuzz targets share: taking numbers and pieces off their input, and a check that no build leaves out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace hvd {

inline void require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view piece(size_t bytes) {
    const std::string_view piece = rest_.substr(0, bytes);
    rest_.remove_prefix(piece.size());
    return piece;
  }
  // Two bytes of length, then that much.
  std::string_view sized() {
    const size_t low = byte(), high = byte();
    return piece(low | high << 8);
  }

 private:
  std::string_view rest_;
};

}  // namespace hvd
