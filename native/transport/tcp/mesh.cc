// SPDX-License-Identifier: Apache-2.0
// Nonblocking sockets and poll (step 7).
#include "transport/tcp/mesh.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "platform/clock.h"
#include "platform/fault_point.h"
#include "platform/sign_of_life.h"

namespace hvd {

namespace {

// With more than this under way, a try asks poll before the sockets: one system call rather than two for each link.
constexpr size_t kManyBytes = size_t{64} << 10;
constexpr uint64_t kLongSleepNs = 100000;          // chosen; 12 KB take as long at 1 Gbit/s
constexpr int kSliceMs = 100;                      // the longest sleep without a look at the interrupt
constexpr uint64_t kRoundTrips = 4;                // that a peer may be silent for: a lost packet takes two or three
constexpr uint64_t kAskMs = 1500;                  // the kernel asks an idle peer once a second at most
constexpr size_t kMaxPieces = 16;                  // of one system call
constexpr size_t kMaxCallBytes = size_t{1} << 20;  // so that no link keeps the others waiting

// The unsent bytes that a socket may hold if there are several peers. The kernel would take megabytes, and a turn would
// be over long before the network has carried it. This is enough to keep a link busy until this process runs again.
constexpr int kUnsentBytes = 128 << 10;

std::string text_of(int error) { return std::generic_category().message(error); }

std::string address_in(const sockaddr_storage& address) {
  const auto* const bytes = reinterpret_cast<const char*>(&address);
  if (address.ss_family == AF_INET) return {bytes + offsetof(sockaddr_in, sin_addr), sizeof(in_addr)};
  if (address.ss_family == AF_INET6) return {bytes + offsetof(sockaddr_in6, sin6_addr), sizeof(in6_addr)};
  return {};
}

// The ends of a socket inside a machine have the same address.
bool leaves_machine(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_length) < 0) return false;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_length) < 0) return false;
  return address_in(here) != address_in(there);
}

// `lost_timeout_ms`: of silence; 0: for ever.
Status prepare_socket(int fd, uint64_t lost_timeout_ms) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0) {
    return Status(HVD_INVALID_ARGUMENT,
                  "data link with descriptor " + std::to_string(fd) + " is unusable: " + text_of(errno));
  }
  int domain = 0;
  socklen_t length = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) < 0) {
    return Status(HVD_INVALID_ARGUMENT,
                  "data link with descriptor " + std::to_string(fd) + " is not a socket: " + text_of(errno));
  }
  const int on = 1;
  if ((domain == AF_INET || domain == AF_INET6) && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) {
    return Status(HVD_INVALID_ARGUMENT,
                  "data link with descriptor " + std::to_string(fd) + ": TCP_NODELAY: " + text_of(errno));
  }
  // Else a loss would be noticed only by the side that sends.
  if (domain != AF_UNIX && lost_timeout_ms > 0) ask_for_signs_of_life(fd, lost_timeout_ms);
  return Status();
}

// The next pieces of a link, for one system call.
struct Batch {
  template <class Piece, class Fits>
  Batch(const std::deque<Piece>& queue, const Fits& fits) {
    for (const Piece& piece : queue) {
      if (message.msg_iovlen == kMaxPieces || bytes >= kMaxCallBytes || !fits(piece)) break;
      pieces[message.msg_iovlen++] = {const_cast<std::byte*>(piece.data), piece.bytes};
      bytes += piece.bytes;
    }
    message.msg_iov = pieces;
  }
  Batch(const Batch&) = delete;

  iovec pieces[kMaxPieces];
  msghdr message{};
  size_t bytes = 0;
};

// Takes from the queue what has gone through; `done` sees each whole piece.
template <class Piece, class Done>
void take(std::deque<Piece>* queue, size_t bytes, const Done& done) {
  while (bytes > 0) {
    Piece& front = queue->front();
    const size_t taken = std::min(front.bytes, bytes);
    front.data += taken;
    front.bytes -= taken;
    bytes -= taken;
    if (front.bytes != 0) break;
    done(front);
    queue->pop_front();
  }
}

}  // namespace

TcpMesh::TcpMesh(std::shared_ptr<DataLinks> links, int member, std::vector<int> world_ranks, const Interrupt& interrupt)
    : member_(member),
      size_(static_cast<int>(world_ranks.size())),
      world_ranks_(std::move(world_ranks)),
      interrupt_(interrupt),
      data_links_(std::move(links)),
      links_(static_cast<size_t>(size_)),
      steps_(member, size_) {}

const std::vector<int>& TcpMesh::sockets_to(int peer) const {
  static const std::vector<int> none;
  return peer == member_ || data_links_ == nullptr ? none : data_links_->to(world_ranks_[static_cast<size_t>(peer)]);
}

Status TcpMesh::open() {
  const bool opens_more = data_links_ != nullptr && data_links_->opens_more();
  if (opens_more) links_per_peer_ = data_links_->links_per_peer();
  if (opens_more && links_per_peer_ < 1) return Status(HVD_INVALID_ARGUMENT, "an opener of no data links");
  for (int peer = 0; peer < size_; ++peer) {
    const int count = static_cast<int>(sockets_to(peer).size());
    if (peer == member_ || (count == 0 && opens_more)) continue;
    if (links_per_peer_ == 0) links_per_peer_ = count;
    if (count == 0 || count != links_per_peer_) {
      return Status(HVD_INVALID_ARGUMENT, std::to_string(count) + " data links with rank " +
                                              std::to_string(world_ranks_[static_cast<size_t>(peer)]) + ", expected " +
                                              std::to_string(links_per_peer_ == 0 ? 1 : links_per_peer_));
    }
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (!sockets_to(peer).empty()) HVD_RETURN_IF_ERROR(adopt(peer));
  }
  return Status();
}

std::vector<TcpMesh::Link>& TcpMesh::links_to(int peer) {
  std::vector<Link>& links = links_[static_cast<size_t>(peer)];
  if (links.empty()) {
    links.resize(static_cast<size_t>(links_per_peer_));
    for (Link& link : links) link.peer = peer;
  }
  return links;
}

bool TcpMesh::sends_to(int peer) const {
  return std::ranges::any_of(used_links_to(peer), [](const Link& link) { return !link.outgoing.empty(); });
}

bool TcpMesh::receives_from(int peer) const {
  return std::ranges::any_of(used_links_to(peer), [](const Link& link) { return !link.incoming.empty(); });
}

// The peer's links are open.
Status TcpMesh::adopt(int peer) {
  const std::vector<int>& sockets = sockets_to(peer);
  for (int i = 0; i < links_per_peer_; ++i) {
    const int fd = sockets[static_cast<size_t>(i)];
    link(peer, i).fd = fd;
    HVD_RETURN_IF_ERROR(prepare_socket(fd, data_links_->lost_timeout_ms()));
    if (!leaves_machine(fd)) continue;
    leaves_machine_ = true;
    // A socket that cannot do it is slower at most.
    if (size_ > 2) setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof kUnsentBytes);
  }
  return Status();
}

// A first use. The advance() that must follow reports failures.
void TcpMesh::use(int peer) {
  if (!sockets_to(peer).empty()) {  // another mesh was first
    if (Status status = adopt(peer); !status.ok()) failed_ = std::move(status);
  } else if (std::find(opening_.begin(), opening_.end(), peer) == opening_.end()) {
    opening_.push_back(peer);
    if (Status status = data_links_->want(world_ranks_[static_cast<size_t>(peer)]); !status.ok()) {
      failed_ = std::move(status);
    }
  }
}

Status TcpMesh::take_opened() {
  HVD_RETURN_IF_ERROR(failed_);
  if (opening_.empty()) return Status();
  HVD_RETURN_IF_ERROR(data_links_->take().while_doing(operation_));
  for (size_t i = 0; i < opening_.size();) {
    if (sockets_to(opening_[i]).empty()) {
      ++i;
      continue;
    }
    HVD_RETURN_IF_ERROR(adopt(opening_[i]));
    opening_.erase(opening_.begin() + static_cast<ptrdiff_t>(i));
  }
  return Status();
}

void TcpMesh::send(int peer, int index, const std::byte* data, size_t bytes) {
  if (bytes == 0) return;
  Link& used = link(peer, index);
  if (used.fd < 0) use(peer);
  if (turns_.empty() || last_turn_peer_ != peer) turns_.push_back(0);
  last_turn_peer_ = peer;
  ++turns_.back();
  if (used.outgoing.empty()) steps_.add_send(peer);
  used.outgoing.push_back({data, bytes, queued_++, first_turn_ + turns_.size() - 1});
  ++pending_;
  pending_bytes_ += bytes;
}

void TcpMesh::receive(int peer, int index, std::byte* data, size_t bytes, int64_t tag) {
  if (bytes == 0) {
    if (tag != kNoTag) at_once_.push_back({peer, tag});
    return;
  }
  Link& used = link(peer, index);
  if (used.fd < 0) use(peer);
  if (used.incoming.empty()) steps_.add_receive(peer);
  used.incoming.push_back({data, bytes, tag});
  ++pending_;
  pending_bytes_ += bytes;
}

void TcpMesh::send_parts(int peer, int index, std::span<const Input> parts) {
  for (const Input part : parts) send(peer, index, part.data(), part.size());
}

void TcpMesh::receive_parts(int peer, int index, std::span<const Output> parts, int64_t tag) {
  if (parts.empty()) return receive(peer, index, nullptr, 0, tag);
  for (const Output part : parts.first(parts.size() - 1)) receive(peer, index, part.data(), part.size());
  receive(peer, index, parts.back().data(), parts.back().size(), tag);
}

Status TcpMesh::lost(const Link& link, const std::string& why) const {
  const int rank = world_ranks_[static_cast<size_t>(link.peer)];
  return Status(HVD_RANK_LOST, std::string(operation_) + " over TCP: rank " + std::to_string(rank) + " " + why, rank);
}

// True if the kernel has taken the link's messages before this number, to every peer: it sends them by itself.
bool TcpMesh::have_left(int link, uint64_t before) const {
  return std::ranges::none_of(steps_.busy(), [&](int step) {
    const std::vector<Link>& links = used_links_to(steps_.to(step));
    if (links.empty()) return false;
    const std::deque<Outgoing>& outgoing = links[static_cast<size_t>(link)].outgoing;
    return !outgoing.empty() && outgoing.front().number < before;
  });
}

Status TcpMesh::interrupted() const {
  std::string text = std::string(operation_) + " over TCP was interrupted";
  for (int peer = 0; peer < size_; ++peer) {
    if (!sends_to(peer) && !receives_from(peer)) continue;
    text += " while rank " + std::to_string(world_ranks_[static_cast<size_t>(member_)]) + " waited for rank " +
            std::to_string(world_ranks_[static_cast<size_t>(peer)]);
    break;
  }
  return Status(HVD_ABORTED, std::move(text));
}

Status TcpMesh::send_some(Link& link, bool* moved) {
  while (may_send(link) && link.fd >= 0) {
    Batch batch(link.outgoing, [this](const Outgoing& piece) { return has_turn(piece); });
    const ssize_t sent = sendmsg(link.fd, &batch.message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return lost(link, "is unreachable: " + text_of(errno));
    }
    *moved = true;
    pending_bytes_ -= static_cast<size_t>(sent);
    take(&link.outgoing, static_cast<size_t>(sent), [&](const Outgoing& whole) { end_outgoing(whole.turn); });
    if (static_cast<size_t>(sent) < batch.bytes) return Status();
  }
  return Status();
}

void TcpMesh::end_outgoing(uint64_t turn) {
  --pending_;
  --turns_[static_cast<size_t>(turn - first_turn_)];
  for (; !turns_.empty() && turns_.front() == 0; ++first_turn_) turns_.pop_front();
}

Status TcpMesh::receive_some(Link& link, std::vector<Arrival>* arrivals, bool* moved) {
  while (!link.incoming.empty() && link.fd >= 0) {
    Batch batch(link.incoming, [](const Incoming&) { return true; });
    const ssize_t received = recvmsg(link.fd, &batch.message, MSG_DONTWAIT);
    if (received == 0) return lost(link, "closed the connection");
    if (received < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return lost(link, "is unreachable: " + text_of(errno));
    }
    *moved = true;
    pending_bytes_ -= static_cast<size_t>(received);
    take(&link.incoming, static_cast<size_t>(received), [&](const Incoming& whole) {
      if (whole.tag != kNoTag) arrivals->push_back({link.peer, whole.tag});
      --pending_;
    });
    // Arrived data is processed while it is in the cache, before more is read.
    if (static_cast<size_t>(received) < batch.bytes || !arrivals->empty()) return Status();
  }
  return Status();
}

Status TcpMesh::move_all(std::vector<Arrival>* arrivals, bool* moved) {
  for (const int step : steps_.busy()) {
    std::vector<Link>&from = links_[static_cast<size_t>(steps_.from(step))],
    &to = links_[static_cast<size_t>(steps_.to(step))];
    for (size_t i = 0; i < static_cast<size_t>(links_per_peer_); ++i) {
      if (!from.empty()) HVD_RETURN_IF_ERROR(receive_some(from[i], arrivals, moved));
      if (!to.empty()) HVD_RETURN_IF_ERROR(send_some(to[i], moved));
    }
  }
  if (*moved) {
    steps_.drop_if([this](int step) { return !sends_to(steps_.to(step)) && !receives_from(steps_.from(step)); });
  }
  return Status();
}

Status TcpMesh::move(std::vector<Arrival>* arrivals) {
  report_empty(arrivals);
  if (!opening_.empty() || !failed_.ok()) HVD_RETURN_IF_ERROR(take_opened());
  bool moved = false;
  return move_all(arrivals, &moved);
}

Status TcpMesh::advance(std::vector<Arrival>* arrivals) {
  report_empty(arrivals);
  bool moved = !arrivals->empty();
  fault_point("tcp");
  const bool has_much = pending_bytes_ > kManyBytes;
  for (int spins = has_much ? kTries - tries_ : 0;;) {
    if (!opening_.empty() || !failed_.ok()) HVD_RETURN_IF_ERROR(take_opened());
    HVD_RETURN_IF_ERROR(move_all(arrivals, &moved));
    if (moved) {
      if (has_much && spins < kTries) tries_ = std::min(kTries, 2 * tries_);
      return Status();
    }
    if (interrupt_.raised()) return interrupted();
    bool ready = false;
    while (!ready && spins++ < kTries) {
      sched_yield();
      ready = true;
      if (pending_bytes_ > kManyBytes) HVD_RETURN_IF_ERROR(poll_links(0, &ready));
    }
    if (!ready) {
      const uint64_t since_ns = now_ns();
      HVD_RETURN_IF_ERROR(poll_links(kSliceMs, &ready));
      if (has_much && now_ns() - since_ns > kLongSleepNs) tries_ = std::max(1, tries_ / 2);
      if (!ready) HVD_RETURN_IF_ERROR(check_links());
    }
  }
}

void TcpMesh::poll_links_to(int peer) {
  for (const Link& link : used_links_to(peer)) {
    const int events = (link.incoming.empty() ? 0 : POLLIN) | (may_send(link) ? POLLOUT : 0);
    if (events != 0 && link.fd >= 0) polled_.push_back({link.fd, static_cast<short>(events), 0});
  }
}

// Until a link can move something, or the time is over.
Status TcpMesh::poll_links(int timeout_ms, bool* ready) {
  polled_.clear();
  for (const int step : steps_.busy()) {
    const int from = steps_.from(step), to = steps_.to(step);
    if (sends_to(to)) poll_links_to(to);
    if (receives_from(from) && !sends_to(from)) poll_links_to(from);  // once each
  }
  if (!opening_.empty()) polled_.push_back({data_links_->opener(), data_links_->events(), 0});
  if (interrupt_.event_fd >= 0) polled_.push_back({interrupt_.event_fd, POLLIN, 0});
  const int found = poll(polled_.data(), polled_.size(), timeout_ms);
  if (found < 0 && errno != EINTR)
    return Status(HVD_INTERNAL, std::string(operation_) + " over TCP: poll: " + text_of(errno));
  if (found > 0 && interrupt_.event_fd >= 0 && polled_.back().revents != 0) return interrupted();
  *ready = found != 0;  // a signal is looked into, too
  return Status();
}

// Of several links that share a slow way, one may get nothing through while the others do. So all links to a peer have
// to be silent. Acknowledgements that wait behind seconds of data get the time that the way takes.
Status TcpMesh::check_links() const {
  const uint64_t limit_ms = data_links_ == nullptr ? 0 : data_links_->lost_timeout_ms();
  for (int peer = 0; limit_ms > 0 && peer < size_; ++peer) {
    if (!sends_to(peer) && !receives_from(peer)) continue;
    std::optional<SignOfLife> last;
    for (const Link& one : used_links_to(peer)) {
      if (one.fd < 0) continue;
      const std::optional<SignOfLife> sign = sign_of_life(one.fd);
      if (!sign) continue;
      last = last ? SignOfLife{std::min(last->silent_ms, sign->silent_ms),
                               std::max(last->round_trip_ms, sign->round_trip_ms)}
                  : sign;
    }
    if (!last || last->silent_ms < std::max({limit_ms, kAskMs, kRoundTrips * last->round_trip_ms})) continue;
    const std::string seconds =
        std::to_string(last->silent_ms / 1000) + "." + std::to_string(last->silent_ms / 100 % 10);
    data_links_->note_silence();
    return lost(used_links_to(peer).front(), "is unreachable: its host has acknowledged nothing for " + seconds + " s");
  }
  return Status();
}

}  // namespace hvd
