// SPDX-License-Identifier: Apache-2.0
// Receives from any rank: which message each of them gets.
#include <algorithm>
#include <utility>

#include "negotiation/coordinator/coordinator.h"

namespace hvd {

// The message that has waited longest, if there is one. False: the rank may not ask.
bool Coordinator::receive_from_any(Receive receive, Effects* effects) {
  const int to = receive.from.rank;
  if (!is_member(to, receive.set) || has_joined(to)) return false;
  const auto is_same = [&](const Receive& other) { return other.set == receive.set && other.name == receive.name; };
  if (std::ranges::any_of(receives_, is_same)) return false;
  last_event_ = receive.since;
  size_t oldest = Ids::kNoEntry;
  for (const int from : sets_.at(receive.set).ranks) {
    const auto pair = from == to ? sets_.end() : sets_.find(pair_of(from, to));
    if (pair == sets_.end()) continue;
    const auto found = pair->second.by_name.find(name_of_message({from, to, receive.set, receive.tag}));
    if (found == pair->second.by_name.end()) continue;
    const Entry& entry = entries_[found->second];
    if (!entry.slow.contains(from) || entry.slow.contains(to)) continue;
    if (oldest == Ids::kNoEntry || entry.since < entries_[oldest].since) oldest = found->second;
  }
  receives_.push_back(std::move(receive));
  if (oldest != Ids::kNoEntry) match(oldest, effects);
  return true;
}

// Gives the message to the first receive that waits for it, if nothing but its sender has come: counts the receive as
// its rank's request.
void Coordinator::match(size_t index, Effects* effects) {
  Entry& entry = entries_[index];
  Message message;
  parse_message(entry.name, &message);
  if (!entry.slow.contains(message.from) || entry.slow.contains(message.to)) return;
  const auto awaited = std::ranges::find_if(receives_, [&](const Receive& receive) {
    return receive.from.rank == message.to && receive.set == message.set && receive.tag == message.tag;
  });
  if (awaited == receives_.end()) return;
  entry.receive = std::move(*awaited);
  receives_.erase(awaited);
  Descriptor descriptor;
  Descriptor::decode(entry.receive->descriptor, &descriptor);
  descriptor.kind = HVD_SEND;
  descriptor.process_set = entry.set;
  descriptor.root_rank = message.from;
  const double now = entry.receive->since;
  add_slow({entry.receive->from}, entry.set, entry.name, Answer{descriptor.encode(), ""}, now, effects);
}

}  // namespace hvd
