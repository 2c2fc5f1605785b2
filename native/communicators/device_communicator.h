// SPDX-License-Identifier: Apache-2.0
// A communicator whose members have a GPU each, and the row of a library that makes such communicators (step 7). NCCL
// is one; nothing outside its folder knows more of it than its row says.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "device/device.h"
#include "platform/clock.h"
#include "platform/interrupt.h"

namespace hvd {

// Its operations take addresses on the GPU, are enqueued on one stream and return; the stream tells when they have
// ended. exchange() and barrier() go through the host's communicator, and are over when they return.
class DeviceCommunicator : public Communicator {
 public:
  // The first error of the enqueued work, if there is one. Any thread.
  virtual Status health() const = 0;
  // Aborts: queued work fails soon, and no more is accepted. Returns when the GPU has left the queued work. That may
  // take until the other members of this host have called abort(), too, or are gone. Any thread; a second call returns
  // at once.
  virtual void abort() = 0;
  // Ends the communicator after its queued work has finished; otherwise does as abort(). After either nothing is left
  // to do.
  virtual void close() = 0;
};

// All at once, as each may wait until the GPU has left the others. What takes longer than patience_ms goes on by
// itself: it then waits for another rank of this host, and the GPU has mostly left it.
// Chosen: a kernel that sees an abort ends at once, what is in order may have to wait for a slower rank.
constexpr uint64_t kPatienceToAbortMs = 1000, kPatienceToCloseMs = 3000;
void abort_all(std::span<const std::shared_ptr<DeviceCommunicator>> carriers, uint64_t patience_ms);
void close_all(std::span<const std::shared_ptr<DeviceCommunicator>> carriers, uint64_t patience_ms);

// Counts the threads inside calls of a library: such a call may never return if another rank is gone. Any thread.
class Inside {
 public:
  // For how long; 0: none is.
  uint64_t for_ns() const {
    const uint64_t since_ns = since_ns_.load();
    return since_ns == 0 ? 0 : now_ns() - since_ns;
  }
  class Scope {
   public:
    explicit Scope(Inside& inside) : inside_(inside) { inside_.count(1); }
    ~Scope() { inside_.count(-1); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Inside& inside_;
  };

 private:
  void count(int more) {
    const std::lock_guard lock(mutex_);
    if (calls_ == 0) since_ns_.store(now_ns());
    calls_ += more;
    if (calls_ == 0) since_ns_.store(0);
  }

  std::mutex mutex_;
  int calls_ = 0;
  std::atomic<uint64_t> since_ns_{0};
};

// Where to look for a library, one after the other: the file that the user has named; the copy that a framework has
// loaded; what is linked into a framework; what was found beside one; what the system has.
struct LibraryPlaces {
  std::string named, found;
};

struct DeviceParts {
  std::vector<int> ranks;  // of each member, in the world: for texts
  LibraryPlaces library;
  cuda::Device* device = nullptr;  // null: this member has used no GPU yet, and has joined
  cuda::Stream stream = nullptr;
  Interrupt interrupt;
  uint64_t timeout_ms = 0;  // of the meeting of all
  std::shared_ptr<Inside> inside, in_aborts;
  // Of each member: those of one number have a communicator of their own. Empty: all have one.
  std::vector<int> groups;
};

struct DeviceRow {
  hvd_place place;  // of the tensors that it carries
  // Of the library that would be used. HVD_UNAVAILABLE with the reason if there is none. Initialises nothing.
  Status (*version)(const LibraryPlaces& places, int* out);
  // True if it supports the reduction. The answer depends on the arguments alone, so it is the same on all members.
  bool (*can_reduce)(const Reduction& reduction, hvd_kind kind);
  // Collective over the members of `host`, also if they come in groups. HVD_UNAVAILABLE with the reason, on all members
  // alike, if one has no library, or they have other versions, or two of them the same GPU, or it cannot start.
  // HVD_JOINED if one has no GPU yet.
  Status (*join)(Communicator& host, const DeviceParts& parts, std::shared_ptr<DeviceCommunicator>* out);
};

}  // namespace hvd
