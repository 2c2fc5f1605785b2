// SPDX-License-Identifier: Apache-2.0
// Negotiation's ports to the outside (step 5): the host's board, a way to the other hosts, a clock, bells, and the
// readers of the log. Member and Leader reach everything through these, so that the engine, the model checks, the
// simulator and the fuzz targets run the very same classes.
//
// A port has one owner and is borrowed by the classes that use it. Nothing here blocks except Readers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "negotiation/log.h"
#include "negotiation/tally.h"
#include "negotiation/wire.h"

namespace hvd {

// The rank that completed an entry's last round, and when, on this host's monotonic clock.
struct LastArrival {
  int rank = -1;  // unknown
  uint64_t ns = 0;
};

// The shared state of one host's ranks, as one of them sees it. Any thread; each function is one operation on shared
// memory unless it says otherwise.
class Board {
 public:
  virtual ~Board() = default;

  // The tally of an entry.
  virtual Arrived arrive(uint32_t id) = 0;
  virtual void begin_next_round(uint32_t id) = 0;
  virtual Recalled recall(uint32_t id) = 0;
  virtual bool retire(uint32_t id) = 0;
  virtual void reset(uint32_t id, bool stays_recalled) = 0;
  virtual bool is_recalled(uint32_t id) = 0;
  // By the leader, before the first record of the entry: its set, and how many ranks of this host are members.
  virtual void assign(uint32_t id, int32_t set, uint32_t members) = 0;
  virtual int32_t set_of(uint32_t id) = 0;

  // Stores which rank completed a round, before other ranks learn that it is complete. A rank that has read READY, and
  // not submitted the entry again, reads the value of this round.
  virtual void set_last_arrival(uint32_t, LastArrival) {}
  virtual LastArrival last_arrival(uint32_t) { return {}; }

  // In-flight rows: since when (milliseconds, never 0) a rank waits for the entry; 0: it does not. A rank writes only
  // its own.
  virtual void set_in_flight(uint32_t id, uint64_t since_ms) = 0;
  virtual uint64_t in_flight_since_ms(uint32_t local_rank, uint32_t id) = 0;

  // Since when (likewise) a rank submits nothing until one of its operations is done, and has acted on all of the log.
  virtual uint64_t blocked_since_ms(uint32_t) { return 0; }

  // The log. append() returns the record's position; the caller has made sure that there is room.
  virtual bool log_has_room() = 0;
  virtual uint64_t append(Record record) = 0;
  virtual bool is_ready_record(uint64_t position) = 0;
  virtual bool all_have_read(uint64_t end) = 0;          // every rank has acted on all records before this position
  virtual bool joined_have_read(uint64_t end) = 0;       // likewise every rank that has joined
  virtual uint64_t add_ready_bytes(uint64_t bytes) = 0;  // returns how many there were since the last CLOSE

  // Texts of records. The leader writes them, before the record that they belong to; false if there is no room.
  virtual bool write_definition(uint32_t id, std::string_view text) = 0;
  virtual bool write_error(uint32_t id, std::string_view text) = 0;
  virtual void release_texts(uint32_t id) = 0;
  virtual std::string definition(uint32_t id) = 0;
  virtual std::string error(uint32_t id) = 0;

  virtual bool anybody_waits() = 0;                                           // a caller of some rank of the host waits
  virtual bool waits(uint32_t local_rank) = 0;                                // likewise of this rank
  virtual void set_joined(bool joined) = 0;                                   // this rank
  virtual void send_to_leader(FrameKind kind, std::string_view payload) = 0;  // never blocks, keeps order

  // Where a rank's main thread stands: the leader asks, that rank's process answers later.
  virtual void ask_for_stack(uint32_t local_rank) = 0;
  virtual bool take_stack(uint32_t local_rank, std::string* text) = 0;  // false: no answer yet
};

// The way to other hosts' leaders: to those that this one is linked with (world/control_tree.h). The driver's thread.
class Uplink {
 public:
  virtual ~Uplink() = default;
  virtual void send(int host, FrameKind kind, std::string_view payload) = 0;  // never blocks, keeps order
  // Everything sent so far belongs to batches that are decided: it must have left before this host runs the last one.
  virtual void end_batch() = 0;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now_ns() = 0;  // monotonic
};

// Wakes sleepers of this host. Any thread.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void ring(uint32_t local_rank) = 0;
  // True if this rank's engine thread wakes by itself in less than a cycle.
  virtual bool wakes_soon() { return false; }
  virtual void ring_others() = 0;
};

// The host's ranks as readers of its log. Blocks until the condition holds, and reads on meanwhile, because the slowest
// reader may be this very rank. `driving`: the caller holds the driver's token. False: the generation has ended, and
// the caller's record is not needed any more.
class Readers {
 public:
  virtual ~Readers() = default;
  virtual bool wait_until(const std::function<bool()>& have_read, bool driving) = 0;
};

}  // namespace hvd
