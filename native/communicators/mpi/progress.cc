// SPDX-License-Identifier: Apache-2.0
// Calls MPI often after an operation, and then now and then (step 7).
#include "communicators/mpi/progress.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>

namespace hvd::mpi {

namespace {

// Between two looks. Doubled each time, also while an operation runs: so what an operation has left in MPI's queue goes
// out after as long as it has taken at most, and a rank that computes is seldom disturbed.
constexpr std::chrono::microseconds kFirst{100}, kLast{10000};

}  // namespace

std::shared_ptr<Progress> Progress::shared(const Library& mpi) {
  static std::mutex guard;
  static std::weak_ptr<Progress> running;
  const std::scoped_lock lock(guard);
  std::shared_ptr<Progress> one = running.lock();
  if (one == nullptr) running = one = std::make_shared<Progress>(mpi);
  return one;
}

Progress::Progress(const Library& mpi) : mpi_(mpi), thread_([this] { run(); }) {}

Progress::~Progress() {
  over_ = true;
  thread_.join();
}

void Progress::run() {
  alignas(16) std::byte status[256] = {};  // larger than every MPI's
  std::chrono::microseconds pause = kFirst;
  while (!over_) {
    std::this_thread::sleep_for(pause);
    pause = std::min(kLast, 2 * pause);
    if (busy_ > 0 || over_) continue;
    int finalized = 0;  // by the script
    if (mpi_.call.Finalized(&finalized) != kSuccess || finalized != 0) return;
    int there = 0;
    // Any call would do. This one finds no message: Horovod sends none in the job's own communicator.
    mpi_.call.Iprobe(0, 0, mpi_.world, &there, status);
    if (finished_.exchange(false)) pause = kFirst;
  }
}

}  // namespace hvd::mpi
