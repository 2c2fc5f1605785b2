// SPDX-License-Identifier: Apache-2.0
// How negotiation frames travel: through a ring in the segment from a rank to its host's leader, and through a control
// socket between the leaders and rank 0. Sending never blocks: what does not fit waits in the process and goes out on
// the next pump(), for which the receiver of a ring rings the sender when it has made room, and Bells watches sockets.
// Any thread may send into a ring; callers serialise what they do with a socket.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

#include "host/segment.h"
#include "negotiation/wire.h"

namespace hvd {

// The producing end of a rank's request ring.
class RingSender {
 public:
  void attach(RequestRing* ring) { ring_ = ring; }
  void send(FrameKind kind, std::string_view payload);
  bool pump();  // true if bytes went into the ring, which the reader does not know of
  // Something waits here for room, and there is some. From any thread.
  bool can_pump() const;

 private:
  bool pump_locked();

  RequestRing* ring_ = nullptr;
  std::mutex mutex_;
  std::string unsent_;
  std::atomic<bool> waits_for_room_{false};
};

// The consuming end, in the leader.
class RingReceiver {
 public:
  void attach(RequestRing* ring) { ring_ = ring; }
  bool has_data() const;
  // Takes what is there; true if something was.
  bool receive();
  FrameParser& frames() { return frames_; }

 private:
  RequestRing* ring_ = nullptr;
  FrameParser frames_;
};

// A control socket; owns the descriptor.
class SocketLink {
 public:
  SocketLink(int fd, int peer);
  ~SocketLink();
  SocketLink(SocketLink&& other) noexcept;
  SocketLink& operator=(SocketLink&&) = delete;

  int fd() const { return fd_; }
  int peer() const { return peer_; }
  bool closed() const { return closed_; }
  bool wants_to_write() const { return !unsent_.empty(); }
  // Bytes since the start: given to send(), and of those taken by the kernel.
  uint64_t bytes_queued() const { return bytes_sent_ + unsent_.size(); }
  uint64_t bytes_sent() const { return bytes_sent_; }

  void send(FrameKind kind, std::string_view payload);
  void pump();
  // Takes what is there without blocking; sets closed() at the end of the stream. True where something was.
  bool receive();
  void finish_sending();  // half-close: the peer reads all that was sent, then the end
  FrameParser& frames() { return frames_; }

 private:
  int fd_;
  int peer_;
  bool closed_ = false;
  std::string unsent_;
  uint64_t bytes_sent_ = 0;
  FrameParser frames_;
};

}  // namespace hvd
