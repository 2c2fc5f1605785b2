// SPDX-License-Identifier: Apache-2.0
// The launch of a batch on a GPU, and LaunchedCalls: the calls whose batches have been launched (step 7).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "communicators/device_communicator.h"
#include "device/device.h"
#include "execution/submission.h"
#include "platform/status.h"

namespace hvd {

// A batch on a GPU that has been launched: all its work is on a stream of ours. It ends later.
struct Launch {
  cuda::Device* device = nullptr;
  cuda::Stream stream = nullptr;
  cuda::Event done;        // of this batch, and of the batches before that its calls had a part in
  bool has_ended = false;  // well, as has been seen; by the holder of the token
  std::vector<std::shared_ptr<const DeviceCommunicator>> carriers;  // of the same batches; staged ones have none
};

// The calls that are launched, in that order, until the GPU is done with them. Changed under the token; what says const
// may be called by any thread.
class LaunchedCalls {
 public:
  void add(SubmissionPtr call);
  // A call that has ended, and how; null: none has. Of each stream, the first one ends first. It stays until it is
  // dropped: handle its error before you drop it.
  SubmissionPtr first_ended(Status* how) const;
  void drop(const SubmissionPtr& call);
  std::vector<SubmissionPtr> take_all();
  SubmissionPtr last() const;  // null: there is none
  bool is_empty() const { return count_.load(std::memory_order_relaxed) == 0; }
  // The call that has to end next on a stream, if none has ended there for longer than the limit, and NCCL carries it.
  struct Stuck {
    SubmissionPtr call;  // null: there is none
    uint64_t since_ns = 0;
    bool has_inputs = false;  // all that run with it have
  };
  Status find_stuck(uint64_t limit_ns, Stuck* out) const;
  // When it is time to look again; negative: there is nothing to look at. `suspended`: a batch waits for inputs.
  // `waited_for`: a caller waits for an operation.
  int64_t look_again_in_ns(bool suspended, bool waited_for) const;

 private:
  mutable std::mutex mutex_;
  std::deque<SubmissionPtr> calls_;
  std::map<cuda::Stream, uint64_t> since_ns_;  // when the GPU got to the first one of each, or ended one before it
  std::atomic<int> count_{0}, with_callbacks_{0};
};

}  // namespace hvd
