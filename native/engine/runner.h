// SPDX-License-Identifier: Apache-2.0
// Runner: runs the calls that the log has shown to be ready (steps 6 to 8). It gathers them, cuts them into batches
// when it is told to, runs each batch through the communicator of its process set, and completes its calls. It also
// makes and drops the communicators. It knows nothing of the log.
//
// Owns the data links, what runs batches, and the batch that is being run. Under the driver's token, except what says
// otherwise. Blocks as a communicator does.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicators/registry.h"
#include "engine/calls.h"
#include "engine/options.h"
#include "engine/parts.h"
#include "execution/execute.h"
#include "execution/process_set.h"
#include "execution/submission.h"
#include "gpu/device_runner.h"
#include "gpu/gpu_watch.h"
#include "gpu/launched_calls.h"

namespace hvd {

class Runner {
 public:
  Runner(const EngineParts& parts, Calls& calls);
  // Takes the data links over, and makes the communicator of all ranks. Before any thread drives.
  Status connect(std::vector<EngineOptions::Link>* links);

  // The call is part of the next batch. Null: this rank has joined, and zeros will not do.
  void open(SubmissionPtr submission);
  const OpenBatch& open_batch() const { return open_; }
  void close_batch();
  // With the batches that were closed together, in order. Stops before one whose inputs a GPU is still computing; then
  // the log is not read on.
  void go_on();
  bool is_suspended() const { return suspended_.load(); }  // it has stopped so. Any thread
  // Completes finished GPU work; returns false if there was none.
  bool finish_launched() { return !launched_.is_empty() && look_at_launched(); }
  const LaunchedCalls& launched() const { return launched_; }

  // The generation has ended: this rank's calls fail, but those on a GPU.
  void fail_all(const Status& cause);
  void fail_launched(const Status& cause);
  // The communicators close their links: what waits for this rank over one of them learns of the end. Those of NCCL
  // come after the word is out: an abort may wait for the other ranks' aborts.
  void spread_abort();
  // Not in order: GPUs' work that waits for other ranks is aborted.
  void drop_communicators(bool in_order);

  // By the monitor's thread.
  void watch_gpus() { gpu_watch_.tick(device_runner_, ending_); }

  // Before a batch may run: whether a caller of this rank waits, so that its cores are idle.
  void somebody_waits(bool waits) {
    if (helpers_ != nullptr) helpers_->allow(waits);
  }

  // Statistics. Any thread.
  std::string describe_communicator();  // empty: it has been let go
  const Execution::Counts& counts() const { return execution_.counts(); }
  const DeviceRunner::Counts& counts_on_gpus() const { return device_runner_.counts(); }

 private:
  CommunicatorParts parts_in(std::byte* area) const;
  void drop_host_communicators();

  void execute(std::vector<SubmissionPtr> closed);
  bool has_run(size_t call) const;
  Status await_inputs(const Batch& batch, bool* ready);
  Status run_next(const Batch& batch);
  Status run(const Batch& batch, const std::vector<SubmissionPtr>& closed);
  void communicator_failed(const Status& status, const std::string& doing);
  void launched(const SubmissionPtr& submission);
  bool look_at_launched();

  // pairs.cc
  Status connect_pair(const Batch& batch);
  Status map_pair(ProcessSet* pair);

  // process_sets.cc
  Status run_add_process_set(Submission* submission);
  Status run_remove_process_set(Submission* submission);
  size_t shared_bytes_here(const ProcessSet& set) const;

  std::map<std::vector<int>, int32_t> set_numbers_;  // by ranks, of all sets that were ever added

  const EngineSettings& settings_;
  const HostMap& map_;
  const std::shared_ptr<ProcessSet> world_;
  Segment& segment_;
  Bells& bells_;
  Ending& ending_;
  Wakeup& wakeup_;
  HostService* const service_;
  Trace& trace_;
  Calls& calls_;

  std::mutex communicator_mutex_;  // held while communicators are let go, so that statistics can look at them
  std::shared_ptr<DataLinks> data_links_;
  const std::shared_ptr<Helpers> helpers_;  // null: there are no idle cores
  Execution execution_;
  DeviceRunner device_runner_;
  LaunchedCalls launched_;
  uint64_t looked_at_gpus_ns_ = 0;
  GpuWatch gpu_watch_;
  OpenBatch open_;
  struct Running {  // what was closed last
    std::vector<SubmissionPtr> calls;
    std::vector<Batch> batches;           // point into the calls
    std::vector<size_t> tensors_left;     // of each call
    size_t next = 0;                      // of the batches
    std::unique_ptr<DeviceBatch> on_gpu;  // the next one, if it has begun there
  } running_;
  std::atomic<bool> suspended_{false};  // the next one's inputs are still being computed
};

}  // namespace hvd
