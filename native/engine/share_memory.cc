// SPDX-License-Identifier: Apache-2.0
#include "engine/share_memory.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "platform/clock.h"
#include "platform/descriptor_passing.h"
#include "platform/fault_point.h"
#include "platform/process_state.h"

namespace hvd {
namespace {

using Links = std::vector<const EngineOptions::Link*>;

struct Sharing {
  const HostMap& map;
  const Links links;
  const size_t area_bytes;
  const uint64_t deadline_ns;
  EngineOptions* options;

  uint32_t local_size() const { return static_cast<uint32_t>(map.ranks_here.size()); }
};

// Written before "attached": after "go" all can be read.
void write_pid(const HostMap& map, Segment* segment) {
  segment->rank(map.local_rank).pid_namespace.store(pid_namespace());
  segment->rank(map.local_rank).pid.store(static_cast<uint32_t>(getpid()));
}

// Leader -> follower: the memfd, and with several hosts what wakes the leader. Follower -> leader: one byte, attached.
// Leader -> follower: one byte, go.
Status hand_out(const Sharing& sharing, std::unique_ptr<Segment>* out) {
  EngineOptions& options = *sharing.options;
  HVD_RETURN_IF_ERROR(Segment::create(options.generation, sharing.local_size(), sharing.area_bytes, out));
  write_pid(sharing.map, out->get());
  std::vector<int> descriptors{(*out)->memfd()};
  if (sharing.map.spans_hosts()) {
    HVD_RETURN_IF_ERROR(PollBell::make(&options.poll_bell));
    for (size_t i = 0; i < PollBell::kSleepers; ++i) descriptors.push_back(options.poll_bell->fd(i));
  }
  for (const auto* link : sharing.links) {
    for (const int fd : descriptors) HVD_RETURN_IF_ERROR(send_descriptor(link->fd, fd, link->peer));
  }
  fault_point("attach");
  for (const auto* link : sharing.links) {
    HVD_RETURN_IF_ERROR(receive_byte(link->fd, link->peer, sharing.deadline_ns));
  }
  for (const auto* link : sharing.links) HVD_RETURN_IF_ERROR(send_byte(link->fd, link->peer));
  return {};
}

Status receive_poll_bell(const Sharing& sharing, const EngineOptions::Link& leader) {
  int fds[PollBell::kSleepers] = {-1, -1};
  Status status;
  for (int& fd : fds) {
    if (status.ok()) status = receive_descriptor(leader.fd, leader.peer, sharing.deadline_ns, &fd);
  }
  sharing.options->poll_bell = std::make_shared<const PollBell>(fds);
  return status;
}

Status attach(const Sharing& sharing, std::unique_ptr<Segment>* out) {
  const EngineOptions::Link& leader = *sharing.links[0];
  int memfd = -1;
  HVD_RETURN_IF_ERROR(receive_descriptor(leader.fd, leader.peer, sharing.deadline_ns, &memfd));
  if (sharing.map.spans_hosts()) {
    const Status status = receive_poll_bell(sharing, leader);
    if (!status.ok()) close(memfd);
    HVD_RETURN_IF_ERROR(status);
  }
  fault_point("attach");
  HVD_RETURN_IF_ERROR(
      Segment::attach(memfd, sharing.options->generation, sharing.local_size(), sharing.area_bytes, out));
  write_pid(sharing.map, out->get());
  HVD_RETURN_IF_ERROR(send_byte(leader.fd, leader.peer));
  return receive_byte(leader.fd, leader.peer, sharing.deadline_ns);
}

}  // namespace

// A failure on one rank of the host is told to all of them.
Status share_memory(const HostMap& map, size_t area_bytes, EngineOptions* options, std::shared_ptr<Segment>* out) {
  Links local;
  for (const EngineOptions::Link& link : options->links) {
    if (link.purpose == HVD_LINK_LOCAL) local.push_back(&link);
  }
  const uint64_t deadline_ns = now_ns() + options->settings.start_timeout_ms * 1000000;
  const Sharing sharing{map, std::move(local), area_bytes, deadline_ns, options};
  std::unique_ptr<Segment> segment;
  Status status;
  if (sharing.links.size() != (map.is_leader() ? sharing.local_size() - 1 : 1)) {
    status = {HVD_INVALID_ARGUMENT,
              "expects a local link to each rank of the host, got " + std::to_string(sharing.links.size())};
  } else {
    status = map.is_leader() ? hand_out(sharing, &segment) : attach(sharing, &segment);
  }
  if (status.ok()) {
    *out = std::move(segment);
    return {};
  }
  const bool names_it = status.text().starts_with("rank ");
  const Status cause(status.code(), (names_it ? "" : "rank " + std::to_string(map.rank) + " ") + status.text(),
                     status.failed_rank());
  for (const auto* link : sharing.links) send_refusal(link->fd, cause);
  return Status(cause).while_doing("the ranks of this host cannot share memory");
}

}  // namespace hvd
