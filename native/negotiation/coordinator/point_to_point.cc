// SPDX-License-Identifier: Apache-2.0
// Receives from any rank: which message each of them gets.
#include <algorithm>
#include <utility>

#include "negotiation/coordinator/coordinator.h"
#include "negotiation/frames.h"

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
  if (oldest == Ids::kNoEntry) {
    receives_.push_back(std::move(receive));
  } else {
    match(oldest, std::move(receive), effects);
  }
  return true;
}

// Counts the receive as its rank's request for this message.
void Coordinator::match(size_t index, Receive receive, Effects* effects) {
  Entry& entry = entries_[index];
  Message message;
  Descriptor descriptor;
  parse_message(entry.name, &message);
  Descriptor::decode(receive.descriptor, &descriptor);
  descriptor.kind = HVD_SEND;
  descriptor.process_set = entry.set;
  descriptor.root_rank = message.from;
  const Requester from = receive.from;
  entry.receive = std::move(receive);
  add_slow({from}, entry.set, entry.name, Answer{descriptor.encode(), ""}, entry.receive->since, effects);
}

void Coordinator::match_if_awaited(const std::string& name, int32_t pair, Effects* effects) {
  Message message;
  const auto found = sets_[pair].by_name.find(name);
  if (found == sets_[pair].by_name.end() || !parse_message(name, &message)) return;
  const Entry& entry = entries_[found->second];
  if (!entry.slow.contains(message.from) || entry.slow.contains(message.to)) return;
  const auto awaited = std::ranges::find_if(receives_, [&](const Receive& receive) {
    return receive.from.rank == message.to && receive.set == message.set && receive.tag == message.tag;
  });
  if (awaited == receives_.end()) return;
  Receive receive = std::move(*awaited);
  receives_.erase(awaited);
  match(found->second, std::move(receive), effects);
}

// The receiver knows the call by another name than the sender.
void Coordinator::fail_message(size_t index, Status why, Effects* effects) {
  const Receive receive = *entries_[index].receive;
  Message message;
  parse_message(entries_[index].name, &message);
  std::string payload = failure_payload({receive.set, receive.name, why, {receive.from.rank}});
  fail(index, std::move(why), {message.from}, effects);
  ids_.run_once({{RecordKind::kError, kNoId, true, std::move(payload)}}, effects);
}

}  // namespace hvd
