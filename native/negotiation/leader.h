// SPDX-License-Identifier: Apache-2.0
// A host's leader (step 5): the lowest rank of each host. It takes the frames of its host's ranks, tells rank 0 what is
// complete here, and writes into its host's log what rank 0 has decided. The leader of rank 0's host also owns the
// coordinator, which decides for all hosts. With very many hosts, some leaders are relays as well: they pass rank 0's
// word on to the hosts of their group, and answer for all of these (world/control_tree.h).
//
//   from ranks       requests, refusals, joins and leaves go up; equal requests of one name go up as one. Completed
//                    entries are gathered until it is time to speak: at most one message for a batch.
//   from rank 0      records for the log; recalls; requests to give up a name; requests for a rank's stack
//   by itself        tells when all ranks of the host have read a RETIRE, and which ranks wait for what (stall reports)
//
// Under the driver's token, except pending(), which any thread may use. Blocks only in Readers. A failure that a
// function returns ends the generation. A plain value apart from its ports: the model checks copy it.
//
// Parts: LogWriter, RequestMerger, Relay, Pending, StallFacts. Files: leader.cc (frames and when to speak), spread.cc
// (decisions, recalls, names that go), relay/group.cc (a relay's hosts).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "negotiation/coordinator/coordinator.h"
#include "negotiation/frames.h"
#include "negotiation/host_map.h"
#include "negotiation/log_writer.h"
#include "negotiation/pending.h"
#include "negotiation/ports.h"
#include "negotiation/relay/relay.h"
#include "negotiation/request_merger.h"
#include "negotiation/waiting.h"
#include "platform/status.h"

namespace hvd {

struct LeaderSettings {
  NameLimits names;
  uint64_t close_bytes = 1u << 20;  // speak once this much is complete
  uint64_t linger_ns = 1000000;     // ... or once something has been complete for so long
  uint64_t late_ms = 400;           // what has been waited for so long is told to rank 0 unasked; 0: nothing is
};

struct LeaderPorts {
  Board& board;
  Uplink& uplink;
  Clock& clock;
  Waker& waker;
  Readers& readers;
};

// The failure if a peer's bytes cannot be read: it has another version, or damaged memory. `bytes`: 0 if unknown.
Status unreadable_from(int from, int to, const std::string& what, size_t bytes);

class Leader {
 public:
  Leader(const HostMap& map, LeaderSettings settings, LeaderPorts ports);

  // Process sets; 0, all ranks, is there from the start. At the moment when all ranks do so.
  void add_set(int32_t set, const std::vector<int>& ranks);
  void remove_set(int32_t set);

  // One frame of a rank of this host, or of another host's leader.
  Status take_from_rank(uint32_t local_rank, FrameKind kind, const std::string& payload);
  Status take_from_host(int host, FrameKind kind, const std::string& payload);
  // Passes on what other hosts have reported as complete. It waits for this, so many reports become one message. To be
  // called once all frames that are here have been taken. Other frames pass it on as well: the order stays.
  Status pass_on();
  bool has_to_pass_on() const { return !decided_.is_empty() || !answered_.is_empty(); }

  // The entries that are complete on this host; the threads of this process add to it.
  Pending& pending() { return pending_; }
  // Sends the messages whose time has come.
  Status speak();
  // How long until speak() has something to send; negative: there is nothing to send. Any thread.
  int64_t silence_left_ns() const;
  // speak() has something to send now. Any thread.
  bool wants_to_speak() const;
  // Requests wait here for the equal ones of other ranks.
  bool holds_back() const { return merger_.has_value() && !merger_->is_empty(); }

  // Tells rank 0 the names whose RETIRE all ranks of this host have read. `*any`: this has moved the log.
  Status tell_retired(bool* any);
  bool has_unread_retirements() const { return log_.has_unread_retirements(); }

  // The log has shown that the entry is ready.
  void note_ready(uint32_t id) {
    if (coordinator_.has_value()) coordinator_->touch(id);
  }
  // The link to this rank may end without that being a loss: it has left.
  bool has_left(int rank) const { return log_.has_left(rank); }
  uint64_t evicted() const { return coordinator_.has_value() ? coordinator_->evicted() : 0; }

  StallFacts& facts() { return facts_; }
  void tell_waiting() { facts_.tell_if_late(log_.ids()); }
  std::vector<Undecided> undecided() { return facts_.undecided(*coordinator_, log_.ids()); }  // rank 0

  std::string snapshot() const;  // as Member's

 private:
  bool coordinates() const { return coordinator_.has_value(); }
  double now_seconds() const { return static_cast<double>(clock_.now_ns()) * 1e-9; }
  void send_up(FrameKind kind, const std::string& payload) { uplink_.send(map_.above(), kind, payload); }

  void send_requests(const std::vector<RequestFrame>& requests);
  void send_word_of(int rank, FrameKind kind, const std::string& payload);
  bool is_time(const Pending::Contents& pending) const;
  Status say_pending();
  bool coordinate(int group, FrameKind kind, const std::string& payload, Effects* effects);
  bool coordinate_ranks(int group, FrameKind kind, const std::string& payload, Effects* effects);
  bool coordinate_ids(int group, FrameKind kind, const std::string& payload, Effects* effects);
  bool obey(FrameKind kind, const std::string& payload, Status* outcome);

  Status spread(Effects effects);
  Status spread_recalls(Effects* effects);
  void spread_questions(Effects* effects);
  Status answer_recall(uint32_t id, Effects* effects);

  // relay/group.cc
  bool take_from_group(int host, FrameKind kind, const std::string& payload);
  bool take_ids_of_group(int host, FrameKind kind, const std::string& payload);
  bool ask_group_to_recall(uint32_t id, const std::string& payload, Status* outcome);
  bool ask_group_to_retire(const std::vector<uint32_t>& ids);
  void send_answers(const Relay::Answers& answers);

  const HostMap& map_;
  const LeaderSettings settings_;
  Board& board_;
  Uplink& uplink_;
  Clock& clock_;

  std::optional<Coordinator> coordinator_;  // on rank 0's host
  Pending pending_;
  std::optional<RequestMerger> merger_;  // on other hosts than rank 0's
  std::optional<Relay> relay_;           // of a group of several hosts
  Effects decided_;                      // on rank 0's host: to be passed on
  Relay::Answers answered_;              // by a relay: to be passed on
  LogWriter log_;
  StallFacts facts_;
};

}  // namespace hvd
