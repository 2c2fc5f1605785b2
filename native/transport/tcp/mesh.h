// SPDX-License-Identifier: Apache-2.0
// TcpMesh: a mesh of the connected sockets between the members of a process set (step 7).
//
// A *link* is one socket to one peer. What is queued is a stream there: messages need not be told apart. A link that is
// not open yet is asked for when something is first queued on it; meanwhile the others move.
//
// Peers take *turns*: what is queued for one peer in a row is a turn. Only the first kTurnsAtOnce turns that are not
// over are sent. With all peers at once, as many flows meet on each receiver's link, each at a rate of its own, and
// every exchange waits for the slowest of them. So algorithms begin with the peer behind the sender, so that members
// send to different peers. And no peer may wait for a later turn of a sender before it takes an earlier one. If no link
// leaves the machine, there are no turns: processes would only wait for each other.
//
// A peer's machine that is cut off closes nothing. While nothing moves, the kernel is asked when a link's other end has
// last acknowledged anything: it answers keepalives however slow, or stopped, its process is.
//
// Shares the sockets' ownership.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/interrupt.h"
#include "platform/status.h"
#include "transport/mesh.h"
#include "transport/steps.h"
#include "transport/tcp/data_links.h"

namespace hvd {

class TcpMesh final : public Mesh {
 public:
  static constexpr uint64_t kTurnsAtOnce = 2;  // while one waits for its receiver, the other goes on
  static constexpr MessageBytes kMessageBytes{size_t{256} << 10, 64, size_t{256} << 10};

  // Among the ranks `world_ranks`, of which this one is number `member`.
  TcpMesh(std::shared_ptr<DataLinks> links, int member, std::vector<int> world_ranks, const Interrupt& interrupt);
  TcpMesh(const TcpMesh&) = delete;
  TcpMesh& operator=(const TcpMesh&) = delete;
  // Checks the number of those sockets that are open, and makes them nonblocking.
  Status open();

  const char* transport() const override { return "tcp"; }
  int member() const override { return member_; }
  int size() const override { return size_; }
  int links_per_peer() const override { return links_per_peer_; }
  MessageBytes message_bytes() const override { return kMessageBytes; }

  void begin(const char* operation) override { operation_ = operation; }
  void send(int peer, int link, const std::byte* data, size_t bytes) override;
  void receive(int peer, int link, std::byte* data, size_t bytes, int64_t tag = kNoTag) override;
  void send_parts(int peer, int link, std::span<const Input> parts) override;
  void receive_parts(int peer, int link, std::span<const Output> parts, int64_t tag) override;
  bool have_left(int link, uint64_t before) const override;
  Status advance(std::vector<Arrival>* arrivals) override;
  Status move(std::vector<Arrival>* arrivals) override;

 private:
  static constexpr int kTries = 40;  // with a yield between, before sleeping in poll
  struct Outgoing {
    const std::byte* data;
    size_t bytes;
    uint64_t number, turn;
  };
  struct Incoming {
    std::byte* data;
    size_t bytes;
    int64_t tag;
  };
  struct Link {
    int fd = -1;
    int peer = 0;
    std::deque<Outgoing> outgoing;
    std::deque<Incoming> incoming;
  };

  const std::vector<int>& sockets_to(int peer) const;
  std::vector<Link>& links_to(int peer);
  Status adopt(int peer);
  void use(int peer);
  Status take_opened();
  Link& link(int peer, int index) { return links_to(peer)[static_cast<size_t>(index)]; }
  const std::vector<Link>& used_links_to(int peer) const { return links_[static_cast<size_t>(peer)]; }
  bool sends_to(int peer) const;
  bool receives_from(int peer) const;
  bool has_turn(const Outgoing& piece) const { return !leaves_machine_ || piece.turn < first_turn_ + kTurnsAtOnce; }
  bool may_send(const Link& link) const { return !link.outgoing.empty() && has_turn(link.outgoing.front()); }
  void end_outgoing(uint64_t turn);
  Status send_some(Link& link, bool* moved);
  Status receive_some(Link& link, std::vector<Arrival>* arrivals, bool* moved);
  Status move_all(std::vector<Arrival>* arrivals, bool* moved);
  void poll_links_to(int peer);
  Status poll_links(int timeout_ms, bool* ready);
  Status check_links() const;
  Status interrupted() const;
  Status lost(const Link& link, const std::string& why) const;

  const int member_, size_;
  const std::vector<int> world_ranks_;
  const Interrupt interrupt_;
  int links_per_peer_ = 0;
  const std::shared_ptr<DataLinks> data_links_;
  std::vector<std::vector<Link>> links_;  // by peer; none before the first use
  Steps steps_;                           // with links that have something pending
  std::deque<size_t> turns_;              // from the first that is not over: how many pieces are left of each
  uint64_t first_turn_ = 0;
  bool leaves_machine_ = false;  // some link does
  int last_turn_peer_ = 0;
  size_t pending_bytes_ = 0;  // of what is pending
  int tries_ = kTries;        // while it is much: half as many after a long sleep, as all of them fail on a slow link
  std::vector<int> opening_;  // peers whose links are used, but not open
  Status failed_;             // why no link can be opened; advance() says so
  std::vector<pollfd> polled_;
  const char* operation_ = "start";
};

}  // namespace hvd
