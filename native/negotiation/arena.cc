// SPDX-License-Identifier: Apache-2.0
#include "negotiation/arena.h"

namespace hvd {

std::optional<uint64_t> Arena::take(uint64_t piece) {
  const auto found = free_.lower_bound(piece);
  if (found == free_.end()) return std::nullopt;
  uint64_t size = found->first;
  const uint64_t offset = *found->second.begin();
  found->second.erase(found->second.begin());
  if (found->second.empty()) free_.erase(found);
  for (; size > piece; size /= 2) free_[size / 2].insert(offset + size / 2);
  return offset;
}

void Arena::give_back(uint64_t offset, uint64_t piece) {
  for (; piece < bytes_; piece *= 2) {
    const auto same = free_.find(piece);
    if (same == free_.end() || same->second.erase(offset ^ piece) == 0) break;
    if (same->second.empty()) free_.erase(same);
    offset &= ~piece;
  }
  free_[piece].insert(offset);
}

}  // namespace hvd
