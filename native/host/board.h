// SPDX-License-Identifier: Apache-2.0
// The board that negotiation sees, made of the host's segment, and the clock (step 5). A board is one rank's and
// borrows the segment. Any thread.
#pragma once

#include "host/link.h"
#include "host/segment.h"
#include "negotiation/ports.h"
#include "platform/clock.h"

namespace hvd {

class SegmentBoard final : public Board {
 public:
  SegmentBoard(Segment& segment, uint32_t local_rank, bool across_hosts)
      : segment_(segment), local_rank_(local_rank), across_hosts_(across_hosts) {
    to_leader_.attach(&segment.ring(local_rank));
  }

  Arrived arrive(uint32_t id) override { return tally(id).arrive(); }
  void begin_next_round(uint32_t id) override { tally(id).begin_next_round(); }
  Recalled recall(uint32_t id) override { return tally(id).recall(); }
  bool retire(uint32_t id) override { return tally(id).retire(); }
  void reset(uint32_t id, bool stays_recalled) override { tally(id).reset(stays_recalled); }
  bool is_recalled(uint32_t id) override { return tally(id).recalled(); }
  void assign(uint32_t id, int32_t set, uint32_t members) override { segment_.assign(id, set, members); }
  int32_t set_of(uint32_t id) override { return segment_.set_of(id); }

  void set_last_arrival(uint32_t id, LastArrival last) override {
    const auto rank = static_cast<uint64_t>(last.rank + 1);
    segment_.last_arrival(id).store(rank << kNsBits | (last.ns & kNsMask), std::memory_order_relaxed);
  }
  LastArrival last_arrival(uint32_t id) override {
    const uint64_t word = segment_.last_arrival(id).load(std::memory_order_relaxed);
    const uint64_t now = now_ns();
    const uint64_t ago = (now - word) & kNsMask;  // less than five hours
    return {static_cast<int>(word >> kNsBits) - 1, now - ago};
  }

  void set_in_flight(uint32_t id, uint64_t since_ms) override { segment_.in_flight(local_rank_, id).store(since_ms); }
  uint64_t in_flight_since_ms(uint32_t local_rank, uint32_t id) override {
    return segment_.in_flight(local_rank, id).load();
  }

  uint64_t blocked_since_ms(uint32_t local_rank) override {
    const uint64_t end = segment_.header().tail.load();
    const RankBlock& rank = segment_.rank(local_rank);
    return rank.cursor.load() >= end ? rank.blocked_since_ms.load() : 0;
  }

  bool log_has_room() override { return segment_.log_has_room(); }
  uint64_t append(Record record) override { return segment_.append(record); }
  bool is_ready_record(uint64_t position) override {
    Record record;
    return segment_.peek(position, &record) && record.kind == RecordKind::kReady;
  }
  bool all_have_read(uint64_t end) override { return segment_.all_have_read(end); }
  bool joined_have_read(uint64_t end) override { return segment_.joined_have_read(end); }
  uint64_t add_ready_bytes(uint64_t bytes) override { return segment_.header().ready_bytes.fetch_add(bytes); }

  bool write_definition(uint32_t id, std::string_view text) override { return segment_.write_definition(id, text); }
  bool write_error(uint32_t id, std::string_view text) override { return segment_.write_error(id, text); }
  void release_texts(uint32_t id) override { segment_.release_texts(id); }
  std::string definition(uint32_t id) override { return std::string(segment_.definition(id)); }
  std::string error(uint32_t id) override { return std::string(segment_.error(id)); }

  bool anybody_waits() override { return segment_.header().waiting.load() > 0; }
  bool waits(uint32_t local_rank) override { return segment_.rank(local_rank).waiting.load() > 0; }
  void set_joined(bool joined) override { segment_.rank(local_rank_).joined.store(joined ? 1 : 0); }
  void send_to_leader(FrameKind kind, std::string_view payload) override { to_leader_.send(kind, payload); }

  void ask_for_stack(uint32_t local_rank) override { segment_.stack_page(local_rank).asked.fetch_add(1); }
  bool take_stack(uint32_t local_rank, std::string* text) override {
    const StackPage& page = segment_.stack_page(local_rank);
    if (page.answered.load() != page.asked.load()) return false;
    text->assign(page.text, std::min<size_t>(page.length.load(), sizeof page.text));
    return true;
  }

  // A caller of this rank starts to wait, or ends. Only with several hosts, the leader needs to know which rank it is.
  void begin_waiting() {
    if (across_hosts_) segment_.rank(local_rank_).waiting.fetch_add(1);
    segment_.header().waiting.fetch_add(1);
  }
  void end_waiting() {
    if (across_hosts_) segment_.rank(local_rank_).waiting.fetch_sub(1);
    segment_.header().waiting.fetch_sub(1);
  }
  // Writes the messages that did not fit into the ring before.
  bool pump() { return to_leader_.pump(); }
  bool can_pump() const { return to_leader_.can_pump(); }

 private:
  static constexpr int kNsBits = 44;
  static constexpr uint64_t kNsMask = (uint64_t{1} << kNsBits) - 1;

  Tally<SharedWord> tally(uint32_t id) { return segment_.tally(id, across_hosts_); }

  Segment& segment_;
  const uint32_t local_rank_;
  const bool across_hosts_;
  RingSender to_leader_;
};

class SteadyClock final : public Clock {
 public:
  uint64_t now_ns() override { return hvd::now_ns(); }
};

}  // namespace hvd
