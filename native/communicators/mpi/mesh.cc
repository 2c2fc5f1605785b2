// SPDX-License-Identifier: Apache-2.0
// Messages of MPI, and the wait for them (step 7).
#include "communicators/mpi/mesh.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "platform/wait.h"

namespace hvd::mpi {

namespace {

constexpr int kSetTag = 7;  // of the creation of communicators, which no one else makes in the job's own
constexpr int kDataTag = 1;
constexpr int kPauses = 200;  // looks at MPI, some microseconds, until the core is offered to others
constexpr size_t kBegunAtOnce =
    4;  // messages to or from a peer: one that moves, and others whose two ends find each other

template <class Part>
size_t bytes_of(std::span<const Part> parts) {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.size();
  return bytes;
}

}  // namespace

MpiMesh::MpiMesh(const Library& mpi, int member, std::vector<int> world_ranks, const Interrupt& interrupt)
    : mpi_(mpi),
      member_(member),
      world_ranks_(std::move(world_ranks)),
      interrupt_(interrupt),
      progress_(Progress::shared(mpi)),
      outgoing_(world_ranks_.size()),
      incoming_(world_ranks_.size()),
      steps_(member, size()) {}

MpiMesh::~MpiMesh() {
  int finalized = 0;
  if (gave_up_ || comm_ == 0 || mpi_.call.Finalized(&finalized) != kSuccess || finalized != 0) return;
  mpi_.call.Comm_free(&comm_);
}

Status MpiMesh::open() {
  Handle world = 0, group = 0;
  HVD_RETURN_IF_ERROR(checked(mpi_, mpi_.call.Comm_group(mpi_.world, &world), "Comm_group"));
  Status status = checked(mpi_, mpi_.call.Group_incl(world, size(), world_ranks_.data(), &group), "Group_incl");
  if (status.ok()) {
    status = checked(mpi_, mpi_.call.Comm_create_group(mpi_.world, group, kSetTag, &comm_), "Comm_create_group");
    mpi_.call.Group_free(&group);
  }
  mpi_.call.Group_free(&world);
  return status;
}

void MpiMesh::begin(const char* operation) {
  operation_ = operation;
  patience_.begin();
}

void MpiMesh::send(int peer, int, const std::byte* data, size_t bytes) {
  if (bytes == 0) return;
  steps_.add_send(peer);
  outgoing_[static_cast<size_t>(peer)].messages.push_back({const_cast<std::byte*>(data), bytes, kNoTag, queued_++});
  ++pending_;
}

void MpiMesh::receive(int peer, int, std::byte* data, size_t bytes, int64_t tag) {
  if (bytes == 0) {
    if (tag != kNoTag) at_once_.push_back({peer, tag});
    return;
  }
  steps_.add_receive(peer);
  incoming_[static_cast<size_t>(peer)].messages.push_back({data, bytes, tag});
  ++pending_;
}

void MpiMesh::send_parts(int peer, int link, std::span<const Input> parts) {
  if (parts.empty()) return;
  if (parts.size() == 1) return send(peer, link, parts.front().data(), parts.front().size());
  const size_t bytes = bytes_of(parts);
  ExchangedBytes packed = exchanged_bytes(bytes);
  std::byte* next = packed.get();
  for (const Input& part : parts) next = std::copy(part.begin(), part.end(), next);
  std::byte* const data = packed.get();
  steps_.add_send(peer);
  outgoing_[static_cast<size_t>(peer)].messages.push_back({data, bytes, kNoTag, queued_++, std::move(packed)});
  ++pending_;
}

void MpiMesh::receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) {
  if (parts.empty()) return receive(peer, link, nullptr, 0, tag);
  if (parts.size() == 1) return receive(peer, link, parts.front().data(), parts.front().size(), tag);
  const size_t bytes = bytes_of(parts);
  ExchangedBytes packed = exchanged_bytes(bytes);
  std::byte* const data = packed.get();
  steps_.add_receive(peer);
  incoming_[static_cast<size_t>(peer)].messages.push_back(
      {data, bytes, tag, 0, std::move(packed), {parts.begin(), parts.end()}});
  ++pending_;
}

bool MpiMesh::have_left(int, uint64_t before) const {
  return std::ranges::all_of(steps_.busy(), [&](int step) {
    const std::deque<Message>& messages = outgoing_[static_cast<size_t>(steps_.to(step))].messages;
    return messages.empty() || messages.front().number >= before;
  });
}

Status MpiMesh::begin_sends(int peer) {
  Queue& queue = outgoing_[static_cast<size_t>(peer)];
  while (queue.begun < std::min(kBegunAtOnce, queue.messages.size())) {
    Message& message = queue.messages[queue.begun++];
    HVD_RETURN_IF_ERROR(checked(mpi_,
                                mpi_.call.Isend(message.data, static_cast<int>(message.bytes), mpi_.byte, peer,
                                                kDataTag, comm_, &message.request),
                                "Isend"));
  }
  return {};
}

Status MpiMesh::begin_receives(int peer) {
  Queue& queue = incoming_[static_cast<size_t>(peer)];
  while (queue.begun < std::min(kBegunAtOnce, queue.messages.size())) {
    Message& message = queue.messages[queue.begun];
    if (is_being_sent(peer, message)) return {};
    ++queue.begun;
    HVD_RETURN_IF_ERROR(checked(mpi_,
                                mpi_.call.Irecv(message.data, static_cast<int>(message.bytes), mpi_.byte, peer,
                                                kDataTag, comm_, &message.request),
                                "Irecv"));
  }
  return {};
}

// A result comes to where the input was sent from. MPI wants that the send has ended first.
bool MpiMesh::is_being_sent(int peer, const Message& received) const {
  const Queue& queue = outgoing_[static_cast<size_t>(peer)];
  const auto overlaps = [&](const Message& sent) {
    return std::less<>()(sent.data, received.data + received.bytes) &&
           std::less<>()(received.data, sent.data + sent.bytes);
  };
  return std::ranges::any_of(queue.messages, overlaps);
}

// Takes those that have ended from the front; `end` sees each.
template <class End>
Status MpiMesh::end_some(Queue* queue, bool* moved, End end) {
  alignas(16) std::byte status[256] = {};  // larger than every MPI's
  while (queue->begun > 0) {
    int done = 0;
    HVD_RETURN_IF_ERROR(checked(mpi_, mpi_.call.Test(&queue->messages.front().request, &done, status), "Test"));
    if (done == 0) return {};
    end(queue->messages.front());
    queue->messages.pop_front();
    --queue->begun;
    --pending_;
    *moved = true;
  }
  return {};
}

Status MpiMesh::move_all(std::vector<Arrival>* arrivals, bool* moved) {
  for (const int step : steps_.busy()) {
    const int to = steps_.to(step), from = steps_.from(step);
    HVD_RETURN_IF_ERROR(begin_receives(from));
    HVD_RETURN_IF_ERROR(begin_sends(to));
    HVD_RETURN_IF_ERROR(end_some(&incoming_[static_cast<size_t>(from)], moved, [&](const Message& message) {
      const std::byte* next = message.data;
      for (const Output& part : message.unpacked) {
        std::memcpy(part.data(), next, part.size());
        next += part.size();
      }
      if (message.tag != kNoTag) arrivals->push_back({from, message.tag});
    }));
    HVD_RETURN_IF_ERROR(end_some(&outgoing_[static_cast<size_t>(to)], moved, [](const Message&) {}));
  }
  if (*moved) {
    steps_.drop_if([this](int step) {
      return outgoing_[static_cast<size_t>(steps_.to(step))].messages.empty() &&
             incoming_[static_cast<size_t>(steps_.from(step))].messages.empty();
    });
  }
  return {};
}

Status MpiMesh::move_some(std::vector<Arrival>* arrivals, bool* moved) {
  Status status = move_all(arrivals, moved);
  if (!status.ok()) give_up();
  return std::move(status).while_doing(operation_);
}

void MpiMesh::give_up() {
  gave_up_ = true;
  progress_->stop();
  keep_memory();
}

Status MpiMesh::interrupted() {
  give_up();
  std::string text = std::string(operation_) + " over MPI was interrupted";
  for (size_t peer = 0; peer < world_ranks_.size(); ++peer) {
    if (incoming_[peer].messages.empty() && outgoing_[peer].messages.empty()) continue;
    text += " while rank " + std::to_string(world_ranks_[static_cast<size_t>(member_)]) + " waited for rank " +
            std::to_string(world_ranks_[peer]);
    break;
  }
  return {HVD_ABORTED, std::move(text)};
}

Status MpiMesh::move(std::vector<Arrival>* arrivals) {
  report_empty(arrivals);
  const Progress::Busy busy(*progress_);
  bool moved = false;
  return move_some(arrivals, &moved);
}

Status MpiMesh::advance(std::vector<Arrival>* arrivals) {
  bool moved = !at_once_.empty();
  report_empty(arrivals);
  const Progress::Busy busy(*progress_);
  for (int turns = 0;; turns = std::min(turns + 1, kPauses)) {
    HVD_RETURN_IF_ERROR(move_some(arrivals, &moved));
    if (moved) {
      patience_.moved();
      return {};
    }
    if (interrupt_.raised()) return interrupted();
    if (turns < kPauses && !patience_.is_over()) {
      cpu_pause();
    } else {
      patience_.turn();
    }
  }
}

}  // namespace hvd::mpi
