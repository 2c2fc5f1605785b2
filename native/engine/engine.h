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
// Files: submit.cc (the user's side), drive.cc (the log), execute.cc (batches), process_sets.cc, join.cc, leader.cc
// (rank 0's coordinator and the leaders' duties), wait.cc (who drives and who sleeps), stall.cc, stacks.cc,
// lifecycle.cc (start, stop), monitor.h (deaths).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "communicators/registry.h"
#include "engine/bells.h"
#include "engine/link.h"
#include "engine/monitor.h"
#include "engine/process_set.h"
#include "engine/settings.h"
#include "engine/submission.h"
#include "negotiation/coordinator.h"
#include "negotiation/segment.h"
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

class Engine {
 public:
  static Status start(EngineOptions options, std::unique_ptr<Engine>* out);
  ~Engine();  // stop() first; a destructor alone abandons the peers
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
  void drop_communicators();

  // submit.cc. begin() and what it calls need mutex_; what must happen after unlocking is returned.
  struct Announcement {
    int64_t id = -1;  // of the entry that is complete on this host: tell the others
    uint64_t bytes = 0;
    bool sync = false;
    bool asked_leader = false;  // a slow request went out
  };
  Status enter(const SubmissionPtr& submission, Announcement* announcement);
  std::shared_ptr<Entry> intern(ProcessSet* set, const std::string& name);
  std::shared_ptr<Entry> next_unnamed(ProcessSet* set);
  void forget_if_idle(const std::shared_ptr<Entry>& entry);
  Announcement begin(const SubmissionPtr& submission);
  void announce(const Announcement& announcement, bool driving = false);
  void became_ready(uint64_t position, uint64_t bytes, bool sync);
  bool wait_for_room_in_log(bool driving);
  bool wait_for_readers(bool driving, const std::function<bool()>& have_read);
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
  bool has_work(bool somebody_waits);
  bool linger_is_over() const;
  int64_t linger_left_ns() const;
  void apply(Record record);
  void apply_definition(uint32_t id);
  void apply_error(uint32_t id);
  void apply_retirement(uint32_t id);
  void close_batch();
  bool may_close(bool somebody_waits) const;
  void fail_all(const Status& cause);
  Status end_of_job() const;                // why nothing can be submitted any more
  void remember_end(const Status& status);  // needs mutex_
  void complete(const SubmissionPtr& submission, Status status);
  void engine_thread();

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
  bool takes_part_in(uint32_t id) const {
    const int32_t number = id < kMaxEntries ? segment_->set_of(id) : 0;
    if (number == 0) return true;  // what nearly every record is about
    const ProcessSet* set = find_set(number);
    return set != nullptr && set->member >= 0;
  }

  // join.cc
  Announcement send_join();
  void apply_join(uint32_t last_rank);
  SubmissionPtr ready_submission(uint32_t id);
  SubmissionPtr zeros_for(const std::shared_ptr<Entry>& entry);
  void back_to_the_fast_way();

  // leader.cc
  bool serve();
  void serve_control(SocketLink* link);
  void handle_upward(int from, FrameKind kind, const std::string& payload);
  bool coordinate(int host, FrameKind kind, const std::string& payload, Effects* effects);
  void poison_unreadable(int from, const std::string& what, size_t bytes);
  void handle_downward(FrameKind kind, const std::string& payload);
  void answer_recall(uint32_t id, Effects* effects);
  void answer_may_retire(const std::vector<uint32_t>& ids, Effects* effects);
  bool tell_retired();
  void warn_of_eviction();
  void spread(Effects effects);
  void apply_decisions(const std::vector<Decision>& decisions);
  void flush_ready(bool somebody_waits);
  void hand_out_decisions();
  void send_upward(FrameKind kind, const std::string& payload);
  void take_abort(int from, const std::string& payload);
  void link_closed(SocketLink* link);
  void spread_abort();
  void assign_entry(const Decision& decision);
  void send_leave();

  // stall.cc, stacks.cc
  void report_stalls();
  void answer_stack_question();
  void ask_here(int rank);
  void ask_for_stacks(const std::vector<int>& ranks);
  void collect_stacks();
  std::string stacks_in_words(const std::vector<int>& ranks) const;
  std::vector<Undecided> undecided_on_this_host();

  void poison(hvd_code code, int failed_rank, const std::string& text);
  bool poisoned() const { return segment_->header().abort.load() != 0; }
  bool spans_hosts() const { return topology_.hosts() > 1; }
  bool is_leader() const { return local_rank_ == 0; }
  bool coordinates() const { return rank_ == 0; }

  // Fixed after start.
  EngineOptions options_;
  const int rank_;
  const int world_size_;
  const Topology topology_;
  const int host_;
  const std::vector<int> ranks_of_host_;  // world ranks on this host, by local rank
  const uint32_t local_rank_;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Bells> bells_;
  std::unique_ptr<Monitor> monitor_;
  int poison_fd_ = -1;  // readable once poisoned: wakes polls inside a communicator
  std::thread thread_;

  // Shared with users' threads.
  std::mutex mutex_;
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;  // by number; changed under the token as well
  size_t deferred_ = 0;                                  // submissions that wait for their entry's earlier one
  const std::shared_ptr<Entry> join_ = std::make_shared<Entry>();  // in flight: this rank has joined, not all have
  Status end_seen_;                                                // that an operation ended with because the job did
  RingSender to_leader_;
  std::vector<uint32_t> ready_here_;  // complete on this host, not yet told to rank 0
  std::atomic<uint64_t> ready_here_bytes_{0};
  std::atomic<uint64_t> ready_here_since_ns_{0};
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
  std::atomic<bool> stall_check_due_{false};
  std::atomic<bool> ids_pending_{false};  // leader: retired_here_ is not empty
  std::atomic<uint64_t> ticked_ns_{0};    // the monitor's last tick
  std::atomic<uint64_t> resumed_ns_{0};   // when this process last ran again after it had been held up

  // Token; statistics() looks at it under the mutex, under which it is let go.
  std::mutex communicator_mutex_;
  std::unique_ptr<Communicator> communicator_;
  std::shared_ptr<const DataLinks> data_links_;
  std::atomic<uint64_t> cursor_{0};
  std::vector<std::shared_ptr<Entry>> entry_of_id_;
  std::vector<SubmissionPtr> open_;  // ready, not closed yet
  std::atomic<uint64_t> open_since_ns_{0};
  uint64_t open_bytes_ = 0;
  std::vector<Announcement> later_;             // of completions and their callbacks: made once no batch is being run
  const CommunicatorRow* world_row_ = nullptr;  // of all ranks' communicator
  std::optional<Coordinator> coordinator_;
  std::vector<RingReceiver> from_followers_;  // leader: by local rank, its own included
  std::deque<SocketLink> control_;
  std::deque<std::vector<uint64_t>> closes_;  // rank 0: by CLOSE to come, what each control link must have sent before
  std::vector<uint64_t> text_read_at_;        // leader: by entry, the log position behind the last record with a text
  struct RetiredHere {
    uint64_t end;  // the log position behind its RETIRE
    uint32_t id;
  };
  std::deque<RetiredHere> retired_here_;  // leader: not read by all ranks of the host, as far as is known
  bool eviction_warned_ = false;
  std::vector<bool> has_left_;
  std::vector<bool> may_close_;  // leader: ranks whose control link may end without that being a loss
  std::atomic<bool> abort_spread_{false};
  uint64_t stall_reported_ns_ = 0;
  uint64_t stacks_asked_ns_ = 0;        // rank 0, of the report to come; 0: not asked
  std::map<int, std::string> stacks_;   // rank 0: the answers
  std::vector<int> stacks_asked_here_;  // leader: of this host, without an answer

  struct Statistics {
    std::atomic<uint64_t> batches{0}, tensors{0}, bytes{0}, slow_requests{0}, control_messages{0}, engine_wakes{0};
    std::atomic<uint64_t> names_evicted{0};  // rank 0 knows
  } statistics_;
};

}  // namespace hvd
