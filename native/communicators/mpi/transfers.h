// SPDX-License-Identifier: Apache-2.0
// What the communicator asks of one MPI communicator (step 7): non-blocking calls, and a wait that an interrupt ends.
//
// Of one thread at a time. After an interrupt the requests are given up, not finished: MPI may still write into their
// memory whenever somebody calls it, so `abandoned` memory is never freed, and the process should end.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "communicators/mpi/library.h"
#include "communicators/mpi/patience.h"
#include "communicators/mpi/progress.h"
#include "platform/interrupt.h"

namespace hvd::mpi {

class Transfers {
 public:
  Transfers(const Library& mpi, const Interrupt& interrupt)
      : mpi_(mpi), interrupt_(interrupt), progress_(Progress::shared(mpi)) {}
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  // Collective over the members, which are `ranks` of the job.
  Status open(std::span<const int> ranks);

  const Library& mpi() const { return mpi_; }
  bool abandoned() const { return abandoned_; }

  // All block until done, and take any size. `operation` is for texts.
  Status sum(const char* operation, const void* from, void* to, int64_t count, hvd_dtype dtype);
  Status broadcast(void* data, size_t bytes, int root);
  // `all` has the members' parts one after another, this member's in its place.
  Status allgather(const char* operation, std::byte* all, std::span<const int64_t> bytes_of_member, int member);
  Status barrier();

  // Messages between two members; `drain` waits for all that were begun. A message may be empty: nothing travels.
  Status send(int to, const std::byte* data, size_t bytes);
  Status receive(int from, std::byte* data, size_t bytes);
  Status drain(const char* operation);

 private:
  template <class Begin>
  Status in_messages(size_t bytes, const char* function, Begin begin_message);
  Status finish(const char* operation, int code, const char* function, Handle request);
  Status wait(const char* operation, Handle* request);

  const Library& mpi_;
  const Interrupt interrupt_;
  const std::shared_ptr<Progress> progress_;
  Handle comm_ = 0;
  std::vector<Handle> requests_;
  std::vector<int> counts_, places_;
  Patience patience_;
  bool abandoned_ = false;
};

}  // namespace hvd::mpi
