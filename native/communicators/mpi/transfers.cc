// SPDX-License-Identifier: Apache-2.0
// Calls into MPI, and the wait for them (step 7).
#include "communicators/mpi/transfers.h"

#include <algorithm>

#include "platform/wait.h"

namespace hvd::mpi {

namespace {

constexpr int kSetTag = 7;  // of the creation of communicators, which no one else makes in the job's own
constexpr int kDataTag = 1;
constexpr int kPauses = 200;  // looks at MPI, some microseconds, until the core is offered to others
// MPI counts in ints.
constexpr int64_t kMostElements = int64_t{1} << 28;
constexpr size_t kMostBytes = size_t{1} << 30;

}  // namespace

Transfers::~Transfers() {
  int finalized = 0;
  if (comm_ == 0 || abandoned_ || mpi_.call.Finalized(&finalized) != kSuccess || finalized != 0) return;
  mpi_.call.Comm_free(&comm_);
}

Status Transfers::open(std::span<const int> ranks) {
  Handle world = 0, group = 0;
  HVD_RETURN_IF_ERROR(checked(mpi_, mpi_.call.Comm_group(mpi_.world, &world), "Comm_group"));
  Status status =
      checked(mpi_, mpi_.call.Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &group), "Group_incl");
  if (status.ok()) {
    status = checked(mpi_, mpi_.call.Comm_create_group(mpi_.world, group, kSetTag, &comm_), "Comm_create_group");
    mpi_.call.Group_free(&group);
  }
  mpi_.call.Group_free(&world);
  return status;
}

Status Transfers::wait(const char* operation, Handle* request) {
  const Progress::Busy busy(*progress_);
  alignas(16) std::byte status[256] = {};  // larger than every MPI's
  for (int turns = 0;; turns = std::min(turns + 1, kPauses + 1)) {
    int done = 0;
    HVD_RETURN_IF_ERROR(checked(mpi_, mpi_.call.Test(request, &done, status), "Test").while_doing(operation));
    if (done != 0) return {};
    if (turns < kPauses) {
      cpu_pause();
      continue;
    }
    if (interrupt_.raised()) {
      abandoned_ = true;
      return {HVD_ABORTED, std::string(operation) + " over MPI was interrupted"};
    }
    if (turns == kPauses) patience_.begin();
    patience_.turn();
  }
}

Status Transfers::finish(const char* operation, int code, const char* function, Handle request) {
  HVD_RETURN_IF_ERROR(checked(mpi_, code, function).while_doing(operation));
  return wait(operation, &request);
}

Status Transfers::sum(const char* operation, const void* from, void* to, int64_t count, hvd_dtype dtype) {
  const auto element_bytes = static_cast<int64_t>(element_size(dtype));
  for (int64_t begin = 0; begin < count; begin += kMostElements) {
    const auto length = static_cast<int>(std::min(kMostElements, count - begin));
    const void* const piece = from == to ? mpi_.in_place : static_cast<const std::byte*>(from) + begin * element_bytes;
    Handle request = 0;
    const int code = mpi_.call.Iallreduce(piece, static_cast<std::byte*>(to) + begin * element_bytes, length,
                                          mpi_.types[dtype], mpi_.sum, comm_, &request);
    HVD_RETURN_IF_ERROR(finish(operation, code, "Iallreduce", request));
  }
  return {};
}

Status Transfers::broadcast(void* data, size_t bytes, int root) {
  for (size_t begin = 0; begin < bytes; begin += kMostBytes) {
    Handle request = 0;
    const int code =
        mpi_.call.Ibcast(static_cast<std::byte*>(data) + begin, static_cast<int>(std::min(kMostBytes, bytes - begin)),
                         mpi_.byte, root, comm_, &request);
    HVD_RETURN_IF_ERROR(finish("broadcast", code, "Ibcast", request));
  }
  return {};
}

Status Transfers::allgather(const char* operation, std::byte* all, std::span<const int64_t> bytes_of_member,
                            int member) {
  int64_t total = 0;
  counts_.clear();
  places_.clear();
  for (const int64_t bytes : bytes_of_member) {
    counts_.push_back(static_cast<int>(std::min<int64_t>(bytes, kMostBytes)));
    places_.push_back(static_cast<int>(std::min<int64_t>(total, kMostBytes)));
    total += bytes;
  }
  if (total <= static_cast<int64_t>(kMostBytes)) {
    Handle request = 0;
    const int code = mpi_.call.Iallgatherv(mpi_.in_place, 0, mpi_.byte, all, counts_.data(), places_.data(), mpi_.byte,
                                           comm_, &request);
    return finish(operation, code, "Iallgatherv", request);
  }
  const auto members = static_cast<int>(bytes_of_member.size());
  int64_t mine = 0;
  for (int m = 0; m < member; ++m) mine += bytes_of_member[static_cast<size_t>(m)];
  int64_t place = 0;
  for (int m = 0; m < members; ++m) {
    const auto bytes = static_cast<size_t>(bytes_of_member[static_cast<size_t>(m)]);
    if (m != member) {
      HVD_RETURN_IF_ERROR(receive(m, all + place, bytes));
      HVD_RETURN_IF_ERROR(send(m, all + mine, static_cast<size_t>(bytes_of_member[static_cast<size_t>(member)])));
    }
    place += static_cast<int64_t>(bytes);
  }
  return drain(operation);
}

Status Transfers::barrier() {
  Handle request = 0;
  const int code = mpi_.call.Ibarrier(comm_, &request);
  return finish("barrier", code, "Ibarrier", request);
}

Status Transfers::send(int to, const std::byte* data, size_t bytes) {
  return in_messages(bytes, "Isend", [&](size_t begin, int length, Handle* request) {
    return mpi_.call.Isend(data + begin, length, mpi_.byte, to, kDataTag, comm_, request);
  });
}

Status Transfers::receive(int from, std::byte* data, size_t bytes) {
  return in_messages(bytes, "Irecv", [&](size_t begin, int length, Handle* request) {
    return mpi_.call.Irecv(data + begin, length, mpi_.byte, from, kDataTag, comm_, request);
  });
}

template <class Begin>
Status Transfers::in_messages(size_t bytes, const char* function, Begin begin_message) {
  for (size_t begin = 0; begin < bytes; begin += kMostBytes) {
    const auto length = static_cast<int>(std::min(kMostBytes, bytes - begin));
    Handle request = 0;
    HVD_RETURN_IF_ERROR(checked(mpi_, begin_message(begin, length, &request), function));
    requests_.push_back(request);
  }
  return {};
}

Status Transfers::drain(const char* operation) {
  for (Handle& request : requests_) HVD_RETURN_IF_ERROR(wait(operation, &request));
  requests_.clear();
  return {};
}

}  // namespace hvd::mpi
