// SPDX-License-Identifier: Apache-2.0
// The log: the one order in which all ranks of a host run what is ready. A ring of words in shared memory, appended to
// by compare-and-set, read by every rank at its own cursor.
//
//   slot = {lap:32 | kind:8 | id:24}; a slot whose lap is not the reader's is not written yet.
// An append sets the slot first and helps the tail after that, so an appender killed in between leaves no gap.
#pragma once

#include <cstdint>

namespace hvd {

enum class RecordKind : uint8_t {
  kNone = 0,
  kDefine = 1,  // entry `id` now means what its definition in the segment says
  kReady = 2,   // all members have submitted entry `id`
  kError = 3,   // this round of entry `id` failed; the text is in the segment
  kClose = 4,   // what has become ready since the last one is a batch: run it
  kLeave = 5,   // rank `id` leaves the job; also closes the batch before it
  kRetire = 6,  // entry `id` is of no name any more; comes back, for another, once all ranks have read this
  kJoin = 7,    // all ranks have joined, rank `id` as the last
};

struct Record {
  RecordKind kind = RecordKind::kNone;
  uint32_t id = 0;
};

constexpr bool is_about_entry(RecordKind kind) {
  return kind == RecordKind::kDefine || kind == RecordKind::kReady || kind == RecordKind::kError ||
         kind == RecordKind::kRetire;
}

constexpr uint64_t kLogSlots = 8192;

template <class Word, uint64_t kSlots = kLogSlots>
class Log {
 public:
  // `slot(i)` gives the Word of slot i, `tail` is a Word.
  template <class SlotOf>
  static bool peek(SlotOf&& slot, uint64_t position, Record* record) {
    const uint64_t value = slot(position % kSlots).load();
    if ((value >> 32) != lap(position)) return false;
    record->kind = static_cast<RecordKind>((value >> 24) & 0xff);
    record->id = static_cast<uint32_t>(value & 0xffffff);
    return true;
  }

  // False if another writer's record is at `position`.
  template <class SlotOf>
  static bool try_append_at(SlotOf&& slot, Word tail, uint64_t position, Record record) {
    Word word = slot(position % kSlots);
    uint64_t current = word.load();
    uint64_t expected_tail = position;
    if ((current >> 32) >= lap(position)) {  // greater: this caller's view of the tail is a whole lap old
      tail.compare_exchange(expected_tail, position + 1);
      return false;
    }
    const uint64_t value = lap(position) << 32 | uint64_t(record.kind) << 24 | record.id;
    const bool mine = word.compare_exchange(current, value);
    tail.compare_exchange(expected_tail, position + 1);
    return mine;
  }

  // Returns the position at which it stands.
  template <class SlotOf>
  static uint64_t append(SlotOf&& slot, Word tail, Record record) {
    for (;;) {
      const uint64_t position = tail.load();
      if (try_append_at(slot, tail, position, record)) return position;
    }
  }

 private:
  static uint64_t lap(uint64_t position) { return position / kSlots + 1; }
};

}  // namespace hvd
