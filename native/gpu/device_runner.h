// SPDX-License-Identifier: Apache-2.0
// DeviceRunner: chooses how a batch whose tensors are on a GPU is run, and makes what carries it (steps 6 and 7). A
// library such as NCCL carries it if all members of the process set have it and it knows the operation; each of its
// communicators has a stream of ours, and batches take turns (HOROVOD_NUM_NCCL_STREAMS). Otherwise the batch is staged.
//
// Owns the communicators of all process sets on GPUs. Under the driver's token, except what says otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "communicators/registry.h"
#include "execution/process_set.h"
#include "gpu/device_batch.h"
#include "settings/settings.h"

namespace hvd {

class DeviceRunner {
 public:
  // `parts`: what a communicator among some ranks is made from.
  DeviceRunner(Execution& execution, const EngineSettings& settings, Interrupt interrupt,
               std::function<CommunicatorParts()> parts)
      : execution_(execution), settings_(settings), interrupt_(interrupt), communicator_parts_(std::move(parts)) {}

  // Run it once it has its inputs. May block, for members that meet on GPUs for the first time.
  Status begin(const Batch& batch, const std::vector<SubmissionPtr>& calls, std::unique_ptr<DeviceBatch>* out);
  // The process set is gone.
  void forget(int32_t set);
  // All of them. In order: their work ends first. Otherwise it is aborted, and this rank's GPU has left it, unless that
  // takes long.
  void drop(bool in_order);

  struct Counts {
    std::atomic<uint64_t> by_nccl{0}, in_levels{0}, staged{0};  // batches; the first counts the second, too
  };
  const Counts& counts() const { return counts_; }  // any thread

  // How long the oldest call of the library has not returned; 0: there is none. Any thread.
  uint64_t inside_ns() const { return inside_->for_ns(); }
  uint64_t aborting_ns() const { return in_aborts_->for_ns(); }
  // By a thread of its own, since the one with the token is inside a call of the library. Any thread.
  void abort_elsewhere();

 private:
  using Carriers = std::vector<std::shared_ptr<DeviceCommunicator>>;
  struct Way {
    bool tried = false;
    std::string why_not;  // if there are no carriers
    Carriers carriers;    // each has a stream, which all sets share
    uint64_t batches = 0;
  };
  struct Set {
    cuda::Device* device = nullptr;
    Way whole, in_levels;
  };

  // No communicator if the batch is staged. The same choice on all members.
  Status choose(const ClosedBatch& closed, DeviceCarrier* out);
  Status meet(const DeviceRow& row, const ProcessSet& members, Set* set, Way* way, GpuWay wanted);
  Status join(const DeviceRow& row, const ProcessSet& members, const DeviceParts& parts, bool in_levels,
              std::shared_ptr<DeviceCommunicator>* out);
  Set& set_of(int32_t number);
  Carriers take(Set* set);

  Execution& execution_;
  const EngineSettings& settings_;
  const Interrupt interrupt_;
  const std::function<CommunicatorParts()> communicator_parts_;
  std::mutex mutex_;             // of the lists of carriers
  std::map<int32_t, Set> sets_;  // by number; changed under the token as well
  Counts counts_;
  const std::shared_ptr<Inside> inside_ = std::make_shared<Inside>();
  const std::shared_ptr<Inside> in_aborts_ = std::make_shared<Inside>();
};

}  // namespace hvd
