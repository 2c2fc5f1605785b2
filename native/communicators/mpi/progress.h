// SPDX-License-Identifier: Apache-2.0
// The thread that lets MPI go on while no operation runs (step 7).
//
// MPI calls an operation done when its memory is free. The data may then still be in a queue of MPI's, which moves only
// during calls of MPI. Without this thread, a peer would wait for the data for ever, while this rank waits for the peer
// outside of MPI.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "communicators/mpi/library.h"

namespace hvd::mpi {

// One for all communicators of the process; it ends with the last that holds it.
class Progress {
 public:
  static std::shared_ptr<Progress> shared(const Library& mpi);
  explicit Progress(const Library& mpi);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Stops for good, after which MPI must not be called. May return before the thread's last call does.
  void stop() { over_ = true; }

  // While it exists, its thread is inside MPI itself.
  class Busy {
   public:
    explicit Busy(Progress& progress) : progress_(progress) { ++progress_.busy_; }
    ~Busy() {
      progress_.finished_ = true;
      --progress_.busy_;
    }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    Progress& progress_;
  };

 private:
  void run();

  const Library& mpi_;
  std::atomic<int> busy_ = 0;
  std::atomic<bool> finished_ = false;  // something was, since the thread last looked
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace hvd::mpi
