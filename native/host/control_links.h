// SPDX-License-Identifier: Apache-2.0
// The control links of a host's leader (step 5): rank 0 has one to every other host, any other leader one to rank 0; or
// to some of them, by way of others (world/control_tree.h).
// Owns the sockets. Under the driver's token, except messages().
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <string_view>
#include <vector>

#include "host/link.h"
#include "negotiation/ports.h"

namespace hvd {

class ControlLinks final : public Uplink {
 public:
  struct Link {
    SocketLink socket;
    int host;
    bool is_below;
  };

  // `is_below`: rank 0's word passes this process on its way there.
  void add(int fd, int peer, int host, bool is_below);
  bool empty() const { return links_.empty(); }
  size_t size() const { return links_.size(); }
  std::deque<Link>& all() { return links_; }

  void send(int host, FrameKind kind, std::string_view payload) override;
  void end_batch() override;
  void send_to_all(FrameKind kind, std::string_view payload);

  // Blocks until all that belongs to the next batch has left, or `interrupted()`. Rank 0, or a relay, may block in a
  // batch only when the others can know of it. Records after the batch's CLOSE may wait, because the others may be in
  // the batch by now and read nothing.
  void hand_out_batch(const std::function<bool()>& interrupted);
  // Blocks for a moment at most, until something can be read. False: there is no open link.
  bool wait_to_read(int timeout_ms);
  void finish_sending();

  void count_received() { messages_.fetch_add(1, std::memory_order_relaxed); }
  // Received, and sent to be applied. Any thread.
  uint64_t messages() const { return messages_.load(std::memory_order_relaxed); }

 private:
  std::deque<Link> links_;
  std::vector<Link*> by_host_;
  std::deque<std::vector<uint64_t>> batches_;  // to come: what each link must have sent before
  std::atomic<uint64_t> messages_{0};
};

}  // namespace hvd
