// SPDX-License-Identifier: Apache-2.0
// A submission: one request on its way through the engine (steps 4 to 8), the entry (name) it belongs to, and the table
// of handles by which a caller refers to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "negotiation/wire.h"
#include "platform/status.h"

namespace hvd {

struct Entry;
struct ProcessSet;

// A request without its tensor pointers; what hvd_prepare returns. Immutable once made.
struct Prepared {
  std::string name;  // empty: unnamed
  Descriptor descriptor;
  std::string bytes;                // the descriptor as it is compared and sent
  std::vector<TensorSpec> tensors;  // with the true dimension 0 of a ragged operation's input
  std::vector<int64_t> splits;      // alltoall: rows for each member
  uint64_t total_bytes = 0;
  std::shared_ptr<ProcessSet> set;
  // For named requests, from the first submission on; one that the set forgot is looked up anew. The engine's mutex.
  mutable std::shared_ptr<Entry> entry;
  hvd_done_fn done = nullptr;
  void* user = nullptr;
};

// An output that was known only on the way. Of a new process set, its number, and of a join, the last rank, as the only
// row.
struct Gathered {
  std::unique_ptr<std::byte[]> data;
  std::vector<int64_t> shape;
  std::vector<int64_t> rows;
};

struct Submission {
  std::shared_ptr<const Prepared> prepared;
  std::shared_ptr<Entry> entry;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::string refusal;  // not empty: stands for a call that failed before it could be submitted
  void* user = nullptr;
  bool sync = false;
  bool urgent = false;
  bool is_refusal = false;
  enum class Stage : uint8_t { kNone, kNegotiating, kQueued, kRunning, kDone } traced = Stage::kNone;

  Status status;                  // written before `done`
  std::vector<Gathered> results;  // likewise
  Status outcome;                 // likewise: why an operation that ran did not succeed, the same on all ranks
  std::atomic<bool> done{false};
};

using SubmissionPtr = std::shared_ptr<Submission>;

// One name of a process set as this rank, a member, knows it. Guarded by the engine's mutex. The set forgets it where
// it has no id and nothing in flight: then it is no more than its name.
struct Entry {
  ProcessSet* set = nullptr;
  std::string name;
  int64_t id = -1;         // given by the coordinator
  std::string definition;  // the descriptor that all ranks know; empty where none has been agreed
  bool forgotten = false;
  SubmissionPtr in_flight;
  std::optional<uint32_t> counted_in;  // of what is in flight: the tally's round, where it took the fast way
  std::deque<SubmissionPtr> deferred;  // unnamed requests of a later round, and what follows a refusal
};

class HandleTable {
 public:
  hvd_handle add(SubmissionPtr submission);
  SubmissionPtr find(hvd_handle handle) const;  // null for a stale or foreign handle
  void release(hvd_handle handle);

 private:
  struct Slot {
    uint32_t reuse = 1;
    SubmissionPtr submission;
  };
  mutable std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace hvd
