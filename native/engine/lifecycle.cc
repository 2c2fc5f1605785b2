// SPDX-License-Identifier: Apache-2.0
// Start and stop of an engine: what it is made of, and in which order.
#include <unistd.h>

#include <exception>
#include <new>
#include <sstream>
#include <system_error>
#include <utility>

#include "collectives/plan.h"
#include "communicators/registry.h"
#include "engine/engine.h"
#include "engine/share_memory.h"
#include "liveness/stacks.h"
#include "negotiation/frames.h"
#include "platform/clock.h"
#include "platform/fault_point.h"
#include "platform/private_descriptors.h"
#include "platform/process_state.h"
#include "platform/warning.h"

namespace hvd {

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      topology_(options_.host_of_rank),
      map_(topology_, options_.rank, options_.settings.relays_above_hosts),
      world_(std::make_shared<ProcessSet>()) {
  options_.host_of_rank = topology_.host_of_rank();
  for (int r = 0; r < map_.world_size(); ++r) world_->ranks.push_back(r);
  world_->lasting = lasting_number(world_->ranks);
  world_->member = map_.rank;
  world_->topology = topology_;
  if (options_.settings.close_bytes == 0) options_.settings.close_bytes = plan::close_bytes(map_.hosts());
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
  const std::string prefix = names_somebody ? "" : "rank " + std::to_string(map_.rank) + " could not start: ";
  const Status cause(why.code(), prefix + why.text(), why.failed_rank() >= 0 ? why.failed_rank() : map_.rank);
  if (segment_ != nullptr) segment_->poison(cause.code(), map_.rank, cause.text());
  ControlLinks links;  // those that this engine still owns
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose != HVD_LINK_CONTROL || link.fd < 0) continue;
    links.add(std::exchange(link.fd, -1), link.peer, topology_.host_of(link.peer), false);
  }
  links.send_to_all(FrameKind::kAbort, abort_payload(cause));
  links.finish_sending();
  if (service_ != nullptr) {
    service_->spread_abort(cause);
    service_->finish_sending();
  }
  return cause;
}

Status Engine::connect() {
  HVD_RETURN_IF_ERROR(choose_communicator(options_.settings.communicator, topology_, true, &world_->row));
  trace_.set_label(world_->row->label);
  if (options_.segment != nullptr) {
    segment_ = options_.segment;
  } else {
    HVD_RETURN_IF_ERROR(share_memory(map_, world_->row->shared_bytes(topology_, map_.rank), &options_, &segment_));
  }
  make_ports();
  if (map_.world_size() > 1) HVD_RETURN_IF_ERROR(ending_->make_descriptor());
  make_negotiation();
  if (service_ != nullptr) HVD_RETURN_IF_ERROR(service_->take_links(&options_.links));
  // From here on the ranks wait for each other in shared memory, where only the monitor sees a death.
  HVD_RETURN_IF_ERROR(start_monitor());
  Status status = runner_->connect(&options_.links);
  // The reason why it was interrupted says more than that it was.
  return status.ok() || !ending_->poisoned() ? status : ending_->cause();
}

void Engine::make_ports() {
  board_ = std::make_unique<SegmentBoard>(*segment_, map_.local_rank, map_.spans_hosts());
  bells_ = std::make_unique<Bells>(*segment_, map_.local_rank, options_.poll_bell);
  ending_ = std::make_unique<Ending>(map_, *segment_, *bells_);
  wakeup_ = std::make_unique<Wakeup>(*board_, *bells_, *ending_, static_cast<Driver&>(*this));
}

// The differences between a world on one host and one on several are chosen at the start: the publisher of complete
// entries here, the count of their ranks above, and the leader's wake-up in share_memory.cc.
void Engine::make_negotiation() {
  const EngineSettings& settings = options_.settings;
  Readers& readers = *this;
  if (map_.is_leader()) {
    service_ = std::make_unique<HostService>(settings, map_, *segment_, *board_, clock_, *bells_, *ending_, readers);
  }
  if (map_.spans_hosts()) {
    Pending* const pending = service_ == nullptr ? nullptr : &service_->leader().pending();
    publisher_ = std::make_unique<LeaderPublisher>(map_, settings.close_bytes, *board_, clock_, *bells_, pending);
  } else {
    publisher_ = std::make_unique<LogPublisher>(map_, settings.close_bytes, *board_, *bells_, readers);
  }
  const EngineParts parts{settings, map_,     world_,      clock_,         *segment_, *board_,  *bells_,
                          *ending_, *wakeup_, *publisher_, service_.get(), trace_,    arrivals_};
  calls_.emplace(parts);
  runner_.emplace(parts, *calls_);
  submitter_.emplace(parts, *calls_, runner_->launched());
}

Status Engine::start_monitor() {
  std::vector<Monitor::Peer> peers;
  for (uint32_t r = 0; r < segment_->local_size(); ++r) {
    if (r == map_.local_rank) continue;
    const RankBlock& other = segment_->rank(r);
    const auto pid = static_cast<int>(other.pid.load());
    const bool is_known = other.pid_namespace.load() == pid_namespace();
    if ((is_known && pid == static_cast<int>(getpid())) || options_.segment != nullptr)
      continue;  // a thread of this process, in tests
    int socket = -1;
    for (const EngineOptions::Link& link : options_.links) {
      if (link.purpose == HVD_LINK_LOCAL && link.peer == map_.ranks_here[r]) socket = link.fd;
    }
    peers.push_back({map_.ranks_here[r], r, pid, socket, is_known});
  }
  std::vector<Monitor::FarPeer> far_peers;
  for (EngineOptions::Link& link : options_.links) {
    if (link.purpose == HVD_LINK_BEAT) far_peers.push_back({link.peer, std::exchange(link.fd, -1)});
  }
  const auto deadline_ns = now_ns() + options_.settings.start_timeout_ms * 1000000;
  const auto on_tick = [this, deadline_ns] {
    if (!started_.load()) {
      if (now_ns() < deadline_ns) return;
      std::ostringstream text;
      text << "rank " << map_.rank << ": some ranks of this host did not start within "
           << static_cast<double>(options_.settings.start_timeout_ms) / 1000 << " s (HOROVOD_START_TIMEOUT)";
      ending_->poison(HVD_UNAVAILABLE, -1, text.str());
    }
    runner_->watch_gpus();
    answer_stack_question(*segment_, map_.local_rank, *bells_);
    if (service_ == nullptr) return;
    service_->tick();
    // Only if something is on its way, here or on another host: an idle job sleeps.
    if (calls_->in_flight() > 0 || !service_->is_alone()) bells_->ring(map_.local_rank);
  };
  Monitor::Events events;
  events.on_loss = [this](int rank, const std::string& text) { ending_->poison(HVD_RANK_LOST, rank, text); };
  events.on_frame = [this](int peer, FrameKind kind, const std::string& payload) {
    if (kind == FrameKind::kAbort) {
      ending_->take_abort(peer, payload);
    } else {
      ending_->poison(unreadable_from(peer, map_.rank, "a sign of life", payload.size()));
    }
  };
  events.on_debugger = [this](const std::string& text) { warn(text); };
  events.on_tick = on_tick;
  events.on_pause = [this] {
    if (service_ != nullptr) service_->note_pause();
  };
  return Monitor::start(*segment_, map_.local_rank,
                        {std::move(peers), std::move(far_peers), options_.settings.frozen_timeout_ms,
                         options_.settings.lost_timeout_ms, ending_->poison_fd()},
                        std::move(events), &monitor_);
}

void Engine::warn(const std::string& text) const {
  if (options_.settings.warnings) hvd::warn(text, options_.settings.log_time);
}

void Engine::abort(int failed_rank, const std::string& text) { ending_->poison(HVD_ABORTED, failed_rank, text); }

Status Engine::stop(uint32_t timeout_ms) {
  if (calls_->is_calling_back()) {
    return {HVD_WOULD_DEADLOCK,
            "a completion callback cannot stop the engine: it runs on the thread that makes progress"};
  }
  const uint64_t deadline_ns = now_ns() + timeout_ms * 1000000ull;
  // GPUs may still work for this rank. That work ends soon, or with an error that has been reported.
  if (const Status settled = submitter_->await_launched(static_cast<int32_t>(timeout_ms)); !settled.ok()) {
    warn("what was launched on a GPU has not ended: " + settled.text());
  }
  if (!ending_->begin_stop(deadline_ns)) return {};
  bells_->ring(map_.local_rank);  // a caller that sleeps with the token
  bool asked = false;
  const auto ended = [&] {
    return ending_->poisoned() || ending_->left()[static_cast<size_t>(map_.rank)] ||
           publisher_->is_cut_off(ending_->left()) || now_ns() > deadline_ns;
  };
  for (;;) {
    if (wakeup_->take_token()) {
      if (!asked) fault_point("shutdown");
      if (!asked && map_.world_size() > 1 && !ending_->poisoned()) publisher_->leave();
      asked = true;
      drive(true);
      const bool done = map_.world_size() == 1 || ended();
      if (done) ending_->finish_stop();  // before anybody else can go on into a collective
      wakeup_->drop_token();
      if (done) break;
    } else if (now_ns() > deadline_ns && !ending_->poisoned()) {
      // Another thread sits in a collective, which only poison ends. The token follows within its next look.
      ending_->poison(
          HVD_RANK_LEFT, map_.rank,
          "rank " + std::to_string(map_.rank) + " shut down while another of its threads was inside an operation");
    }
    sleep_ms(1);
  }
  bells_->ring_own_engine();
  thread_.join();
  monitor_.reset();
  while (!wakeup_->take_token()) sleep_ms(1);  // a waiting caller may still drive
  const Status cause = ending_->poisoned() ? ending_->cause() : ending_->end_of_job();
  runner_->fail_all(cause);
  runner_->fail_launched(cause);
  if (service_ != nullptr) service_->finish_sending();
  runner_->drop_communicators(!ending_->poisoned());
  wakeup_->drop_token();
  trace_.stop();
  return {};
}

Engine::~Engine() {
  if (thread_.joinable()) {
    ending_->abandon();
    bells_->ring_own_engine();
    thread_.join();
  }
  monitor_.reset();
  if (runner_.has_value()) runner_->drop_communicators(false);
  for (const EngineOptions::Link& link : options_.links) {
    if (link.fd >= 0) close_private(link.fd);
  }
}

}  // namespace hvd
