// SPDX-License-Identifier: Apache-2.0
// A stand-in for an MPI, whose ranks are threads of this process. It is strict where real ones are patient: a message
// fits what takes it, and nothing comes into memory that is still being sent from. It is slow to tell: a sender hears
// late that its memory is free.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "communicators/mpi/library.h"

namespace stand_in_mpi {

using hvd::mpi::Handle;

struct Request {
  std::byte* data;
  size_t bytes;
  int from, to;
  bool sends;
  bool moved = false;
  int looks = 0;
};

// What all ranks share.
class Mpi {
 public:
  Mpi() = default;
  ~Mpi() {
    for (const Request* one : open_) delete one;
  }
  Mpi(const Mpi&) = delete;
  Mpi& operator=(const Mpi&) = delete;

  int messages() const { return messages_; }
  int faults() const { return faults_; }

  // Of what this MPI may still write into: how much there is, and whether it lies here. Memory may be freed in a call
  // of this object.
  size_t open_receives() {
    const std::scoped_lock guard(lock_);
    return static_cast<size_t>(std::ranges::count_if(open_, [](const Request* one) { return !one->sends; }));
  }
  bool receives_into(const void* memory, size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(memory);
    const std::scoped_lock guard(lock_);
    return std::ranges::any_of(
        open_, [&](const Request* one) { return !one->sends && begin <= one->data && one->data < begin + bytes; });
  }

  // Until the end, since nobody frees a communicator after an interrupt.
  void own(std::shared_ptr<void> communicator) {
    const std::scoped_lock guard(lock_);
    communicators_.push_back(std::move(communicator));
  }
  Request* begin(Request* request) {
    const std::scoped_lock guard(lock_);
    for (const Request* other : open_) {
      const bool apart = other->data + other->bytes <= request->data || request->data + request->bytes <= other->data;
      if (!apart && !(other->sends && request->sends)) ++faults_;
    }
    open_.push_back(request);
    (request->sends ? sent_ : awaited_)[{request->from, request->to}].push_back(request);
    return request;
  }
  bool has_ended(Request* request) {
    const std::scoped_lock guard(lock_);
    if (!request->sends) move(request->from, request->to);
    if (!request->moved || (request->sends && ++request->looks < 4)) return false;
    std::erase(open_, request);
    delete request;
    return true;
  }

 private:
  void move(int from, int to) {
    std::deque<Request*>&sent = sent_[{from, to}], &awaited = awaited_[{from, to}];
    while (!sent.empty() && !awaited.empty()) {
      const size_t bytes = sent.front()->bytes;
      if (bytes != awaited.front()->bytes) ++faults_;
      std::memcpy(awaited.front()->data, sent.front()->data, std::min(bytes, awaited.front()->bytes));
      sent.front()->moved = awaited.front()->moved = true;
      sent.pop_front();
      awaited.pop_front();
      ++messages_;
    }
  }

  std::recursive_mutex lock_;
  std::map<std::pair<int, int>, std::deque<Request*>> sent_, awaited_;  // by sender and receiver
  std::vector<Request*> open_;
  std::vector<std::shared_ptr<void>> communicators_;
  int messages_ = 0, faults_ = 0;
};

// One rank's; its address is the handle of all its communicators.
struct Rank {
  Mpi* mpi;
  int rank;
  std::vector<int> members = {};  // of the communicator: their ranks
};

inline int begin(const void* data, int count, bool sends, int peer, Handle comm, Handle* request) {
  const Rank& caller = *reinterpret_cast<const Rank*>(comm);
  const int other = caller.members[static_cast<size_t>(peer)];
  const auto bytes = static_cast<size_t>(count);
  auto* const place = static_cast<std::byte*>(const_cast<void*>(data));
  const int from = sends ? caller.rank : other, to = sends ? other : caller.rank;
  *request = reinterpret_cast<Handle>(caller.mpi->begin(new Request{place, bytes, from, to, sends}));
  return hvd::mpi::kSuccess;
}

inline thread_local Mpi* of_thread = nullptr;  // MPI_Test is told of no communicator

inline hvd::mpi::Library library_of(Rank* rank) {
  hvd::mpi::Library library{};
  library.world = reinterpret_cast<Handle>(rank);
  library.call.Comm_group = [](Handle comm, Handle* group) {
    *group = comm;
    return hvd::mpi::kSuccess;
  };
  library.call.Group_incl = [](Handle group, int count, const int* ranks, Handle* some) {
    const Rank& world = *reinterpret_cast<const Rank*>(group);
    *some = reinterpret_cast<Handle>(new Rank{world.mpi, world.rank, {ranks, ranks + count}});
    return hvd::mpi::kSuccess;
  };
  library.call.Comm_create_group = [](Handle, Handle group, int, Handle* made) {
    const auto communicator = std::make_shared<Rank>(*reinterpret_cast<const Rank*>(group));
    communicator->mpi->own(communicator);
    *made = reinterpret_cast<Handle>(communicator.get());
    return hvd::mpi::kSuccess;
  };
  library.call.Group_free = [](Handle* group) {
    const auto* const some = reinterpret_cast<const Rank*>(*group);
    if (!some->members.empty()) delete some;
    return hvd::mpi::kSuccess;
  };
  library.call.Comm_free = [](Handle*) { return hvd::mpi::kSuccess; };
  library.call.Finalized = [](int* flag) {
    *flag = 0;
    return hvd::mpi::kSuccess;
  };
  library.call.Iprobe = [](int, int, Handle, int* there, void*) {
    *there = 0;
    return hvd::mpi::kSuccess;
  };
  library.call.Isend = [](const void* data, int count, Handle, int to, int, Handle comm, Handle* request) {
    return begin(data, count, true, to, comm, request);
  };
  library.call.Irecv = [](void* data, int count, Handle, int from, int, Handle comm, Handle* request) {
    return begin(data, count, false, from, comm, request);
  };
  library.call.Test = [](Handle* request, int* done, void*) {
    *done = of_thread->has_ended(reinterpret_cast<Request*>(*request)) ? 1 : 0;
    return hvd::mpi::kSuccess;
  };
  return library;
}

}  // namespace stand_in_mpi
