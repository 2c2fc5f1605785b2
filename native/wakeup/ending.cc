// SPDX-License-Identifier: Apache-2.0
#include "wakeup/ending.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "negotiation/frames.h"
#include "negotiation/leader.h"

namespace hvd {

Ending::Ending(const HostMap& map, Segment& segment, Bells& bells)
    : map_(map), segment_(segment), bells_(bells), left_(static_cast<size_t>(map.world_size()), false) {}

Ending::~Ending() {
  if (poison_fd_ >= 0) close(poison_fd_);
}

Status Ending::make_descriptor() {
  poison_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (poison_fd_ >= 0) return {};
  return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
}

void Ending::poison(hvd_code code, int failed_rank, const std::string& text) {
  segment_.poison(code, failed_rank >= 0 && failed_rank < map_.world_size() ? failed_rank : -1, text);
  if (poison_fd_ >= 0) {
    [[maybe_unused]] const int ignored = eventfd_write(poison_fd_, 1);
  }
  bells_.ring_others();
  bells_.ring(map_.local_rank);
}

void Ending::take_abort(int from, const std::string& payload) {
  AbortFrame abort;
  if (parse_abort(payload, map_.world_size(), &abort)) {
    poison(abort.code, abort.rank, abort.text);
  } else {
    poison(unreadable_from(from, map_.rank, "a cause of failure", payload.size()));
  }
}

void Ending::note_left(uint32_t rank) {
  if (rank >= left_.size()) return;
  left_[rank] = true;
  if (static_cast<int>(rank) == map_.rank) segment_.rank(map_.local_rank).left.store(1);
  int none = -1;
  first_left_.compare_exchange_strong(none, static_cast<int>(rank));
}

bool Ending::begin_stop(uint64_t deadline_ns) {
  if (stopping_.exchange(true)) return false;
  stop_deadline_ns_.store(deadline_ns);
  return true;
}

void Ending::abandon() {
  stopping_.store(true);
  stopped_.store(true);
}

Status Ending::end_of_job() const {
  const int left = first_left_.load();
  if (stopping_.load() || left < 0) return {HVD_NOT_RUNNING, "this rank has shut down"};
  return {HVD_RANK_LEFT,
          "rank " + std::to_string(left) + " has left the job (it shut down or exited) while others wait for it", left};
}

Status Ending::why_over() const {
  if (stopping()) return end_of_job();
  if (poisoned()) return cause();
  return somebody_left() ? end_of_job() : Status();
}

void Ending::remember(const Status& outcome) {
  const int code = outcome.code();
  constexpr int kEnds[] = {HVD_RANK_LOST, HVD_RANK_LEFT, HVD_ABORTED, HVD_DEVICE_LOST, HVD_DEADLOCK};
  if (std::ranges::find(kEnds, code) == std::ranges::end(kEnds)) return;
  const std::lock_guard lock(mutex_);
  if (seen_.ok()) seen_ = outcome;
}

Status Ending::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

}  // namespace hvd
