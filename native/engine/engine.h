// SPDX-License-Identifier: Apache-2.0
// The engine: takes requests (step 4), agrees with the other ranks what runs next (5), runs batches (6, 7) and
// completes handles (8). One engine is one generation of one process.
//
// The driver: the thread that holds the driver's token makes progress. A caller inside wait() or poll() drives itself,
// which saves two thread hand-overs; the engine's own thread sleeps and drives only if no caller waits. Only the holder
// touches the state under "token" below. mutex_ guards the state that users' threads share with it; it is never held
// across a wait, a collective or a callback.
//
// The order: an operation starts only after every member has submitted all of it, and every rank follows its host's
// log. So the holder may block inside a collective: only a death interrupts it, by poisoning the generation.
//
// negotiation/ decides what runs next: the member knows this rank's names and calls, the leader serves a host. The
// engine gives both their ports (board.h, bells.h, control_links.h) and feeds them: calls from submit.cc, records from
// drive.cc, frames through HostService.
//
// Files: submit.cc (the user's side), drive.cc (the log, batches, ends of calls), process_sets.cc and join.cc
// (operations with their own rules), lifecycle.cc (start, stop). Parts, each with separate state: HostService,
// Execution, Ending, Wakeup, OpenBatch, Trace, Monitor.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "communicators/registry.h"
#include "engine/bells.h"
#include "engine/board.h"
#include "engine/device_batches.h"
#include "engine/ending.h"
#include "engine/execute.h"
#include "engine/gpu_watch.h"
#include "engine/monitor.h"
#include "engine/options.h"
#include "engine/process_set.h"
#include "engine/serve.h"
#include "engine/submission.h"
#include "engine/trace.h"
#include "engine/wakeup.h"
#include "negotiation/host_map.h"
#include "negotiation/member.h"
#include "negotiation/publisher.h"

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

  // Checks a request and fixes all but its tensor pointers.
  Status prepare(const hvd_request& request, std::shared_ptr<const Prepared>* out);
  Status submit(std::shared_ptr<const Prepared> prepared, const void* const* inputs, void* const* outputs,
                uint32_t flags, hvd_handle* handle, void* user = nullptr,  // null: the prepared one
                cuda::Stream stream = nullptr);                            // of tensors on a GPU
  Status refuse(const char* name, int32_t process_set, const std::string& why);
  Status add_process_set(const int32_t* ranks, uint32_t nranks, hvd_handle* handle);
  Status remove_process_set(int32_t process_set, hvd_handle* handle);
  Status place_in_set(int32_t process_set, int32_t* members, int32_t* member);
  Status join(hvd_handle* handle);

  // HVD_PENDING where the time is up, a signal arrived, or (poll) it is not done.
  Status wait(hvd_handle handle, int32_t timeout_ms);
  Status declare_blocked(std::span<const hvd_handle> handles);
  Status device_of(const void* address, int32_t* device) const;
  Status device_of_stream(cuda::Stream stream, int32_t* device) const;
  Status poll(hvd_handle handle);
  Status poll_launch(hvd_handle handle);
  Status wait_on_stream(hvd_handle handle, cuda::Stream stream, int32_t timeout_ms);
  Status settle(int32_t timeout_ms);  // also HVD_OK if nothing runs, but not after an error that ended the generation
  // A result whose size was not known before; HVD_PENDING if it is not there yet. Lives as long as the submission.
  Status find_result(hvd_handle handle, uint32_t index, SubmissionPtr* submission, Gathered** result) const;
  // Onto the GPU that the inputs lie on, in the order of the stream.
  Status copy_result(hvd_handle handle, uint32_t index, void* to, cuda::Stream stream);
  SubmissionPtr find(hvd_handle handle) const { return handles_.find(handle); }
  void release(hvd_handle handle) { handles_.release(handle); }

  Status start_timeline(const std::string& path, const std::string& session, bool mark_cycles) {
    return trace_.start(path, session, map_.rank, mark_cycles, options_.settings.log_time);
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
  Status make_communicator();
  CommunicatorParts parts_in(std::byte* area) const;
  Status start_monitor();
  void drop_communicators(bool in_order);
  void drop_host_communicators();

  // submit.cc
  Status enter(const SubmissionPtr& submission, Member::Announcement* announcement);
  Member::Announcement give_to_member(EntryRef entry, const SubmissionPtr& submission);
  void set_blocked(bool blocked);
  void announce(const Member::Announcement& announcement, bool driving = false);
  Status refuse_if_over();
  Status checked_for_all(Status status, const std::string& name);
  static uint64_t deadline_in(int32_t timeout_ms);
  Status wait_for(const std::atomic<bool>& done, uint64_t deadline_ns);
  Status await_launched(int32_t timeout_ms);
  Status find_any_set(int32_t number, std::shared_ptr<ProcessSet>* out);
  Status find_set_for_use(int32_t number, const std::string& what, std::shared_ptr<ProcessSet>* out);

  // drive.cc
  bool drive(bool somebody_waits) override;
  bool advance(bool somebody_waits);
  bool serve();
  bool follow_log();
  bool has_work() override;
  int64_t batch_linger_left_ns() const;
  int64_t linger_left_ns() const override;
  bool has_calls_in_flight() const override { return in_flight_.load() > 0; }
  void engine_thread();
  void apply(Record record);
  void open(SubmissionPtr submission);
  void close_batch();
  void execute(std::vector<SubmissionPtr> closed);
  void go_on();
  bool has_run(size_t call) const;
  void fail(const SubmissionPtr& call);
  static Status failure_of(const Submission& call, Status cause);
  Status await_inputs(const Batch& batch, bool* ready);
  Status of_this_rank(Status status) const;
  Status run_next(const Batch& batch);
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  void communicator_failed(const Status& status, const std::string& doing);
  void spread_abort();
  bool may_close(bool somebody_waits) const;
  // Readers: the log's slowest reader may be this rank itself, so it reads on.
  bool wait_until(const std::function<bool()>& have_read, bool driving) override;

  void complete(const SubmissionPtr& submission, Status status);
  void launched(const SubmissionPtr& submission);
  bool finish_launched();
  Member::Finished leave(const SubmissionPtr& submission);
  void end(const SubmissionPtr& submission, Status status);
  void say(const Member::Finished& finished);
  void fail_all(const Status& cause);

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
  std::unique_ptr<Monitor> monitor_;
  std::thread thread_;

  // Shared with users' threads.
  std::mutex mutex_;
  std::map<int32_t, std::shared_ptr<ProcessSet>> sets_;  // by number; changed under the token as well
  std::optional<Member> member_;                         // the mutex guards all of it
  std::thread::id waiter_;                               // the last thread that has submitted what it waits for
  bool has_several_waiters_ = false;
  bool is_blocked_ = false;     // what this rank's segment says (hvd_declare_blocked)
  bool has_callbacks_ = false;  // what they start, or a framework's threads do, waits for no thread
  HandleTable handles_;
  Trace trace_;
  std::atomic<bool> started_{false};
  std::atomic<int> in_flight_{0};
  OnThread following_;     // reads the log, batches and callbacks included: it cannot read on in the middle
  OnThread calling_back_;  // runs a completion callback: it may submit but must not wait

  // Token. statistics() looks at communicators under the mutex, under which they are let go.
  std::mutex communicator_mutex_;
  std::shared_ptr<DataLinks> data_links_;
  Execution execution_;
  std::optional<DeviceBatches> device_batches_;
  LaunchedCalls launched_;
  uint64_t looked_at_gpus_ns_ = 0;
  GpuWatch gpu_watch_;
  struct Running {  // what was closed last
    std::vector<SubmissionPtr> calls;
    std::vector<Batch> batches;        // point into the calls
    std::vector<size_t> tensors_left;  // of each call
    size_t next = 0;                   // of the batches
  } running_;
  std::atomic<bool> suspended_{false};  // the next one's inputs are still being computed
  std::atomic<uint64_t> cursor_{0};
  OpenBatch open_;
  struct Later {  // of completions and callbacks: made once no batch is being run
    std::vector<Member::Announcement> calls;
    bool join = false;  // after them
  } later_;
};

}  // namespace hvd
