// SPDX-License-Identifier: Apache-2.0
// Which parts of the segment's arena are free. Pieces are powers of two, and each is one half of a larger one: two free
// halves are one free piece again, so that what has held many short texts can hold a long one. One thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace hvd {

class Arena {
 public:
  explicit Arena(uint64_t bytes) : bytes_(bytes) { free_[bytes].insert(0); }  // a power of two

  // How large the piece is that a text of this length needs.
  static uint64_t piece_bytes(uint64_t length) { return std::bit_ceil(std::max<uint64_t>(length, 128)); }

  // The offset of a piece of this size, which is a power of two; nothing where none is free.
  std::optional<uint64_t> take(uint64_t piece);
  void give_back(uint64_t offset, uint64_t piece);

 private:
  const uint64_t bytes_;
  std::map<uint64_t, std::set<uint64_t>> free_;  // offsets by size; no set is empty
};

}  // namespace hvd
