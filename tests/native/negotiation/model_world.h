// SPDX-License-Identifier: Apache-2.0
// A state of model.h: ranks, members, leaders, boards and frames, its key, and the calls that are cut into steps.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "negotiation/leader.h"
#include "negotiation/member.h"
#include "negotiation/publisher.h"
#include "simulate/hosts.h"

namespace hvd::model {

struct Suspended {};  // thrown out of a call: one step has been made
struct Blocked {};    // ... it cannot go on before others have moved

struct Result {
  uint64_t number = 0;
  std::string text = {};
};
using Past = std::vector<Result>;

// The call that runs now.
struct Replay {
  Past past;
  bool to_the_end = false;  // the whole call is one step
  size_t next = 0;
  bool moved = false;

  // `is_step`: others may move before it. Other operations belong to the step before.
  template <class Operation>
  Result operate(bool is_step, Operation&& operation) {
    if (next < past.size()) return past[next++];
    if (is_step && std::exchange(moved, true) && !to_the_end) throw Suspended();
    Result result = operation();
    past.push_back(result);
    ++next;
    return result;
  }
};

// An object and its part of a state's key, hashed; shared by all states until it changes.
template <class Value>
struct Kept {
  Kept(Value its_value, const std::string& text) : value(std::move(its_value)), key(std::hash<std::string>()(text)) {}
  Value value;
  size_t key;
};
template <class Value>
using KeptPtr = std::shared_ptr<const Kept<Value>>;

inline std::string key_of(const PlainHost& host) {
  Writer text;
  for (const PlainHost::Entry& entry : host.entries) {
    text.put(entry.word).put(entry.members).put(entry.set).put_string(entry.definition).put_string(entry.error);
    for (const uint64_t since : entry.rows) text.put(static_cast<uint8_t>(since));
  }
  for (const PlainHost::Rank& rank : host.ranks) {
    text.put(rank.cursor).put(rank.joined).put(rank.ring.size());
    for (const Frame& frame : rank.ring) text.put(frame.kind).put_string(frame.payload);
  }
  for (const Record& record : host.log) text.put(record.kind).put(record.id);
  return text.take();
}

struct MemberCall {
  enum class Kind : uint8_t { kNone, kSubmit, kApply, kJoin } kind = Kind::kNone;
  int argument = 0;
  Past past = {};
};
struct Announcing {  // of an entry that the rank has completed
  Completed entry;
  Past past = {};
};
struct LeaderCall {
  enum class Kind : uint8_t { kNone, kRing, kLink, kSpeak, kSpeakLate, kRetired, kPassOn } kind = Kind::kNone;
  uint32_t from = 0;  // local rank, or host
  Frame frame = {};
  Past past = {};
};

template <class Plan>
struct World {
  struct Rank {
    Plan plan;  // what its program has come to
    size_t read = 0;
    MemberCall call;
    std::vector<Announcing> announcing;
  };
  std::vector<Rank> ranks;
  std::vector<LeaderCall> leading;  // by host
  std::vector<KeptPtr<Member>> members;
  std::vector<KeptPtr<Leader>> leaders;
  std::vector<KeptPtr<PlainHost>> hosts;
  std::vector<std::vector<Frame>> up, down;  // by host

  std::string key() const {
    Writer text;
    const auto put_frame = [&](const Frame& frame) { text.put(frame.kind).put_string(frame.payload); };
    const auto put_past = [&](const Past& past) {
      text.put(static_cast<uint8_t>(past.size()));
      for (const Result& result : past) text.put(result.number).put_string(result.text);
    };
    for (const Rank& rank : ranks) {
      rank.plan.put(&text);
      text.put(rank.read).put(rank.call.kind).put(rank.call.argument);
      put_past(rank.call.past);
      text.put(static_cast<uint8_t>(rank.announcing.size()));
      for (const Announcing& one : rank.announcing) {
        text.put(one.entry.id);
        put_past(one.past);
      }
    }
    for (const LeaderCall& call : leading) {
      text.put(call.kind).put(call.from);
      put_frame(call.frame);
      put_past(call.past);
    }
    for (const auto& member : members) text.put(member->key);
    for (const auto& leader : leaders) text.put(leader->key);
    for (const auto& host : hosts) text.put(host->key);
    for (const auto* queues : {&up, &down}) {
      for (const auto& queue : *queues) {
        text.put(static_cast<uint8_t>(queue.size()));
        for (const Frame& frame : queue) put_frame(frame);
      }
    }
    return text.take();
  }
};

struct Contributed final : Contribution {
  int32_t set = 0;
  std::string key;   // what it is submitted under
  std::string text;  // its descriptor
};

}  // namespace hvd::model
