// SPDX-License-Identifier: Apache-2.0
// MpiMesh: a mesh whose messages are MPI's, from one member to another (step 7). MPI adds nothing and copies nothing of
// its own: the algorithms are ours, so results have the same bits as over sockets.
//
// A message that lies in several places is packed, and unpacked at the other end. Of what is queued for a peer only the
// first messages are given to MPI, in both directions; they end in that order. MPI counts in ints: a message has less
// than 2 GiB.
//
// All calls are non-blocking, and repeated until something has ended. After an interrupt the requests are given up, not
// finished: MPI may write into their memory during any later call. So the library makes no further calls of MPI and
// keeps the memory (platform/kept_memory.h), and the process should end.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "communicators/mpi/library.h"
#include "communicators/mpi/patience.h"
#include "communicators/mpi/progress.h"
#include "communicators/registry.h"
#include "platform/interrupt.h"
#include "platform/kept_memory.h"
#include "transport/mesh.h"
#include "transport/steps.h"

namespace hvd::mpi {

class MpiMesh final : public Mesh {
 public:
  // Among the ranks `world_ranks` of the job, of which this one is number `member`.
  MpiMesh(const Library& mpi, int member, std::vector<int> world_ranks, const Interrupt& interrupt);
  ~MpiMesh() override;
  MpiMesh(const MpiMesh&) = delete;
  MpiMesh& operator=(const MpiMesh&) = delete;
  // Collective over the members.
  Status open();

  const char* transport() const override { return "mpi"; }
  int member() const override { return member_; }
  int size() const override { return static_cast<int>(world_ranks_.size()); }
  int links_per_peer() const override { return 1; }
  // Most MPIs ask the other end before they send more than 64 KiB: that costs two more messages. In an allreduce it
  // also costs to fold what has come while more of it comes, for MPI moves nothing meanwhile. But all shares need
  // memory: as much as was measured with two ranks (docs/decisions/0022-mpi-without-its-headers.md).
  MessageBytes message_bytes() const override {
    constexpr size_t kMessage = size_t{512} << 10, kShares = size_t{16} << 20;
    const size_t share = std::max(kMessage, kShares / world_ranks_.size());
    return {kMessage, share, share};
  }

  void begin(const char* operation) override;
  void send(int peer, int link, const std::byte* data, size_t bytes) override;
  void receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag = kNoTag) override;
  void send_parts(int peer, int link, std::span<const Input> parts) override;
  void receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) override;
  bool have_left(int link, uint64_t before) const override;
  Status advance(std::vector<Arrival>* arrivals) override;
  Status move(std::vector<Arrival>* arrivals) override;

 private:
  struct Message {
    std::byte* data;
    size_t bytes;
    int64_t tag = kNoTag;
    uint64_t number = 0;                // of those to be sent
    ExchangedBytes packed = nullptr;    // `data`, if it lies in several places
    std::vector<Output> unpacked = {};  // of what arrives
    Handle request = 0;
  };
  // One direction, to or from one peer.
  struct Queue {
    std::deque<Message> messages;
    size_t begun = 0;  // of the first ones
  };

  Status begin_sends(int peer);
  Status begin_receives(int peer);
  bool is_being_sent(int peer, const Message& received) const;
  template <class End>
  Status end_some(Queue* queue, bool* moved, End end);
  Status move_all(std::vector<Arrival>* arrivals, bool* moved);
  Status move_some(std::vector<Arrival>* arrivals, bool* moved);
  Status interrupted();
  void give_up();

  const Library& mpi_;
  const int member_;
  const std::vector<int> world_ranks_;
  const Interrupt interrupt_;
  const std::shared_ptr<Progress> progress_;
  Handle comm_ = 0;
  std::vector<Queue> outgoing_, incoming_;  // by peer
  Steps steps_;                             // with messages
  Patience patience_;
  bool gave_up_ = false;
  const char* operation_ = "start";
};

// Collective over the members: a communicator over such a mesh.
Status make_over_mpi(const Library& mpi, const Members& members, const CommunicatorParts& parts,
                     std::unique_ptr<Communicator>* out);

}  // namespace hvd::mpi
