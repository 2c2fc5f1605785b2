// SPDX-License-Identifier: Apache-2.0
// The engine: takes requests (step 4), agrees with the other ranks what runs next (5), runs batches (6, 7) and
// completes handles (8). One engine is one generation of one process.
//
// Who drives. Progress is made by whoever holds the driver's token: a caller inside wait() or poll() drives itself,
// which saves two thread hand-overs; the engine's own thread sleeps and drives only where nobody waits. Everything
// under "token" below is touched by the holder alone. What users' threads share with it is guarded by mutex_, which is
// never held across a wait, a collective or a callback.
//
// What runs. Nothing starts before every member has submitted all of it, and every rank follows its host's log, so the
// holder may block inside a collective: only a death interrupts it, by poisoning the generation.
//
// What runs next is decided in negotiation/: the member knows this rank's names and calls, the leader serves a host.
// The engine gives both their ports, and feeds them: calls from submit.cc, records from drive.cc, frames from serve.cc.
//
// Files: submit.cc (the user's side), drive.cc (the log), complete.cc (ends of calls), execute.cc (batches),
// process_sets.cc, join.cc, serve.cc (frames of this host's ranks and of other hosts), wait.cc (who drives and who
// sleeps), stall.h (stall reports), stacks.h, lifecycle.cc (start, stop), monitor.h (deaths). Ports: board.h, bells.h,
// control_links.h.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "communicators/registry.h"
#include "engine/bells.h"
#include "engine/board.h"
#include "engine/control_links.h"
#include "engine/monitor.h"
#include "engine/on_thread.h"
#include "engine/process_set.h"
#include "engine/settings.h"
#include "engine/stall.h"
#include "engine/submission.h"
#include "negotiation/host_map.h"
#include "negotiation/leader.h"
#include "negotiation/member.h"
#include "negotiation/publisher.h"
#include "negotiation/segment.h"
#include "platform/clock.h"
#include "timeline/timeline.h"

namespace hvd {

struct EngineOptions {
  int rank = 0;
  uint64_t generation = 0;
  std::vector<int> host_of_rank;  // equal numbers: these ranks share memory
  EngineSettings settings;
  struct Link {
    int peer;
    hvd_purpose purpose;
    int fd;  // owned by the engine from here on
    int index;
  };
  std::vector<Link> links;
  // Tests run several ranks as threads over one mapping; otherwise made or attached by start().
  std::shared_ptr<Segment> segment;
  std::shared_ptr<const PollBell> poll_bell;  // likewise, of the host's leader
};

class Engine : private Readers {
 public:
  static Status start(EngineOptions options, std::unique_ptr<Engine>* out);
  ~Engine() override;  // stop() first; a destructor alone abandons the peers
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Blocks for about timeout_ms at most: what is still under way then is ended on all ranks.
  Status stop(uint32_t timeout_ms);
  void abort(int failed_rank, const std::string& text);
  Status end_seen();

  // Checks a request and fixes all but its tensor pointers.
  Status prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out);
  Status submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
                uint32_t flags, hvd_handle* handle, void* user = nullptr);  // null: the prepared one
  Status refuse(const char* name, int32_t process_set, const std::string& why);
  Status add_process_set(const int32_t* ranks, uint32_t nranks, hvd_handle* handle);
  Status remove_process_set(int32_t process_set, hvd_handle* handle);
  Status place_in_set(int32_t process_set, int32_t* members, int32_t* member);
  Status join(hvd_handle* handle);

  // HVD_PENDING where the time is up, a signal arrived, or (poll) it is not done.
  Status wait(hvd_handle handle, int32_t timeout_ms);
  Status poll(hvd_handle handle);
  SubmissionPtr find(hvd_handle handle) const { return handles_.find(handle); }
  void release(hvd_handle handle) { handles_.release(handle); }

  Status start_timeline(const std::string& path, const std::string& session, bool mark_cycles) {
    return timeline_.start(path, session, rank_, mark_cycles, options_.settings.log_time);
  }
  void stop_timeline() { timeline_.stop(); }

  std::string statistics();

 private:
  explicit Engine(EngineOptions options);

  // lifecycle.cc
  Status connect();
  Status connect_shared_memory();
  Status share_memory(const std::vector<const EngineOptions::Link*>& local);
  Status give_up(const Status& why);
  Status take_control_links();
  Status make_communicator();
  CommunicatorParts parts_in(std::byte* area) const;
  Status start_monitor();
  void add_control_link(EngineOptions::Link* link);
  void drop_communicators();

  // serve.cc
  void make_negotiation();

  // submit.cc
  Status enter(const SubmissionPtr& submission, Member::Announcement* announcement);
  Member::Announcement give_to_member(EntryRef entry, const SubmissionPtr& submission);
  void announce(const Member::Announcement& announcement, bool driving = false);
  Status refuse_if_over();
  Status find_any_set(int32_t number, std::shared_ptr<ProcessSet>* out);
  Status find_set_for_use(int32_t number, const std::string& what, std::shared_ptr<ProcessSet>* out);

  // drive.cc
  bool take_token() {
    bool free = false;
    return token_.compare_exchange_strong(free, true);
  }
  void drop_token() { token_.store(false); }
  void hand_over();  // after the token was dropped by another than the engine's thread
  // A caller that drives while this lives, where nobody else does.
  class Driving {
   public:
    explicit Driving(Engine& engine);
    ~Driving();
    Driving(const Driving&) = delete;
    Driving& operator=(const Driving&) = delete;
    bool drives() const { return drives_; }

   private:
    Engine& engine_;
    bool drives_;
  };
  void drive_for_a_moment(const Submission& submission);  // until it is done or it is time to sleep; needs the token
  bool drive(bool somebody_waits);                        // true where something moved
  bool advance(bool somebody_waits);
  bool follow_log();
  bool has_work();  // whether drive() would move something
  bool linger_is_over() const;
  int64_t linger_left_ns() const;
  void engine_thread();
  void apply(Record record);
  void apply_leave(uint32_t rank);
  void open(SubmissionPtr submission);
  void close_batch();
  bool may_close(bool somebody_waits) const;
  // Readers: the log's slowest reader may be this rank itself, so it reads on.
  bool wait_until(const std::function<bool()>& have_read, bool driving) override;

  // complete.cc
  void complete(const SubmissionPtr& submission, Status status);
  void fail_all(const Status& cause);
  Status end_of_job() const;                // why nothing can be submitted any more
  void remember_end(const Status& status);  // needs mutex_
  // What the timeline shows of a submission: NEGOTIATE_<OP> until it is ready, then <OP>, in it QUEUE and the
  // communicator.
  void trace(Submission* submission, Submission::Stage next);

  // execute.cc
  void execute(std::vector<SubmissionPtr> closed);
  Status run(const struct Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run_allreduce(const struct Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run_broadcast(const Submission& submission);
  Status run_reducescatter(const struct Batch& batch, const std::vector<SubmissionPtr>& closed);
  Status run_allgather(Submission* submission);
  Status run_alltoall(Submission* submission);
  Communicator& communicator_of(const ProcessSet& set) { return set.number == 0 ? *communicator_ : *set.communicator; }
  void communicator_failed(const Status& status, const std::string& doing);

  // process_sets.cc
  Status submit_set_change(Descriptor descriptor, const char* name, hvd_handle* handle);
  Status run_add_process_set(Submission* submission);
  Status run_remove_process_set(Submission* submission);
  size_t shared_bytes_here(const ProcessSet& set) const;
  Status make_set_communicator(ProcessSet* set);
  std::string close_set(ProcessSet* set);
  // The set, where it exists; for the holder of the token.
  ProcessSet* find_set(int32_t number) const {
    const auto found = sets_.find(number);
    return found == sets_.end() ? nullptr : found->second.get();
  }

  // join.cc
  void say_join();
  void all_have_joined(const SubmissionPtr& join, uint32_t last_rank);
  SubmissionPtr zeros_for(const Member::Applied& ready);

  // serve.cc
  bool serve();
  bool serve_ranks();
  bool serve_hosts();
  void serve_link(ControlLinks::Link* link);
  void follow_orders(const Status& outcome);
  void take_abort(int from, const std::string& payload);
  void link_closed(ControlLinks::Link* link);
  void spread_abort();
  void warn_of_eviction();

  void poison(hvd_code code, int failed_rank, const std::string& text);
  void poison(const Status& cause) { poison(cause.code(), cause.failed_rank(), cause.text()); }
  bool poisoned() const { return segment_->header().abort.load() != 0; }
  bool spans_hosts() const { return map_.spans_hosts(); }
  bool is_leader() const { return map_.is_leader(); }
  bool coordinates() const { return map_.coordinates(); }

  // Fixed after start.
  EngineOptions options_;
  const Topology topology_;
  const HostMap map_;
  const int rank_;
  const int world_size_;
  const uint32_t local_rank_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<SegmentBoard> board_;
  std::unique_ptr<Bells> bells_;
  SteadyClock clock_;
  std::unique_ptr<Monitor> monitor_;
  int poison_fd_ = -1;  // readable once poisoned: wakes polls inside a communicator
  std::thread thread_;
  std::unique_ptr<Publisher> publisher_;

  // Shared with users' threads.
  std::mutex mutex_;
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;  // by number; changed under the token as well
  std::optional<Member> member_;                         // the mutex guards all of it
  Status end_seen_;                                      // that an operation ended with because the job did
  HandleTable handles_;
  Timeline timeline_;
  std::atomic<bool> started_{false};
  std::atomic<bool> token_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> stop_deadline_ns_{UINT64_MAX};
  std::atomic<int> left_rank_{-1};        // the first rank that left
  std::atomic<uint32_t> completions_{0};  // futex word
  std::atomic<uint32_t> completion_waiters_{0};
  std::atomic<int> callers_waiting_{0};
  std::atomic<int> in_flight_{0};
  std::atomic<bool> ids_pending_{false};  // leader: somebody has yet to read a RETIRE
  std::atomic<bool> abort_spread_{false};
  OnThread following_;     // reads the log, batches and callbacks included: it cannot read on in the middle
  OnThread calling_back_;  // runs a completion callback: it may submit but must not wait

  // Token; statistics() looks at it under the mutex, under which it is let go.
  std::mutex communicator_mutex_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<DataLinks> data_links_;
  const CommunicatorRow* world_row_ = nullptr;  // of all ranks' communicator
  // Token. leader_ is there on each host's lowest rank; its pending() is any thread's.
  std::unique_ptr<Leader> leader_;
  std::vector<RingReceiver> from_ranks_;  // leader: by local rank, its own included
  ControlLinks control_;                  // leader
  std::optional<StallReport> stall_;      // rank 0
  std::atomic<uint64_t> cursor_{0};
  struct {
    std::vector<SubmissionPtr> calls;  // ready, not closed yet
    std::atomic<uint64_t> since_ns{0};
    uint64_t bytes = 0;
  } open_;
  std::vector<Member::Announcement> later_;  // of completions and callbacks: made once no batch is being run
  bool join_later_ = false;                  // ... and the join after them
  std::vector<bool> has_left_;
  bool eviction_warned_ = false;
  std::atomic<bool> facts_due_{false};  // leader: the monitor has ticked

  struct Statistics {
    std::atomic<uint64_t> batches{0}, tensors{0}, bytes{0}, engine_wakes{0};
    std::atomic<uint64_t> names_evicted{0};  // rank 0 knows
  } statistics_;
};

}  // namespace hvd
