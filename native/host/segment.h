// SPDX-License-Identifier: Apache-2.0
// The segment: the shared memory of one host's ranks (step 5). One memfd per host and generation, offsets only,
// lock-free 64-bit words, no mutex, nothing to clean up: it has no name. Shared state is never repaired: a death
// poisons the generation.
//
//   header | rank blocks | in-flight rows | cells | log | definitions, errors | request rings | arena | transport area
//   | areas of process sets, added and given back while the generation runs
//
// Writers: the first rank that fails writes `abort`. Each process writes its rank block, its in-flight rows and the
// producing end of its ring. All write cells and log. Only the leader (local rank 0) writes definitions, errors and the
// arena, before it appends the record that points there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "negotiation/arena.h"
#include "negotiation/decision.h"
#include "negotiation/log.h"
#include "negotiation/tally.h"
#include "platform/status.h"

namespace hvd {

constexpr uint32_t kRingBytes = 64u << 10;
constexpr uint64_t kArenaBytes = 8u << 20;
static_assert(NameLimits().all_bytes() <= kArenaBytes / 4 * 3, "errors, and pieces that lie between others, need room");

struct alignas(128) RankBlock {
  std::atomic<uint32_t> pid;
  std::atomic<uint32_t> left;                   // the rank consumed its own LEAVE
  std::atomic<uint32_t> joined;                 // it submits nothing, so its reading may fall behind by rounds
  std::atomic<uint32_t> waiting;                // callers that wait: it completes nothing more until they go on
  std::atomic<uint64_t> blocked_since_ms;       // see hvd_declare_blocked; 0: it may submit something at any moment
  std::atomic<uint64_t> beat;                   // the monitor's, every 500 ms
  std::atomic<uint64_t> cursor;                 // log position this rank reads next: it has acted on what is before
  std::atomic<uint64_t> pid_namespace;          // where `pid` is the process' number
  alignas(128) std::atomic<uint32_t> sleeping;  // Sleeper: who would need a bell
  std::atomic<uint32_t> bell[2];                // futex words: the engine's thread, a waiting caller
};

struct alignas(128) RequestRing {  // one producer (the rank), one consumer (the leader)
  std::atomic<uint64_t> written;
  alignas(128) std::atomic<uint64_t> read;
  char bytes[kRingBytes];
};

struct alignas(128) StackPage {    // where a rank's main thread stands; see liveness/stacks.cc
  std::atomic<uint32_t> asked;     // how often
  std::atomic<uint32_t> answered;  // ... and answered: then `text` is of now
  std::atomic<uint32_t> length;
  char text[4096];
};

struct SegmentHeader {
  uint64_t magic, layout, generation;
  uint32_t local_size;
  alignas(128) std::atomic<uint64_t> abort;  // 0, or {code:16 | failed rank + 1:32}; written once
  std::atomic<uint32_t> abort_claimed;
  std::atomic<uint64_t> areas_end;  // where the next area of a process set begins
  char abort_text[1024];
  alignas(128) std::atomic<uint64_t> tail;
  alignas(128) std::atomic<uint32_t> waiting;      // callers inside hvd_wait: a batch closes at once
  alignas(128) std::atomic<uint64_t> ready_bytes;  // announced since the last CLOSE
};

// A string in the arena. The leader replaces it only in a later round of its entry, that is, after all members of its
// set have read it (for those that have joined, it waits); other ranks must not. Its piece comes back when the text
// outgrew it or the entry is gone.
struct SharedText {
  std::atomic<uint64_t> offset_and_length;  // {offset:40 | length:24}
};

class Segment {
 public:
  // Creates the memory: a sealed memfd of known size, really allocated. transport_bytes is appended, page-aligned.
  static Status create(uint64_t generation, uint32_t local_size, size_t transport_bytes, std::unique_ptr<Segment>* out);
  // Maps a memfd received from the leader, which it takes over, and checks that it cannot shrink and was laid out by
  // the same build for the same generation.
  static Status attach(int memfd, uint64_t generation, uint32_t local_size, size_t transport_bytes,
                       std::unique_ptr<Segment>* out);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  int memfd() const { return memfd_; }
  uint32_t local_size() const { return header_->local_size; }
  SegmentHeader& header() { return *header_; }
  RankBlock& rank(uint32_t local_rank) { return ranks_[local_rank]; }
  RequestRing& ring(uint32_t local_rank) { return rings_[local_rank]; }
  StackPage& stack_page(uint32_t local_rank) { return stacks_[local_rank]; }
  std::byte* transport_area() { return transport_area_; }

  // Since when (milliseconds of the monotonic clock, never 0) this rank waits for the entry; 0 if it does not.
  std::atomic<uint64_t>& in_flight(uint32_t local_rank, uint32_t id) { return rows_[local_rank * kMaxEntries + id]; }
  Tally<SharedWord> tally(uint32_t id, bool across_hosts) {
    return {SharedWord(cells_[id].word), cells_[id].members.load(std::memory_order_relaxed), across_hosts};
  }
  // Leader only, before the first record of the entry: its set, and how many ranks of this host the set has now.
  void assign(uint32_t id, int32_t set, uint32_t members) {
    cells_[id].set.store(set, std::memory_order_relaxed);
    cells_[id].members.store(members, std::memory_order_relaxed);
  }
  int32_t set_of(uint32_t id) const { return cells_[id].set.load(std::memory_order_relaxed); }

  std::atomic<uint64_t>& last_arrival(uint32_t id) { return cells_[id].last; }

  bool peek(uint64_t position, Record* record) { return Log<SharedWord>::peek(Slots{log_}, position, record); }
  bool try_append_at(uint64_t position, Record record) {
    return Log<SharedWord>::try_append_at(Slots{log_}, tail_word(), position, record);
  }
  uint64_t append(Record record) { return Log<SharedWord>::append(Slots{log_}, tail_word(), record); }
  // False while the slowest rank is almost a lap behind: an append would overwrite what it has not read.
  bool log_has_room();
  // True if the ranks of the host, or those of them that have joined, have acted on all records before this position.
  bool all_have_read(uint64_t end) const { return slowest_cursor(false) >= end; }
  bool joined_have_read(uint64_t end) const { return slowest_cursor(true) >= end; }

  // Leader only. False where the arena is full.
  bool write_definition(uint32_t id, std::string_view text) { return write(&definitions_[id], text); }
  bool write_error(uint32_t id, std::string_view text) { return write(&errors_[id], text); }
  // Frees the texts; no rank may read them any more.
  void release_texts(uint32_t id);
  std::string_view definition(uint32_t id) const { return read(definitions_[id]); }
  std::string_view error(uint32_t id) const { return read(errors_[id]); }

  // Further memory, for the transports of process sets: finds `bytes` of zeros, allocated for good, at `offset`. The
  // rank that took them gives them back once no rank maps them.
  Status take_area(size_t bytes, uint64_t* offset);
  void release_area(uint64_t offset);
  // By any rank. Ranks in one process get one mapping.
  Status map_area(uint64_t offset, size_t bytes, std::shared_ptr<std::byte>* out);

  // Where the area of a pair is, once its lower rank has taken it: 1 + its offset; kNoArea: it could not.
  static constexpr uint64_t kNoArea = UINT64_MAX;
  std::atomic<uint64_t>& pair_area(uint32_t low, uint32_t high) { return pairs_[high * (high - 1) / 2 + low]; }

  // The first cause wins; true if it was this one.
  bool poison(hvd_code code, int failed_rank, std::string_view text);
  Status cause() const;  // OK where not poisoned

 private:
  struct alignas(64) Cell {
    std::atomic<uint64_t> word;
    std::atomic<uint32_t> members;
    std::atomic<int32_t> set;
    std::atomic<uint64_t> last;  // {rank + 1:20 | nanoseconds:44}
  };
  struct Layout;
  struct Slots {
    std::atomic<uint64_t>* log;
    SharedWord operator()(uint64_t i) const { return SharedWord(log[i]); }
  };

  Segment(int memfd, std::byte* base, size_t bytes, uint32_t local_size);
  static size_t whole_bytes(uint32_t local_size, size_t transport_bytes);
  static Status map(int memfd, size_t bytes, uint32_t local_size, std::unique_ptr<Segment>* out);
  SharedWord tail_word() { return SharedWord(header_->tail); }
  uint64_t slowest_cursor(bool of_joined) const;  // of the ranks that have not left
  bool write(SharedText* where, std::string_view text);
  std::string_view read(const SharedText& where) const;

  int memfd_;
  std::byte* base_;
  size_t bytes_;
  SegmentHeader* header_;
  RankBlock* ranks_;
  std::atomic<uint64_t>* rows_;
  Cell* cells_;
  std::atomic<uint64_t>* log_;
  SharedText* definitions_;
  SharedText* errors_;
  RequestRing* rings_;
  StackPage* stacks_;
  std::atomic<uint64_t>* pairs_;
  std::byte* arena_;
  std::byte* transport_area_;
  Arena free_{kArenaBytes};                                   // leader only, like the next
  std::unordered_map<const SharedText*, uint64_t> capacity_;  // bytes each text may grow to in place
  struct Area {
    uint64_t offset;
    size_t bytes;
    bool taken;
  };
  std::mutex areas_mutex_;
  std::vector<Area> areas_;  // that this process took
  std::mutex mapped_mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<std::byte>> mapped_;  // by offset
};

}  // namespace hvd
