// SPDX-License-Identifier: Apache-2.0
#include "negotiation/publisher.h"

#include "negotiation/frames.h"
#include "platform/fault_point.h"

namespace hvd {

// Wakes the threads that have to act on the record now: all ranks once a batch is due, otherwise this rank's engine
// thread, which waits for more tensors and then closes the batch. The rank that opens a batch closes it, too; if its
// engine's thread only naps, it need not be woken for that. The previous record tells if this one opens a batch. (The
// count of bytes cannot: it and the log do not change at once.)
void LogPublisher::announce(const Completed& entry, bool driving) {
  if (!wait_for_room(driving)) return;
  const uint64_t position = board_.append({RecordKind::kReady, entry.id});
  fault_point("append");  // it can be read, and no thread has been woken for it
  const uint64_t before = board_.add_ready_bytes(entry.bytes);
  const bool is_large = before + entry.bytes >= close_bytes_;
  const bool due = is_large || board_.anybody_waits();
  const bool opens = position == 0 || !board_.is_ready_record(position - 1);
  if (due) waker_.ring_others();
  if (entry.sync) return;
  // Those who wait for this batch ring before they sleep in it.
  const bool must_act = is_large || board_.waits(map_.local_rank) || (opens && !due && !waker_.wakes_soon());
  if (must_act) waker_.ring(map_.local_rank);
}

void LogPublisher::leave() {
  if (!wait_for_room(true)) return;
  board_.append({RecordKind::kLeave, static_cast<uint32_t>(map_.rank)});
  waker_.ring_others();
}

void LeaderPublisher::announce(const Completed& entry, bool /*driving*/) {
  if (pending_ == nullptr) {
    board_.send_to_leader(FrameKind::kComplete, complete_payload({entry.id, entry.bytes, entry.sync}));
    waker_.ring(0);
    return;
  }
  const Pending::Size size = pending_->add(entry.id, entry.bytes, map_.local_rank, entry.sync, clock_.now_ns());
  if (entry.sync) return;  // the caller is about to drive, and speaks for itself
  if (size.entries == 1 || size.bytes >= close_bytes_ || board_.anybody_waits()) waker_.ring(map_.local_rank);
}

void LeaderPublisher::leave() {
  board_.send_to_leader(FrameKind::kLeave, leave_payload(map_.rank));
  if (!map_.is_leader()) waker_.ring(0);  // a leader takes its own frames when it drives next, which is now
}

}  // namespace hvd
