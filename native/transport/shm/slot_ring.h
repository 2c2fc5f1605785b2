// SPDX-License-Identifier: Apache-2.0
// SlotRing: the shared memory of one process set on one host: slots, counters, and the rule of their reuse (step 7).
//
// Words. Every operation cuts its data into *chunks*, numbered through all operations since the start, equally on all
// members: chunk c of every member lies in *input slot* c mod kSlots and, if members reduce for each other, its *share*
// in *result slot* c mod kSlots. Each member advances three counters (a *flag* each), all of the form
// "all my chunks < v":
//   filled    its input slot holds the data;
//   consumed  it has read every input slot it needs (and, in a two-shot, its result slot holds its share);
//   copied    it has read every result slot it needs.
//
// The rule of reuse. A member may write input slot c mod kSlots when every other member has consumed chunk c - kSlots,
// and result slot c mod kSlots when every other member has copied chunk c - kSlots. Members do not wait for each other
// at the end of an operation. The rule holds between operations of all kinds because
//   1. every operation leaves `consumed` at its end for each member, fillers and idlers included, except that
//   2. an operation of one chunk in which each member waits for all members' `filled` publishes only that: seeing a
//      member's `filled` of such an operation proves that it has left all earlier ones, which all_arrived() records. So
//      after it, only its own chunk is unproven, and the next operation of any kind either proves it (1, 2) or needs no
//      more than kSlots - 1.
//   3. result slots are written only after every member's `filled` of the same chunk has been seen, so earlier
//      operations are over; `copied` needs to be right inside an operation only.
// A *tiny* operation carries its payload in the flag's own line; each member has two lines and uses them in turn. In a
// tiny operation each member waits for all others. So a member that writes line t has seen the others' t - 1, hence all
// members are done with t - 2, the line's former content. Tiny operations and chunks share nothing, so they may follow
// each other in any order.
//
// The area is owned by the caller and must outlive the ring. One thread at a time; waits block until the interrupt is
// raised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/interrupt.h"
#include "platform/status.h"
#include "platform/wait.h"

namespace hvd {

constexpr size_t kTinyBytes = 56;

struct alignas(128) TinyLine {
  Signal signal;
  std::byte payload[kTinyBytes];
};

struct MemberControl {
  Flag ready, filled, consumed, copied, ping;
  TinyLine tiny[2];
};

struct alignas(128) RingHeader {
  std::atomic<uint32_t> hop_ns;  // written by member 0 (see line_hop.h)
};

class SlotRing {
 public:
  static constexpr uint32_t kSlots = 4;
  static size_t bytes(int members);
  static size_t chunk_bytes_for(int members);

  SlotRing(std::byte* area, int member, std::vector<int> world_ranks, const Interrupt& interrupt);
  // Blocks until all members have attached.
  Status attach();

  int member() const { return member_; }
  int size() const { return size_; }
  size_t chunk_bytes() const { return chunk_bytes_; }
  std::byte* input_slot(int member, uint32_t chunk) const {
    return inputs_ + (static_cast<size_t>(member) * kSlots + chunk % kSlots) * chunk_bytes_;
  }
  std::byte* result_slot(int member, uint32_t chunk) const {
    return results_ + (static_cast<size_t>(member) * kSlots + chunk % kSlots) * result_bytes_;
  }
  MemberControl& control(int member) const { return controls_[member]; }
  RingHeader& header() const { return *header_; }

  // The number of the next operation's first chunk; finish() moves on by its chunks.
  uint32_t next_chunk() const { return next_chunk_; }
  void finish(uint32_t chunks);

  void publish_filled(uint32_t chunk);
  void publish_consumed(uint32_t chunk) { publish(controls_[member_].consumed, chunk + 1); }
  void publish_copied(uint32_t chunk) { publish(controls_[member_].copied, chunk + 1); }
  // The waits return false where the interrupt ended them; interrupted() then names the peer.
  bool wait_filled(int member, uint32_t chunk) { return wait(controls_[member].filled, chunk + 1, member); }
  bool wait_consumed(int member, uint32_t chunk) { return wait(controls_[member].consumed, chunk + 1, member); }
  bool wait_all_filled(uint32_t chunk);
  bool wait_input_slot(uint32_t chunk);    // until this member may write its input slot
  bool wait_result_slot(uint32_t chunk);   // as above; within one operation
  void all_arrived(uint32_t first_chunk);  // every member's `filled` of the operation that began there has been seen

  std::byte* begin_tiny() { return controls_[member_].tiny[++tiny_ & 1].payload; }
  // payloads[m] of all members, valid until the next begin_tiny().
  bool finish_tiny(const std::byte** payloads);

  const std::byte** payloads() { return payloads_.data(); }  // room for one pointer per member

  bool wait(Signal& signal, uint32_t target, int member);
  Status interrupted(const char* operation) const;
  bool oversubscribed() const { return size_ > online_cpus(); }

 private:
  static size_t result_bytes_for(int members);

  const int member_, size_;
  const std::vector<int> world_ranks_;
  const Interrupt interrupt_;
  const size_t chunk_bytes_, result_bytes_;
  RingHeader* header_;
  MemberControl* controls_;
  std::byte* inputs_;
  std::byte* results_;
  uint32_t next_chunk_, tiny_;
  std::vector<uint32_t> consumed_seen_, copied_seen_;  // by member: known without another look at its flag
  std::vector<const std::byte*> payloads_;
  int waited_for_ = -1;
};

}  // namespace hvd
