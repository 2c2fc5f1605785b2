// SPDX-License-Identifier: Apache-2.0
// The engine: one generation of one process, its loop and its end. Submitter takes requests from users' threads
// (step 4) and waits for them (8). Calls has the calls that are in flight. Runner runs batches (6, 7). The engine
// drives: it follows the host's log (5), and tells Runner what is ready and when to close a batch.
//
// The driver: the thread that holds the driver's token makes progress. A caller inside wait() or poll() drives itself,
// which saves two thread hand-overs; the engine's own thread sleeps and drives only if no caller waits. Only the holder
// touches what is "under the token".
//
// The order: an operation starts only after every member has submitted all of it, and every rank follows its host's
// log. So the holder may block inside a collective: only a death interrupts it, by poisoning the generation.
//
// negotiation/ decides what runs next: the member knows this rank's names and calls, the leader serves a host. The
// engine gives both their ports (board.h, bells.h, control_links.h) and feeds them: calls and records through Calls,
// frames through HostService.
//
// Files: lifecycle.cc (start, stop), drive.cc (the loop), statistics.cc. What the four classes share is in parts.h.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "engine/calls.h"
#include "engine/options.h"
#include "engine/parts.h"
#include "engine/runner.h"
#include "engine/submitter.h"
#include "liveness/monitor.h"

namespace hvd {

class Engine : private Readers, private Driver {
 public:
  static Status start(EngineOptions options, std::unique_ptr<Engine>* out);
  ~Engine() override;  // stop() first; a destructor alone abandons the peers
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Blocks for about timeout_ms at most: operations that are still under way then are ended on all ranks.
  Status stop(uint32_t timeout_ms);
  void abort(int failed_rank, const std::string& text);
  Status end_seen() const { return ending_->seen(); }
  Submitter& submitter() { return *submitter_; }

  Status start_timeline(int descriptor, const std::string& path, const std::string& session, bool mark_cycles) {
    return trace_.start(descriptor, path, session, map_.rank, mark_cycles, options_.settings.log_time);
  }
  void stop_timeline() { trace_.stop(); }

  std::string statistics();
  void warn(const std::string& text) const;  // people, if they want to hear it

 private:
  explicit Engine(EngineOptions options);

  // lifecycle.cc
  Status connect();
  void make_ports();
  void make_negotiation();
  Status give_up(const Status& why);
  Status start_monitor();

  // drive.cc
  bool drive(bool somebody_waits) override;
  bool advance(bool somebody_waits);
  bool serve();
  bool follow_log();
  void ring_those_behind(uint64_t position);
  void apply(Record record);
  bool may_close(bool somebody_waits) const;
  bool has_work() override;
  int64_t batch_linger_left_ns() const;
  int64_t linger_left_ns() const override;
  bool has_calls_in_flight() const override { return calls_->in_flight() > 0; }
  void engine_thread();
  // Readers: the log's slowest reader may be this rank itself, so it reads on.
  bool wait_until(const std::function<bool()>& have_read, bool driving) override;

  // Fixed after start.
  EngineOptions options_;
  const Topology topology_;
  const HostMap map_;
  const std::shared_ptr<ProcessSet> world_;  // set 0, all ranks
  std::shared_ptr<Segment> segment_;
  SteadyClock clock_;
  std::unique_ptr<SegmentBoard> board_;
  std::unique_ptr<Bells> bells_;
  std::unique_ptr<Ending> ending_;
  std::unique_ptr<Wakeup> wakeup_;
  std::unique_ptr<HostService> service_;  // on each host's lowest rank; the token, but for what it says itself
  std::unique_ptr<Publisher> publisher_;
  Trace trace_;
  Arrivals arrivals_{now_ns()};
  std::optional<Calls> calls_;
  std::optional<Runner> runner_;
  std::optional<Submitter> submitter_;
  std::unique_ptr<Monitor> monitor_;
  std::thread thread_;

  std::atomic<bool> started_{false};
  std::atomic<uint64_t> cursor_{0};          // of the log; changed under the token
  uint64_t unannounced_close_ = UINT64_MAX;  // a position of the log, of which no rank was told; token
};

}  // namespace hvd
