// SPDX-License-Identifier: Apache-2.0
// Names and sets of point-to-point operations (step 5).
//
// A message goes through the *pair* of its two ranks. A pair is a process set that need not be added: its number,
// which is negative, follows from its ranks. Sender and receiver meet there under the name of the message. Messages of
// one name keep their order: the next one begins when the last one is done.
//
// The coordinator decides about each message (they never take the fast way). So it can give a receive from any rank,
// which waits in the set that the ranks are chosen from, the first send that suits it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "negotiation/wire.h"

namespace hvd {

constexpr int kMaxRanksOfPairs = 65536;  // more would not have different numbers

constexpr bool is_pair(int32_t set) { return set < 0; }

constexpr int32_t pair_of(int a, int b) {
  const int64_t low = a < b ? a : b, high = a < b ? b : a;
  return static_cast<int32_t>(-1 - (high * (high - 1) / 2 + low));
}

// Ascending. Those of a number that a peer has made up may be no ranks of this world.
inline std::vector<int> ranks_of_pair(int32_t pair) {
  const int64_t index = -1 - static_cast<int64_t>(pair);
  int64_t high = 1;
  for (int64_t step = kMaxRanksOfPairs; step > 0; step /= 2) {
    if ((high + step) * (high + step - 1) / 2 <= index) high += step;
  }
  return {static_cast<int>(index - high * (high - 1) / 2), static_cast<int>(high)};
}

struct Message {
  int from = 0, to = 0;  // world ranks
  int32_t set = 0;       // the process set that it was sent in
  int32_t tag = 0;
};

// In the message's pair.
inline std::string name_of_message(const Message& message) {
  std::string name = "send from rank " + std::to_string(message.from) + " to rank " + std::to_string(message.to) +
                     ", tag " + std::to_string(message.tag);
  return message.set == 0 ? name : name + ", process set " + std::to_string(message.set);
}

inline bool parse_message(const std::string& name, Message* out) {
  out->set = 0;
  return std::sscanf(name.c_str(), "send from rank %d to rank %d, tag %d, process set %d", &out->from, &out->to,
                     &out->tag, &out->set) >= 3;
}

// True for the name of a message between the two ranks of the pair.
inline bool is_of_pair(const std::string& name, int32_t pair) {
  const std::vector<int> ranks = ranks_of_pair(pair);
  Message message;
  if (!parse_message(name, &message) || name != name_of_message(message)) return false;
  return (message.from == ranks[0] && message.to == ranks[1]) || (message.from == ranks[1] && message.to == ranks[0]);
}

// A receive from any rank, in the set that the ranks are chosen from.
inline std::string name_of_receive(int to, int32_t tag) {
  return "receive on rank " + std::to_string(to) + " from any rank, tag " + std::to_string(tag);
}

// An encoded descriptor begins with its kind. A message whose receive was from any rank is defined as a receive.
inline bool is_receive(const std::string& descriptor) {
  return !descriptor.empty() && static_cast<uint8_t>(descriptor[0]) == HVD_RECEIVE;
}
inline std::string with_kind(std::string descriptor, hvd_kind kind) {
  descriptor[0] = static_cast<char>(kind);
  return descriptor;
}

}  // namespace hvd
