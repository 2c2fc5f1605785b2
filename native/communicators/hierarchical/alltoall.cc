// SPDX-License-Identifier: Apache-2.0
#include "communicators/hierarchical/alltoall.h"

namespace hvd {

HierarchicalAlltoall::HierarchicalAlltoall(const Members& members, const std::vector<int>& by_host,
                                           const Kernels& kernels, Inner inner, std::span<const int64_t> bytes)
    : members_(members),
      by_host_(by_host),
      kernels_(kernels),
      inner_(inner),
      bytes_(bytes),
      inputs_(size()),
      outputs_(size()),
      collected_(size()),
      arrivals_(size()) {
  for (int m = 0; m < size(); ++m) {
    inputs_.add(member(), m, length(member(), m));
    outputs_.add(m, member(), length(m, member()));
  }
}

Status HierarchicalAlltoall::run(const std::byte* input, std::byte* output) {
  Bytes collected, arrived;
  HVD_RETURN_IF_ERROR(exchange_inside(input, output));
  HVD_RETURN_IF_ERROR(send_up(input, &collected));
  if (leads()) HVD_RETURN_IF_ERROR(send_across(collected, &arrived));
  return hand_down(arrived, output);
}

Status HierarchicalAlltoall::exchange_inside(const std::byte* input, std::byte* output) {
  Pieces sent(size()), received(size());
  std::vector<int64_t> matrix;
  for (const int local : locals()) {
    sent.add(member(), local, length(member(), local));
    received.add(local, member(), length(local, member()));
    for (const int destination : locals()) matrix.push_back(length(local, destination));
  }
  Bytes outgoing(static_cast<size_t>(sent.bytes())), incoming(static_cast<size_t>(received.bytes()));
  for (const int local : locals()) {
    copy(outgoing.data() + sent.at(member(), local), input + inputs_.at(member(), local), length(member(), local));
  }
  HVD_RETURN_IF_ERROR(inner_.inside.alltoall(outgoing.data(), matrix, incoming.data()));
  for (const int local : locals()) {
    copy(output + outputs_.at(local, member()), incoming.data() + received.at(local, member()),
         length(local, member()));
  }
  return {};
}

// Data that leaves the host goes to its leader.
Status HierarchicalAlltoall::send_up(const std::byte* input, Bytes* collected) {
  Pieces leaving(size());
  std::vector<int64_t> to_leader(locals().size() * locals().size(), 0);
  for (size_t place = 0; place < locals().size(); ++place) {
    for (const int destination : by_host_) {
      if (topology().host_of(destination) == here()) continue;
      const int local = locals()[place];
      collected_.add(local, destination, length(local, destination));
      to_leader[place * locals().size() + kLeader] += length(local, destination);
      if (local == member()) leaving.add(local, destination, length(local, destination));
    }
  }
  Bytes packed(static_cast<size_t>(leaving.bytes()));
  for (int destination = 0; destination < size(); ++destination) {
    if (!leaving.has(member(), destination)) continue;
    copy(packed.data() + leaving.at(member(), destination), input + inputs_.at(member(), destination),
         length(member(), destination));
  }
  collected->resize(leads() ? static_cast<size_t>(collected_.bytes()) : 0);
  return inner_.inside.alltoall(packed.data(), to_leader, collected->data());
}

// From leader to leader.
Status HierarchicalAlltoall::send_across(const Bytes& collected, Bytes* arrived) {
  Pieces across(size());
  const int hosts = topology().hosts();
  std::vector<int64_t> matrix(static_cast<size_t>(hosts * hosts), 0);
  for (const int source : by_host_) {
    for (const int destination : by_host_) {
      const int from = topology().host_of(source), to = topology().host_of(destination);
      if (from == to) continue;
      matrix[static_cast<size_t>(from * hosts + to)] += length(source, destination);
    }
  }
  for (int other = 0; other < hosts; ++other) {
    if (other == here()) continue;
    for (const int local : locals()) {
      for (const int far : topology().ranks_of(other)) across.add(local, far, length(local, far));
    }
    for (const int far : topology().ranks_of(other)) {
      for (const int local : locals()) arrivals_.add(far, local, length(far, local));
    }
  }
  Bytes going(static_cast<size_t>(across.bytes()));
  for (const int source : locals()) {
    for (int destination = 0; destination < size(); ++destination) {
      if (!across.has(source, destination)) continue;
      copy(going.data() + across.at(source, destination), collected.data() + collected_.at(source, destination),
           length(source, destination));
    }
  }
  arrived->resize(static_cast<size_t>(arrivals_.bytes()));
  return inner_.between->alltoall(going.data(), matrix, arrived->data());
}

// From the leader to its host: for each member what came from elsewhere, by source.
Status HierarchicalAlltoall::hand_down(const Bytes& arrived, std::byte* output) {
  Pieces down(size()), own(size());
  std::vector<int64_t> from_leader(locals().size() * locals().size(), 0);
  for (size_t place = 0; place < locals().size(); ++place) {
    for (const int source : by_host_) {
      if (topology().host_of(source) == here()) continue;
      const int64_t piece = length(source, locals()[place]);
      down.add(source, locals()[place], piece);
      from_leader[kLeader * locals().size() + place] += piece;
      if (locals()[place] == member()) own.add(source, member(), piece);
    }
  }
  Bytes handed(leads() ? static_cast<size_t>(down.bytes()) : 0), taken(static_cast<size_t>(own.bytes()));
  for (int source = 0; leads() && source < size(); ++source) {
    for (const int local : locals()) {
      if (!down.has(source, local)) continue;
      copy(handed.data() + down.at(source, local), arrived.data() + arrivals_.at(source, local), length(source, local));
    }
  }
  HVD_RETURN_IF_ERROR(inner_.inside.alltoall(handed.data(), from_leader, taken.data()));
  for (int source = 0; source < size(); ++source) {
    if (!own.has(source, member())) continue;
    copy(output + outputs_.at(source, member()), taken.data() + own.at(source, member()), length(source, member()));
  }
  return {};
}

}  // namespace hvd
