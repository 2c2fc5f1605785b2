// SPDX-License-Identifier: Apache-2.0
// Ending: how a generation ends for this process, and what its operations are told then (step 8). By a stop of this
// rank, by a rank that leaves, or by a failure, which poisons the generation on all ranks of the host.
//
// Borrows the segment and the bells; owns the descriptor that wakes polls inside a communicator. Any thread, except
// note_left(), which is called under the driver's token. Nothing blocks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "host/segment.h"
#include "negotiation/host_map.h"
#include "platform/interrupt.h"
#include "platform/status.h"
#include "wakeup/bells.h"

namespace hvd {

class Ending {
 public:
  Ending(const HostMap& map, Segment& segment, Bells& bells);
  ~Ending();
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  Status make_descriptor();  // before any thread starts; needed as soon as there are two ranks

  // A failure. The first cause is kept.
  void poison(hvd_code code, int failed_rank, const std::string& text);
  void poison(const Status& cause) { poison(cause.code(), cause.failed_rank(), cause.text()); }
  void poison_if_failed(const Status& outcome) {
    if (!outcome.ok()) poison(outcome);
  }
  // Takes over the cause that another process reports.
  void take_abort(int from, const std::string& payload);
  bool poisoned() const { return segment_.header().abort.load() != 0; }
  Status cause() const { return segment_.cause(); }
  Interrupt interrupt() const { return {&segment_.header().abort, poison_fd_, &ring_others_}; }
  int poison_fd() const { return poison_fd_; }  // readable once poisoned
  // True if the caller has to spread the cause: for the first caller.
  bool begin_spreading() { return !spread_.exchange(true); }
  bool is_spread() const { return spread_.load(); }

  // A rank has left the job in order, as the log says.
  void note_left(uint32_t rank);
  const std::vector<bool>& left() const { return left_; }  // by rank; under the token
  bool somebody_left() const { return first_left_.load() >= 0; }

  // A stop of this rank. False: it has begun before.
  bool begin_stop(uint64_t deadline_ns);
  void finish_stop() { stopped_.store(true); }
  void abandon();  // without a stop
  bool stopping() const { return stopping_.load(); }
  bool stopped() const { return stopped_.load(); }
  uint64_t stop_deadline_ns() const { return stop_deadline_ns_.load(); }

  // Why nothing can be submitted any more, poison apart.
  Status end_of_job() const;
  // The same with poison; ok while the generation goes on.
  Status why_over() const;
  // The outcome of the first operation that ended with the job.
  void remember(const Status& outcome);
  Status seen() const;

 private:
  const HostMap& map_;
  Segment& segment_;
  Bells& bells_;
  int poison_fd_ = -1;
  std::atomic<bool> spread_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> stop_deadline_ns_{UINT64_MAX};
  std::atomic<int> first_left_{-1};
  std::vector<bool> left_;
  mutable std::mutex mutex_;
  Status seen_;
  const std::function<void()> ring_others_ = [this] { bells_.ring_others(); };
};

}  // namespace hvd
