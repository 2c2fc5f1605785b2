// SPDX-License-Identifier: Apache-2.0
// A communicator of the stand-in's NCCL, and the memory that its ranks share, for nccl.cc.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>

namespace standin {

enum : int {  // NCCL's results
  kSuccess = 0,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6
};

constexpr size_t kPartBytes = 8 << 20;  // of a rank; what is longer goes in pieces
constexpr int kMostRanks = 16;

// From one rank to another: a piece of a message at a time.
struct Mail {
  std::atomic<bool> is_full;
  size_t of_bytes, length;  // of the message, of the piece
};
constexpr size_t kMailBytes = 64 << 10;

// What the ranks share. Zeros are its beginning. The pieces of mail follow, and then the parts.
struct Room {
  std::atomic<uint32_t> arrived, round, moved;
  std::atomic<uint32_t> device_of_rank[kMostRanks];  // + 1
  std::atomic<int32_t> process_of_rank[kMostRanks];
  std::atomic<bool> rank_has_left[kMostRanks];  // aborted, or destroyed
  Mail mail[kMostRanks * kMostRanks];           // by sender and receiver
};
constexpr size_t kRoomBytes = 16384;
static_assert(sizeof(Room) <= kRoomBytes);
constexpr size_t kPartsAt = kRoomBytes + kMostRanks * kMostRanks * kMailBytes;

inline long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* limit) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, limit, nullptr, 0);
}

}  // namespace standin

// As the library names it.
struct CommBody {
  standin::Room* room = nullptr;
  std::byte* parts = nullptr;
  size_t mapped = 0;
  int rank = 0, size = 0, device = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> works{0};  // enqueued and not ended
  std::atomic<int> error{standin::kSuccess};
  std::map<int, double> factors;  // of the operations that were made

  standin::Mail& mail(int from, int to) const { return room->mail[from * standin::kMostRanks + to]; }
  std::byte* paper(const standin::Mail& mail) const {
    return reinterpret_cast<std::byte*>(room) + standin::kRoomBytes +
           static_cast<size_t>(&mail - room->mail) * standin::kMailBytes;
  }
  std::byte* part(int of_rank) const { return parts + static_cast<size_t>(of_rank) * standin::kPartBytes; }

  // False: aborted meanwhile.
  bool meet() {
    const uint32_t before = room->round.load();
    if (room->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size)) {
      room->arrived.store(0);
      room->round.store(before + 1);
      standin::futex(room->round, FUTEX_WAKE, INT32_MAX, nullptr);
      return true;
    }
    return wait_while(room->round, before);
  }

  // Until it is another value. False: aborted meanwhile.
  bool wait_while(std::atomic<uint32_t>& word, uint32_t value) {
    while (word.load() == value) {
      if (aborted.load()) {
        error = standin::kRemoteError;
        return false;
      }
      const timespec moment{0, 2000000};
      standin::futex(word, FUTEX_WAIT, value, &moment);
    }
    return true;
  }
};
