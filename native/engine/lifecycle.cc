// SPDX-License-Identifier: Apache-2.0
// Start and stop. A host's leader makes the segment and hands it to the followers over their local links (SCM_RIGHTS).
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "communicators/registry.h"
#include "engine/engine.h"
#include "engine/stacks.h"
#include "negotiation/frames.h"
#include "platform/clock.h"
#include "platform/descriptor_passing.h"
#include "platform/fault_point.h"
#include "platform/private_descriptors.h"
#include "platform/warning.h"

namespace hvd {

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      topology_(options_.host_of_rank),
      map_(topology_, options_.rank),
      rank_(map_.rank),
      world_size_(topology_.size()),
      local_rank_(map_.local_rank),
      has_left_(options_.host_of_rank.size(), false) {
  options_.host_of_rank = topology_.host_of_rank();
  auto all = std::make_shared<ProcessSet>();
  for (int r = 0; r < world_size_; ++r) all->ranks.push_back(r);
  all->member = rank_;
  sets_.emplace(0, std::move(all));
}

Status Engine::start(EngineOptions options, std::unique_ptr<Engine>* out) {
  std::unique_ptr<Engine> engine(new Engine(std::move(options)));
  Status status;
  try {
    status = engine->connect();
    if (status.ok()) engine->thread_ = std::thread([started = engine.get()] { started->engine_thread(); });
  } catch (const std::bad_alloc&) {
    status = Status(HVD_OUT_OF_MEMORY, "out of memory");
  } catch (const std::system_error& error) {
    status = Status(HVD_UNAVAILABLE, std::string("cannot start a thread: ") + error.what() +
                                         "\nhint: raise the limits of processes (ulimit -u) and memory (ulimit -v)");
  } catch (const std::exception& error) {
    status = Status(HVD_UNAVAILABLE, error.what());
  }
  if (!status.ok()) {
    return engine->give_up(status);
  }
  engine->started_.store(true);
  *out = std::move(engine);
  return {};
}

// The peers that have started, or are about to, must not wait for this rank, and learn why.
Status Engine::give_up(const Status& why) {
  const bool names_somebody = why.text().starts_with("rank ") || why.text().starts_with("the ranks ");
  const std::string prefix = names_somebody ? "" : "rank " + std::to_string(rank_) + " could not start: ";
  const Status cause(why.code(), prefix + why.text(), why.failed_rank() >= 0 ? why.failed_rank() : rank_);
  if (segment_ != nullptr) segment_->poison(cause.code(), rank_, cause.text());
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose == HVD_LINK_CONTROL && link.fd >= 0) add_control_link(&link);
  }
  control_.send_to_all(FrameKind::kAbort, abort_payload(cause));
  control_.finish_sending();
  return cause;
}

Status Engine::connect() {
  HVD_RETURN_IF_ERROR(choose_communicator(options_.settings.communicator, topology_, true, &world_row_));
  if (segment_ = options_.segment; segment_ == nullptr) {
    HVD_RETURN_IF_ERROR(connect_shared_memory());
  }
  make_negotiation();
  if (world_size_ > 1) {
    poison_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (poison_fd_ < 0) return {HVD_UNAVAILABLE, std::string("cannot create an eventfd: ") + std::strerror(errno)};
  }
  if (spans_hosts() && is_leader()) HVD_RETURN_IF_ERROR(take_control_links());
  // From here on the ranks wait for each other in shared memory, where only the monitor sees a death.
  HVD_RETURN_IF_ERROR(start_monitor());
  Status status = make_communicator();
  // The reason why it was interrupted says more than that it was.
  return status.ok() || !poisoned() ? status : segment_->cause();
}

void Engine::add_control_link(EngineOptions::Link* link) {
  control_.add(std::exchange(link->fd, -1), link->peer, topology_.host_of(link->peer));
}

Status Engine::take_control_links() {
  std::vector<int> sockets;
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose != HVD_LINK_CONTROL) continue;
    add_control_link(&link);
    sockets.push_back(control_.all().back().socket.fd());
  }
  const size_t expected = coordinates() ? static_cast<size_t>(topology_.hosts() - 1) : 1;
  if (control_.size() != expected) {
    return {HVD_INVALID_ARGUMENT, "rank " + std::to_string(rank_) + ": expected " + std::to_string(expected) +
                                      " control links, got " + std::to_string(control_.size())};
  }
  bells_->watch(sockets);
  return {};
}

// What goes wrong on one rank of the host is told to all of them.
Status Engine::connect_shared_memory() {
  std::vector<const EngineOptions::Link*> local;
  for (const EngineOptions::Link& link : options_.links) {
    if (link.purpose == HVD_LINK_LOCAL) local.push_back(&link);
  }
  Status status = share_memory(local);
  if (status.ok()) return status;
  const bool names_it = status.text().starts_with("rank ");
  const Status cause(status.code(), (names_it ? "" : "rank " + std::to_string(rank_) + " ") + status.text(),
                     status.failed_rank());
  for (const auto* link : local) send_refusal(link->fd, cause);
  return Status(cause).while_doing("the ranks of this host cannot share memory");
}

// Leader -> follower: the memfd, and with several hosts what wakes the leader. Follower -> leader: one byte, attached.
// Leader -> follower: one byte, go.
Status Engine::share_memory(const std::vector<const EngineOptions::Link*>& local) {
  const auto local_size = static_cast<uint32_t>(map_.ranks_here.size());
  const size_t area_bytes = world_row_->shared_bytes(topology_, rank_);
  const uint64_t deadline_ns = now_ns() + options_.settings.start_timeout_ms * 1000000;
  const auto pid = static_cast<uint32_t>(getpid());  // written before `attached`: after `go` all can be read
  std::unique_ptr<Segment> segment;
  if (local.size() != (is_leader() ? local_size - 1 : 1)) {
    return {HVD_INVALID_ARGUMENT,
            "expects a local link to each rank of the host, seen " + std::to_string(local.size())};
  }
  if (is_leader()) {
    HVD_RETURN_IF_ERROR(Segment::create(options_.generation, local_size, area_bytes, &segment));
    segment->rank(local_rank_).pid.store(pid);
    if (spans_hosts()) HVD_RETURN_IF_ERROR(PollBell::make(&options_.poll_bell));
    for (const auto* link : local) {
      HVD_RETURN_IF_ERROR(send_descriptor(link->fd, segment->memfd(), link->peer));
      for (size_t i = 0; spans_hosts() && i < PollBell::kSleepers; ++i) {
        HVD_RETURN_IF_ERROR(send_descriptor(link->fd, options_.poll_bell->fd(i), link->peer));
      }
    }
    fault_point("attach");
    for (const auto* link : local) HVD_RETURN_IF_ERROR(receive_byte(link->fd, link->peer, deadline_ns));
    for (const auto* link : local) HVD_RETURN_IF_ERROR(send_byte(link->fd, link->peer));
  } else {
    int memfd = -1;
    HVD_RETURN_IF_ERROR(receive_descriptor(local[0]->fd, local[0]->peer, deadline_ns, &memfd));
    if (spans_hosts()) {
      int fds[PollBell::kSleepers] = {-1, -1};
      Status status;
      for (int& fd : fds) {
        if (status.ok()) status = receive_descriptor(local[0]->fd, local[0]->peer, deadline_ns, &fd);
      }
      options_.poll_bell = std::make_shared<const PollBell>(fds);
      if (!status.ok()) close(memfd);
      HVD_RETURN_IF_ERROR(status);
    }
    fault_point("attach");
    HVD_RETURN_IF_ERROR(Segment::attach(memfd, options_.generation, local_size, area_bytes, &segment));
    segment->rank(local_rank_).pid.store(pid);
    HVD_RETURN_IF_ERROR(send_byte(local[0]->fd, local[0]->peer));
    HVD_RETURN_IF_ERROR(receive_byte(local[0]->fd, local[0]->peer, deadline_ns));
  }
  segment_ = std::move(segment);
  return {};
}

Status Engine::make_communicator() {
  std::sort(options_.links.begin(), options_.links.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  std::vector<std::vector<int>> sockets(static_cast<size_t>(world_size_));
  int opener = -1, links_per_peer = 0;
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose == HVD_LINK_OPENER && opener < 0) {
      opener = std::exchange(link.fd, -1);
      links_per_peer = link.index;
    }
    if (link.purpose != HVD_LINK_DATA || link.peer < 0 || link.peer >= world_size_) continue;
    sockets[static_cast<size_t>(link.peer)].push_back(std::exchange(link.fd, -1));
  }
  data_links_ = std::make_shared<DataLinks>(std::move(sockets), opener, links_per_peer);
  const ProcessSet& all = *sets_.at(0);
  return world_row_->make({all.ranks, all.member, topology_}, parts_in(segment_->transport_area()), &communicator_);
}

CommunicatorParts Engine::parts_in(std::byte* area) const {
  CommunicatorSettings settings;
  settings.isa = options_.settings.instruction_set;
  return {area, data_links_, settings, {&segment_->header().abort, poison_fd_}};
}

Status Engine::start_monitor() {
  std::vector<Monitor::Peer> peers;
  for (uint32_t r = 0; r < segment_->local_size(); ++r) {
    if (r == local_rank_) continue;
    const auto pid = static_cast<int>(segment_->rank(r).pid.load());
    if (pid == static_cast<int>(getpid()) || options_.segment != nullptr)
      continue;  // a thread of this process, in tests
    int socket = -1;
    for (const EngineOptions::Link& link : options_.links) {
      if (link.purpose == HVD_LINK_LOCAL && link.peer == map_.ranks_here[r]) socket = link.fd;
    }
    peers.push_back({map_.ranks_here[r], r, pid, socket});
  }
  std::vector<Monitor::FarPeer> far_peers;
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose == HVD_LINK_BEAT) far_peers.push_back({link.peer, std::exchange(link.fd, -1)});
  }
  const auto deadline_ns = now_ns() + options_.settings.start_timeout_ms * 1000000;
  const auto on_tick = [this, deadline_ns] {
    if (!started_.load()) {
      if (now_ns() < deadline_ns) return;
      poison(HVD_UNAVAILABLE, -1,
             "not all ranks of the host have started within " + std::to_string(options_.settings.start_timeout_ms) +
                 " ms (setting start_timeout_ms), seen by rank " + std::to_string(rank_));
    }
    answer_stack_question(*segment_, local_rank_, *bells_);
    if (!is_leader()) return;
    if (stall_.has_value()) stall_->note_tick();
    facts_due_.store(true);
    // Only where something is on its way: an idle job sleeps.
    if (in_flight_.load() > 0 || spans_hosts()) bells_->ring(local_rank_);
  };
  Monitor::Events events;
  events.on_loss = [this](int rank, const std::string& text) { poison(HVD_RANK_LOST, rank, text); };
  events.on_frame = [this](int peer, FrameKind kind, const std::string& payload) {
    if (kind == FrameKind::kAbort) {
      take_abort(peer, payload);
    } else {
      poison(unreadable_from(peer, rank_, "a sign of life", payload.size()));
    }
  };
  events.on_debugger = [this](const std::string& text) {
    if (options_.settings.warnings) warn(text, options_.settings.log_time);
  };
  events.on_tick = on_tick;
  events.on_pause = [this] {
    if (stall_.has_value()) stall_->note_pause();
  };
  return Monitor::start(*segment_, local_rank_,
                        {std::move(peers), std::move(far_peers), options_.settings.frozen_timeout_ms,
                         options_.settings.lost_timeout_ms, poison_fd_},
                        std::move(events), &monitor_);
}

void Engine::poison(hvd_code code, int failed_rank, const std::string& text) {
  segment_->poison(code, failed_rank >= 0 && failed_rank < world_size_ ? failed_rank : -1, text);
  if (poison_fd_ >= 0) {
    [[maybe_unused]] const int ignored = eventfd_write(poison_fd_, 1);
  }
  bells_->ring_others();
  bells_->ring(local_rank_);
}

void Engine::abort(int failed_rank, const std::string& text) { poison(HVD_ABORTED, failed_rank, text); }

Status Engine::stop(uint32_t timeout_ms) {
  if (calling_back_.is_here()) {
    return {HVD_WOULD_DEADLOCK,
            "a completion callback cannot stop the engine: it runs on the thread that makes progress"};
  }
  if (stopping_.exchange(true)) return {};
  const uint64_t deadline_ns = now_ns() + timeout_ms * 1000000ull;
  stop_deadline_ns_.store(deadline_ns);
  bells_->ring(local_rank_);  // a caller that sleeps with the token
  bool asked = false;
  const auto ended = [&] {
    return poisoned() || has_left_[static_cast<size_t>(rank_)] || publisher_->is_cut_off(has_left_) ||
           now_ns() > deadline_ns;
  };
  for (;;) {
    if (take_token()) {
      if (!asked) fault_point("shutdown");
      if (!asked && world_size_ > 1 && !poisoned()) publisher_->leave();
      asked = true;
      drive(true);
      const bool done = world_size_ == 1 || ended();
      if (done) stopped_.store(true);  // before anybody else can go on into a collective
      drop_token();
      if (done) break;
    } else if (now_ns() > deadline_ns && !poisoned()) {
      // Another thread sits in a collective, which only poison ends. The token follows within its next look.
      poison(HVD_RANK_LEFT, rank_,
             "rank " + std::to_string(rank_) + " shut down while another of its threads was inside an operation");
    }
    sleep_ms(1);
  }
  bells_->ring_own_engine();
  thread_.join();
  monitor_.reset();
  while (!take_token()) sleep_ms(1);  // a waiting caller may still drive
  fail_all(poisoned() ? segment_->cause() : end_of_job());
  control_.finish_sending();
  drop_communicators();
  drop_token();
  timeline_.stop();
  return {};
}

void Engine::drop_communicators() {
  const std::lock_guard lock(communicator_mutex_);
  for (const auto& [number, set] : sets_) set->communicator.reset();
  communicator_.reset();
  data_links_.reset();
}

Engine::~Engine() {
  if (thread_.joinable()) {
    stopping_.store(true);
    stopped_.store(true);
    bells_->ring_own_engine();
    thread_.join();
  }
  monitor_.reset();
  communicator_.reset();
  for (const EngineOptions::Link& link : options_.links) {
    if (link.fd >= 0) close_private(link.fd);
  }
  if (poison_fd_ >= 0) close(poison_fd_);
}

std::string Engine::statistics() {
  std::string text = "{";
  const auto field = [&](const char* name, const std::string& value) {
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + value;
  };
  {
    const std::lock_guard lock(communicator_mutex_);
    if (communicator_ != nullptr) text += communicator_->describe();  // names itself
  }
  uint64_t slow_requests = 0;
  {
    const std::lock_guard lock(mutex_);
    slow_requests = member_->slow_requests();
  }
  field("batches", std::to_string(statistics_.batches.load()));
  field("tensors", std::to_string(statistics_.tensors.load()));
  field("bytes", std::to_string(statistics_.bytes.load()));
  field("slow_requests", std::to_string(slow_requests));
  field("control_messages", std::to_string(control_.messages()));
  field("engine_wakes", std::to_string(statistics_.engine_wakes.load()));
  field("names_evicted", std::to_string(statistics_.names_evicted.load()));
  field("in_flight", std::to_string(in_flight_.load()));
  return text + "}";
}

}  // namespace hvd
