// SPDX-License-Identifier: Apache-2.0
// A host's board as plain memory, for programs in which all ranks are steps of one thread: the model checks, the
// simulator and the fuzz targets. Grows with use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "negotiation/ports.h"
#include "simulate/word.h"

namespace hvd {

struct Frame {
  FrameKind kind = FrameKind::kBeat;
  std::string payload;
};

struct PlainHost {
  struct Entry {
    uint64_t word = 0;
    uint32_t members = 0;
    int32_t set = 0;
    std::vector<uint64_t> rows;  // by local rank
    std::string definition, error;
  };
  struct Rank {
    size_t cursor = 0;
    bool joined = false, left = false;
    int waiting = 0;
    std::deque<Frame> ring;
  };

  PlainHost(size_t local_size, bool spans_hosts) : across_hosts(spans_hosts), ranks(local_size) {}

  Entry& entry(uint32_t id) {
    if (entries.size() <= id) entries.resize(id + 1);
    if (entries[id].rows.empty()) entries[id].rows.assign(ranks.size(), 0);
    return entries[id];
  }
  Tally<PlainWord> tally(uint32_t id) { return {PlainWord(entry(id).word), entry(id).members, across_hosts}; }
  bool peek(size_t position, Record* record) const {
    if (position >= log_start + log.size()) return false;
    *record = log[position - log_start];
    return true;
  }
  uint64_t slowest_cursor(bool of_joined) const {
    uint64_t slowest = UINT64_MAX;
    for (const Rank& rank : ranks) {
      if (!rank.left && (!of_joined || rank.joined)) slowest = std::min<uint64_t>(slowest, rank.cursor);
    }
    return slowest;
  }
  // Drops what all have read.
  void trim() {
    const uint64_t slowest = slowest_cursor(false);
    for (; log_start < slowest && !log.empty(); ++log_start) log.pop_front();
  }

  bool across_hosts;
  std::vector<Entry> entries;  // by id
  std::vector<Rank> ranks;
  std::deque<Record> log;
  size_t log_start = 0;  // the position of its first record
  uint64_t ready_bytes = 0;
};

// One rank's view of it.
class PlainBoard : public Board {
 public:
  PlainBoard(PlainHost& host, uint32_t local_rank, size_t log_slots = SIZE_MAX)
      : host_(host), local_rank_(local_rank), log_slots_(log_slots) {}

  Arrived arrive(uint32_t id) override { return host_.tally(id).arrive(); }
  void begin_next_round(uint32_t id) override { host_.tally(id).begin_next_round(); }
  Recalled recall(uint32_t id) override { return host_.tally(id).recall(); }
  bool retire(uint32_t id) override { return host_.tally(id).retire(); }
  void reset(uint32_t id, bool stays_recalled) override { host_.tally(id).reset(stays_recalled); }
  bool is_recalled(uint32_t id) override { return host_.tally(id).recalled(); }
  void assign(uint32_t id, int32_t set, uint32_t members) override {
    host_.entry(id).set = set;
    host_.entry(id).members = members;
  }
  int32_t set_of(uint32_t id) override { return host_.entry(id).set; }

  void set_in_flight(uint32_t id, uint64_t since_ms) override { host_.entry(id).rows[local_rank_] = since_ms; }
  uint64_t in_flight_since_ms(uint32_t local_rank, uint32_t id) override { return host_.entry(id).rows[local_rank]; }

  bool log_has_room() override {
    if (host_.log.size() >= log_slots_) host_.trim();
    return host_.log.size() < log_slots_;
  }
  uint64_t append(Record record) override {
    host_.log.push_back(record);
    return host_.log_start + host_.log.size() - 1;
  }
  bool is_ready_record(uint64_t position) override {
    Record record;
    return position >= host_.log_start && host_.peek(position, &record) && record.kind == RecordKind::kReady;
  }
  bool all_have_read(uint64_t end) override { return host_.slowest_cursor(false) >= end; }
  bool joined_have_read(uint64_t end) override { return host_.slowest_cursor(true) >= end; }
  uint64_t add_ready_bytes(uint64_t bytes) override {
    return std::exchange(host_.ready_bytes, host_.ready_bytes + bytes);
  }

  bool write_definition(uint32_t id, std::string_view text) override {
    host_.entry(id).definition = text;
    return true;
  }
  bool write_error(uint32_t id, std::string_view text) override {
    host_.entry(id).error = text;
    return true;
  }
  void release_texts(uint32_t id) override {
    host_.entry(id).definition.clear();
    host_.entry(id).error.clear();
  }
  std::string definition(uint32_t id) override { return host_.entry(id).definition; }
  std::string error(uint32_t id) override { return host_.entry(id).error; }

  bool anybody_waits() override {
    return std::ranges::any_of(host_.ranks, [](const PlainHost::Rank& rank) { return rank.waiting > 0; });
  }
  bool waits(uint32_t local_rank) override { return host_.ranks[local_rank].waiting > 0; }
  void set_joined(bool joined) override { host_.ranks[local_rank_].joined = joined; }
  void send_to_leader(FrameKind kind, std::string_view payload) override {
    host_.ranks[local_rank_].ring.push_back({kind, std::string(payload)});
  }

  void ask_for_stack(uint32_t) override {}
  bool take_stack(uint32_t local_rank, std::string* text) override {
    *text = "  File \"rank-" + std::to_string(local_rank) + ".py\", line 1\n";
    return true;
  }

 private:
  PlainHost& host_;
  const uint32_t local_rank_;
  const size_t log_slots_;
};

class SilentWaker final : public Waker {
 public:
  void ring(uint32_t) override {}
  void ring_others() override {}
};

}  // namespace hvd
