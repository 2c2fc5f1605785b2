// SPDX-License-Identifier: Apache-2.0
// DataLinks: the connected sockets of one rank for data, by the world rank at the other end (step 7). Every mesh takes
// its sockets from here. A link is opened when a mesh first uses it: the *opener*, in Python, which alone knows the
// job's secret, connects and authenticates, and hands the sockets over.
//
// Owns the sockets: they are closed with the last mesh that holds them. Meshes over the same sockets, of a set and of
// some of its members, are used one after the other, in an order that is the same on any two members. One thread at a
// time. Nothing here blocks.
//
// To the opener, over a SOCK_SEQPACKET socket: i32 rank. Back: i32 rank and the sockets (SCM_RIGHTS), or no socket and
// the reason as text. Each side asks for a link by itself: the opener of the higher rank connects, the opener of the
// lower rank hands over the accepted socket.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "platform/status.h"

namespace hvd {

class DataLinks {
 public:
  // sockets[r]: to rank r, in the same order at both ends; empty if there is no link yet. Without an opener (-1) there
  // will be none. With one, every pair has `links_per_peer`.
  explicit DataLinks(std::vector<std::vector<int>> sockets, int opener = -1, int links_per_peer = 0)
      : of_rank_(std::move(sockets)), opener_(opener), links_per_peer_(links_per_peer) {}
  ~DataLinks();
  DataLinks(const DataLinks&) = delete;
  DataLinks& operator=(const DataLinks&) = delete;

  // A peer's machine that acknowledges nothing for so long is lost; 0: never.
  void lose_after(uint64_t timeout_ms) { lost_timeout_ms_ = timeout_ms; }
  uint64_t lost_timeout_ms() const { return lost_timeout_ms_; }
  // A peer has acknowledged nothing for that long: this process' own finding, not the echo of another rank's end.
  void note_silence() { met_silence_ = true; }
  bool met_silence() const { return met_silence_; }

  // Those that are open.
  const std::vector<int>& to(int rank) const;
  bool opens_more() const { return opener_ >= 0; }
  int links_per_peer() const { return links_per_peer_; }

  // Asks the opener for the links to a rank; once is enough.
  Status want(int rank);
  // Takes what the opener has for us. Fails as HVD_RANK_LOST with the rank to which no link can be opened.
  Status take();
  // To be polled for these events while something is wanted that has not come.
  int opener() const { return opener_; }
  short events() const;

 private:
  Status ask();
  Status add(int rank, std::vector<int> sockets);

  std::vector<std::vector<int>> of_rank_;
  const int opener_;
  const int links_per_peer_;
  uint64_t lost_timeout_ms_ = 0;
  bool met_silence_ = false;
  std::vector<bool> wanted_;
  std::deque<int32_t> unasked_;  // for which the opener's socket had no room
};

}  // namespace hvd
