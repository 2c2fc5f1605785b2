// SPDX-License-Identifier: Apache-2.0
#include "liveness/monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "negotiation/frames.h"
#include "platform/clock.h"
#include "platform/private_descriptors.h"
#include "platform/process_state.h"
#include "platform/sign_of_life.h"

namespace hvd {
namespace {

constexpr uint64_t kTickNs = 500 * kMs;
constexpr uint64_t kOversleptNs = 1000 * kMs;
constexpr uint64_t kTicksPerFarBeat = 2;
constexpr uint64_t kTimesIfItWouldRun = 10;  // frozen_ms; chosen: 30 s by default
constexpr uint64_t kAnswerMs = 3000;         // a living host's kernel answers within this, however it is asked

std::string describe(const Monitor::Peer& peer) {
  const char* const where = peer.is_known ? ")" : " of a PID namespace of its own)";
  return "rank " + std::to_string(peer.rank) + " (process " + std::to_string(peer.pid) + where;
}

std::string loss(const Monitor::Peer& peer, char state, uint64_t silent_ns) {
  const std::string who = describe(peer);
  const std::string time = in_seconds(silent_ns);
  switch (state) {
    case 'T':
      return who + " was stopped by a signal and has not run for " + time +
             "\nhint: Ctrl-Z in horovodrun's terminal suspends the whole job; HOROVOD_FROZEN_TIMEOUT_SECONDS=0 lets "
             "the other ranks wait for one that is stopped alone";
    case 'D':
      return who + " is frozen: it has not run for " + time +
             " and waits in the kernel (state D)\nhint: a disk or a network file system does not answer, most likely";
    case 'Z':
    case 'X':
      return who + " has ended without leaving the job";
    case '\0':
      return who + " has given no sign of life for " + time + ", and its process does not exist on this host";
    default:
      return who + " is frozen: it has given no sign of life for " + time + " (state " + state +
             ")\nhint: the machine may be short of memory or processors; HOROVOD_FROZEN_TIMEOUT_SECONDS sets the limit";
  }
}

}  // namespace

Monitor::Monitor(Segment& segment, uint32_t local_rank, int stop_fd, Options options, Events events)
    : segment_(segment),
      local_rank_(local_rank),
      stop_fd_(stop_fd),
      frozen_ms_(options.frozen_ms),
      lost_ms_(options.lost_ms),
      poison_fd_(options.poison_fd),
      events_(std::move(events)) {
  for (const Peer& peer : options.peers) {
    const int pidfd = peer.is_known && peer.pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)) : -1;
    if (pidfd >= 0) {
      deaths_.push_back({peer, pidfd, true});
    } else if (peer.socket >= 0) {
      deaths_.push_back({peer, peer.socket, false});
    }
    beats_.push_back({peer, {}});
  }
  for (const FarPeer& peer : options.far_peers) {
    if (frozen_ms_ == 0 && lost_ms_ > 0) ask_for_signs_of_life(peer.socket, lost_ms_);
    far_.push_back({SocketLink(peer.socket, peer.rank), 0, {}});
  }
}

Status Monitor::start(Segment& segment, uint32_t local_rank, Options options, Events events,
                      std::unique_ptr<Monitor>* out) {
  const int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_fd < 0) {
    for (const FarPeer& peer : options.far_peers) close_private(peer.socket);
    return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
  }
  std::unique_ptr<Monitor> monitor(new Monitor(segment, local_rank, stop_fd, std::move(options), std::move(events)));
  monitor->thread_ = std::thread([watching = monitor.get()] { watching->run(); });
  *out = std::move(monitor);
  return {};
}

Monitor::~Monitor() {
  [[maybe_unused]] const int ignored = eventfd_write(stop_fd_, 1);
  if (thread_.joinable()) thread_.join();  // not where the thread could not be started
  for (const DeathWatch& watch : deaths_) {
    if (watch.owned) close(watch.fd);
  }
  close(stop_fd_);
}

void Monitor::run() {
  uint64_t next_tick_ns = now_ns();
  for (;;) {
    const uint64_t now = now_ns();
    if (now >= next_tick_ns) {
      tick(now);
      next_tick_ns = now + kTickNs;
    }
    std::vector<pollfd> watched{{stop_fd_, POLLIN, 0}};
    // A pidfd is readable when its process has ended; a local socket carries nothing after the start but its end.
    for (const DeathWatch& watch : deaths_) watched.push_back({watch.fd, POLLIN, 0});
    for (const FarWatch& watch : far_) watched.push_back({watch.over ? -1 : watch.link.fd(), POLLIN, 0});
    if (!far_.empty() && !cause_told_) watched.push_back({poison_fd_, POLLIN, 0});
    const int timeout_ms = static_cast<int>((next_tick_ns - std::min(next_tick_ns, now_ns())) / kMs + 1);
    if (::poll(watched.data(), watched.size(), timeout_ms) <= 0) continue;
    // Before the end: the cause may be this process' last word.
    if (!far_.empty() && !cause_told_ && watched.back().revents != 0) tell_cause();
    if (watched[0].revents != 0) return;
    const size_t first_far = 1 + deaths_.size();
    for (size_t i = 0; i < far_.size(); ++i) {
      if (watched[first_far + i].revents != 0) receive(&far_[i]);
    }
    for (size_t i = deaths_.size(); i-- > 0;) {
      if (watched[i + 1].revents == 0) continue;
      const DeathWatch watch = deaths_[i];
      deaths_.erase(deaths_.begin() + static_cast<ptrdiff_t>(i));
      if (watch.owned) close(watch.fd);
      if (!left(watch.peer)) {
        events_.on_loss(watch.peer.rank, describe(watch.peer) + " died without leaving the job");
      }
    }
  }
}

void Monitor::tick(uint64_t now) {
  segment_.rank(local_rank_).beat.fetch_add(1, std::memory_order_relaxed);
  if (ticked_ns_ != 0 && now - ticked_ns_ >= kTickNs + kOversleptNs) {
    for (BeatWatch& watch : beats_) watch.silence.restart(now);
    for (FarWatch& watch : far_) watch.silence.restart(now);
    events_.on_pause();
  }
  ticked_ns_ = now;
  for (BeatWatch& watch : beats_) look_at(&watch, now);
  for (FarWatch& watch : far_) look_at(&watch, now);
  ++ticks_;
  events_.on_tick();
}

void Monitor::look_at(BeatWatch* watch, uint64_t now) {
  const uint64_t beat = segment_.rank(watch->peer.local_rank).beat.load(std::memory_order_relaxed);
  const uint64_t silent_ns = watch->silence.observe(beat, now);
  if (silent_ns < kTickNs) watch->debugged = false;
  if (frozen_ms_ == 0 || silent_ns < frozen_ms_ * kMs || watch->over || left(watch->peer)) return;
  const char state = watch->peer.is_known ? process_state(watch->peer.pid) : '\0';
  if (state == 't') {
    // Every monitor sees it; one that is not held itself suffices to say so.
    const bool tells = local_rank_ == (watch->peer.local_rank == 0 ? 1u : 0u);
    if (!std::exchange(watch->debugged, true) && tells) {
      events_.on_debugger(describe(watch->peer) + " is held by a debugger; the other ranks of its host wait for it");
    }
    return;
  }
  if (state == 'R' && silent_ns < kTimesIfItWouldRun * frozen_ms_ * kMs) return;
  watch->over = true;
  events_.on_loss(watch->peer.rank, loss(watch->peer, state, silent_ns));
}

void Monitor::look_at(FarWatch* watch, uint64_t now) {
  if (watch->over) return;
  const uint64_t silent_ns = watch->silence.observe(watch->heard, now);
  const bool silent = lost_ms_ > 0 && silent_ns >= lost_ms_ * kMs;
  if (ticks_ % kTicksPerFarBeat == 0) {
    // Nothing piles up for a peer that does not read.
    if (!silent && !watch->link.wants_to_write()) watch->link.send(FrameKind::kBeat, {});
  }
  watch->link.pump();
  if (!silent || (frozen_ms_ == 0 && host_answers(watch->link.fd()))) return;
  watch->over = true;
  events_.on_loss(watch->link.peer(), "rank " + std::to_string(watch->link.peer()) + " has given no sign of life for " +
                                          in_seconds(silent_ns) +
                                          ": its process is stopped or frozen, or its host is unreachable\n"
                                          "hint: HOROVOD_LOST_TIMEOUT_SECONDS sets the limit, 0 switches it off");
}

bool Monitor::host_answers(int fd) const {
  const std::optional<SignOfLife> sign = sign_of_life(fd);
  return sign && sign->silent_ms < std::max(lost_ms_, kAnswerMs);
}

void Monitor::receive(FarWatch* watch) {
  watch->link.receive();
  FrameKind kind;
  std::string payload;
  while (watch->link.frames().next(&kind, &payload)) {
    ++watch->heard;
    if (kind != FrameKind::kBeat || !payload.empty()) events_.on_frame(watch->link.peer(), kind, payload);
  }
  if (watch->link.frames().broken() && !watch->over) events_.on_frame(watch->link.peer(), FrameKind::kBeat, payload);
  watch->over = watch->over || watch->link.closed() || watch->link.frames().broken();
}

void Monitor::tell_cause() {
  cause_told_ = true;
  for (FarWatch& watch : far_) watch.link.send(FrameKind::kAbort, abort_payload(segment_.cause()));
}

}  // namespace hvd
