// SPDX-License-Identifier: Apache-2.0
// The registry of communicators (step 7): which of them can carry data between the members of a process set, and how
// each is made. One row answers everything that is asked about one: the engine, the links that the start opens,
// `--check-build` and mpi_built(). The engine names no concrete class.
//
// A new communicator is one file or folder here, and one line in rows.h. A library that carries tensors on GPUs is a
// folder here, and one line in registry.cc. Any thread may call the functions of a row. They never block, except that
// `make` and `join` may wait for the other members, and they report failures only by what they return.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "communicators/device_communicator.h"
#include "platform/interrupt.h"
#include "reduction/helpers.h"
#include "reduction/kernels.h"
#include "transport/tcp/data_links.h"
#include "world/topology.h"

namespace hvd {

enum class Stores { kMeasured, kCached, kStreamed };  // how shared memory is written; tests force one

struct CommunicatorSettings {
  InstructionSet isa = InstructionSet::kBest;  // tests force the narrower ones
  Stores stores = Stores::kMeasured;
  int group_hosts = 0;               // at least so many hosts are a group (collectives/levels.h); 0: by their number
  std::shared_ptr<Helpers> helpers;  // of this rank; null: it has none
};

// The ranks that a communicator joins.
struct Members {
  std::vector<int> ranks;  // world ranks, ascending; a member is an index into it
  int member = 0;          // this rank's
  Topology topology;       // of the members

  int size() const { return static_cast<int>(ranks.size()); }
  int host() const { return topology.host_of(member); }
};
// The members that are `places` of these (ascending), this rank among them.
Members some_of(const Members& members, std::span<const int> places);

// The resources that a communicator is made from.
struct CommunicatorParts {
  std::byte* area = nullptr;  // shared_bytes of zeros, aligned to 4096, the same memory for all members of a host
  std::shared_ptr<DataLinks> links;
  CommunicatorSettings settings;
  Interrupt interrupt;
};

struct CommunicatorRow {
  const char* name;   // as HOROVOD_TRANSPORT and statistics spell it
  const char* title;  // as `--check-build` does
  const char* label;  // what the timeline puts before an operation's name
  // Why it is not to be had in this installation; empty if it is.
  std::string (*why_unavailable)();
  // Why it cannot join members that are spread like this; empty if it can.
  std::string (*why_unfit)(const Topology& members);
  // Zeroed memory that the members on this member's host need among them.
  size_t (*shared_bytes)(const Topology& members, int member);
  // True if these two members need a data link.
  bool (*needs_link)(const Topology& members, int a, int b);
  // Collective over the members.
  Status (*make)(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out);
};

// In the order in which `auto` tries them.
std::span<const CommunicatorRow* const> communicator_rows();

// The row for members that are spread like this. `wanted`: a name, or "auto". If `wanted` does not fit several members
// and `must` is set: HVD_UNAVAILABLE with the reason. If it does not fit otherwise: the first row that fits.
Status choose_communicator(const std::string& wanted, const Topology& members, bool must, const CommunicatorRow** out);

// The library that carries tensors of this place. Null: there is none.
const DeviceRow* device_row(hvd_place place);

// For rows: an answer that suits many.
inline std::string always_available() { return {}; }
inline size_t no_shared_bytes(const Topology&, int) { return 0; }
inline bool no_links(const Topology&, int, int) { return false; }

}  // namespace hvd
