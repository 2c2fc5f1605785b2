// SPDX-License-Identifier: Apache-2.0
// The shared memory's layout and its waits (step 7). The rules stand in slot_ring.h.
#include "transport/shm/slot_ring.h"

#include <algorithm>
#include <utility>

#include "platform/fault_point.h"

namespace hvd {

namespace {

// Counters start just below their wrap-around, so that every run passes it: at a million small operations a second it
// would otherwise first come after an hour.
constexpr uint32_t kFirstSequence = 0xffffffc0u;

// Counters are compared by signed distance, so none may fall 2^31 behind, not even one that the job's operations never
// use.
constexpr uint32_t kRefreshMask = ~((uint32_t{1} << 20) - 1);

constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

size_t header_bytes(int members) {
  return round_up(sizeof(RingHeader) + static_cast<size_t>(members) * sizeof(MemberControl), 4096);
}

}  // namespace

// Many members make many slots, and a member reads a share of each: smaller chunks keep the area and the caches in
// bounds.
size_t SlotRing::chunk_bytes_for(int members) {
  if (members <= 8) return size_t{256} << 10;
  return members <= 32 ? size_t{128} << 10 : size_t{64} << 10;
}

size_t SlotRing::result_bytes_for(int members) {
  return round_up(chunk_bytes_for(members) / static_cast<size_t>(members) + 128, 128);
}

size_t SlotRing::bytes(int members) {
  const size_t slots = static_cast<size_t>(members) * kSlots;
  return round_up(header_bytes(members) + slots * (chunk_bytes_for(members) + result_bytes_for(members)), 4096);
}

SlotRing::SlotRing(std::byte* area, int member, std::vector<int> world_ranks, const Interrupt& interrupt)
    : member_(member),
      size_(static_cast<int>(world_ranks.size())),
      world_ranks_(std::move(world_ranks)),
      interrupt_(interrupt),
      chunk_bytes_(chunk_bytes_for(size_)),
      result_bytes_(result_bytes_for(size_)),
      header_(reinterpret_cast<RingHeader*>(area)),
      controls_(reinterpret_cast<MemberControl*>(area + sizeof(RingHeader))),
      inputs_(area + header_bytes(size_)),
      results_(inputs_ + static_cast<size_t>(size_) * kSlots * chunk_bytes_),
      next_chunk_(kFirstSequence),
      tiny_(kFirstSequence),
      consumed_seen_(static_cast<size_t>(size_), kFirstSequence),
      copied_seen_(static_cast<size_t>(size_), kFirstSequence),
      payloads_(static_cast<size_t>(size_)) {}

Status SlotRing::attach() {
  MemberControl& mine = controls_[member_];
  for (Flag* flag : {&mine.filled, &mine.consumed, &mine.copied}) flag->value.store(kFirstSequence);
  for (TinyLine& line : mine.tiny) line.signal.value.store(kFirstSequence);
  publish(mine.ready, 1);
  for (int m = 0; m < size_; ++m) {
    if (!wait(controls_[m].ready, 1, m)) return interrupted("start of shared memory");
  }
  return Status();
}

void SlotRing::finish(uint32_t chunks) {
  const uint32_t before = next_chunk_;
  next_chunk_ += chunks;
  if (((before ^ next_chunk_) & kRefreshMask) == 0) return;
  MemberControl& mine = controls_[member_];
  for (Flag* flag : {&mine.filled, &mine.consumed, &mine.copied}) publish(*flag, next_chunk_);
}

bool SlotRing::wait(Signal& signal, uint32_t target, int member) {
  if (reached(signal, target)) return true;
  // If ranks outnumber cores, the awaited rank needs this core: fewer yields before sleeping.
  const WaitPolicy policy = oversubscribed() ? WaitPolicy{100, 50} : WaitPolicy{};
  if (wait_slowly(signal, target, interrupt_, policy)) return true;
  waited_for_ = member;
  return false;
}

Status SlotRing::interrupted(const char* operation) const {
  std::string text = std::string(operation) + " over shared memory was interrupted";
  if (waited_for_ >= 0) {
    text += " while rank " + std::to_string(world_ranks_[static_cast<size_t>(member_)]) + " waited for rank " +
            std::to_string(world_ranks_[static_cast<size_t>(waited_for_)]);
  }
  return Status(HVD_ABORTED, std::move(text));
}

void SlotRing::publish_filled(uint32_t chunk) {
  fault_point("shm");  // the others wait for what is being published
  publish(controls_[member_].filled, chunk + 1);
}

bool SlotRing::wait_all_filled(uint32_t chunk) {
  for (int m = 0; m < size_; ++m) {
    if (m != member_ && !wait_filled(m, chunk)) return false;
  }
  return true;
}

bool SlotRing::wait_input_slot(uint32_t chunk) {
  const uint32_t target = chunk - kSlots + 1;
  for (int m = 0; m < size_; ++m) {
    uint32_t& seen = consumed_seen_[static_cast<size_t>(m)];
    if (m == member_ || reached(seen, target)) continue;
    Flag& flag = controls_[m].consumed;
    if (!wait(flag, target, m)) return false;
    seen = flag.value.load(std::memory_order_acquire);
  }
  return true;
}

bool SlotRing::wait_result_slot(uint32_t chunk) {
  const uint32_t target = chunk - kSlots + 1;
  for (int m = 0; m < size_; ++m) {
    uint32_t& seen = copied_seen_[static_cast<size_t>(m)];
    if (m == member_ || reached(seen, target)) continue;
    Flag& flag = controls_[m].copied;
    if (!wait(flag, target, m)) return false;
    seen = flag.value.load(std::memory_order_acquire);
  }
  return true;
}

void SlotRing::all_arrived(uint32_t first_chunk) {
  for (size_t m = 0; m < consumed_seen_.size(); ++m) {
    if (reached(first_chunk, consumed_seen_[m])) consumed_seen_[m] = first_chunk;
    if (reached(first_chunk, copied_seen_[m])) copied_seen_[m] = first_chunk;
  }
}

bool SlotRing::finish_tiny(const std::byte** payloads) {
  fault_point("shm");
  publish(controls_[member_].tiny[tiny_ & 1].signal, tiny_);
  for (int m = 0; m < size_; ++m) {
    TinyLine& line = controls_[m].tiny[tiny_ & 1];
    if (m != member_ && !wait(line.signal, tiny_, m)) return false;
    payloads[m] = line.payload;
  }
  return true;
}

}  // namespace hvd
