// SPDX-License-Identifier: Apache-2.0
// The thread that lets MPI go on while no operation runs (step 7).
//
// MPI calls an operation done when its memory is free. What it has sent may then still lie in a queue of MPI's, which
// moves only while somebody calls MPI. A peer would wait for it for ever, as this rank waits for the peer elsewhere.
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

  // For ever: nobody may call MPI any more. May return before the thread's last call does.
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
