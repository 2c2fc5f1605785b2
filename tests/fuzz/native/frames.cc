// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the payload of every kind of frame. The first byte is the kind, the rest the payload.
// What is accepted must survive being written and read again.
#include "negotiation/frames.h"

#include "input.h"

using namespace hvd;

namespace {

constexpr int kWorldSize = 4;

void check_descriptor(std::string_view bytes) {
  Descriptor descriptor, again;
  if (!Descriptor::decode(bytes, &descriptor)) return;
  require(descriptor.encode() == bytes);
  require(Descriptor::decode(descriptor.encode(), &again));
  require(again.tensors == descriptor.tensors);
  for (const TensorSpec& tensor : descriptor.tensors) require(tensor.count() >= 0);
  // Texts for people, of what differs between this and a plain one.
  Descriptor plain;
  plain.tensors = {{HVD_FLOAT32, {2, 3}}};
  Descriptor of_same_length = plain;
  of_same_length.tensors.resize(descriptor.tensors.size(), plain.tensors[0]);
  for (const Descriptor* other : {&plain, &of_same_length, &descriptor}) {
    difference(*other, descriptor);
    difference(descriptor, *other);
  }
}

void check_payload(FrameKind kind, std::string_view payload) {
  RequestFrame request;
  RefuseFrame refusal;
  CompleteFrame complete;
  WhoWaits waiting;
  std::vector<uint32_t> ids;
  RecalledFrame recalled;
  JoinFrame join;
  AbortFrame abort;
  std::vector<Decision> decisions;
  std::vector<RetireAnswer> answers;
  std::vector<HostReady> ready;
  std::string text;
  int rank = -1;
  uint32_t id = 0;
  switch (kind) {
    case FrameKind::kRequest:
      if (!parse_request(payload, kWorldSize, &request)) return;
      for (const Requester& from : request.ranks) require(from.rank >= 0 && from.rank < kWorldSize);
      require(!request.ranks.empty() && request.name.size() <= kMaxNameBytes);
      check_descriptor(request.descriptor);
      require(parse_request(request_payload(request), kWorldSize, &request));
      return;
    case FrameKind::kRefuse:
      if (!parse_refuse(payload, kWorldSize, &refusal)) return;
      require(refusal.rank >= 0 && refusal.rank < kWorldSize && refusal.name.size() <= kMaxNameBytes);
      require(refuse_payload(refusal) == payload);
      return;
    case FrameKind::kComplete:
      if (!parse_complete(payload, &complete)) return;
      require(complete.id < kMaxEntries);
      require(parse_complete(complete_payload(complete), &complete));
      return;
    case FrameKind::kWaiting:
      if (!parse_waiting(payload, kWorldSize, &waiting)) return;
      for (const Waiting& item : waiting.entries) {
        require(item.id < kMaxEntries);
        for (const int waits : item.ranks) require(waits >= 0 && waits < kWorldSize);
      }
      for (const int rank : waiting.blocked) require(rank >= 0 && rank < kWorldSize);
      require(waiting_payload(waiting) == payload);
      return;
    case FrameKind::kHostReady:
      if (!parse_host_ready(payload, kWorldSize, &ready)) return;
      for (const HostReady& entry : ready) {
        require(entry.id < kMaxEntries && entry.last_rank >= -1 && entry.last_rank < kWorldSize);
      }
      require(host_ready_payload(ready) == payload);
      return;
    case FrameKind::kRecalled:
      if (!parse_recalled(payload, kWorldSize, &recalled)) return;
      require(recalled.id < kMaxEntries);
      require(parse_recalled(recalled_payload(recalled), kWorldSize, &recalled));
      return;
    case FrameKind::kJoin:
      if (!parse_join(payload, kWorldSize, &join)) return;
      require(join.rank >= 0 && join.rank < kWorldSize && join.counted.size() <= kMaxEntries);
      require(parse_join(join_payload(join), kWorldSize, &join));
      return;
    case FrameKind::kLeave:
      if (!parse_leave(payload, kWorldSize, &rank)) return;
      require(rank >= 0 && rank < kWorldSize && leave_payload(rank) == payload);
      return;
    case FrameKind::kRecall:
      if (!parse_recall(payload, &id)) return;
      require(id < kMaxEntries && recall_payload(id) == payload);
      return;
    case FrameKind::kRecords:
      if (!parse_records(payload, kWorldSize, &decisions)) return;
      for (const Decision& decision : decisions) {
        require(decision.id <= kMaxEntries);
        if (Failure failure; parse_failure(decision.payload, kWorldSize, &failure)) {
          require(!failure.why.ok() && failure_payload(failure) == decision.payload);
        }
      }
      require(parse_records(records_payload(decisions), kWorldSize, &decisions));
      return;
    case FrameKind::kMayRetire:
      if (parse_ids(payload, &ids)) require(parse_ids(ids_payload(ids), &ids));
      if (!parse_may_retire(payload, &answers)) return;
      for (const RetireAnswer& answer : answers) require(answer.id < kMaxEntries);
      require(parse_may_retire(may_retire_payload(answers), &answers));
      return;
    case FrameKind::kRetired:
      if (parse_ids(payload, &ids)) require(parse_ids(ids_payload(ids), &ids));
      return;
    case FrameKind::kStackWanted:
      if (!parse_stack_wanted(payload, kWorldSize, &rank)) return;
      require(rank >= 0 && rank < kWorldSize && stack_wanted_payload(rank) == payload);
      return;
    case FrameKind::kStack:
      if (!parse_stack(payload, kWorldSize, &rank, &text)) return;
      require(rank >= 0 && rank < kWorldSize && text.size() <= kMaxTextBytes);
      require(stack_payload(rank, text) == payload);
      return;
    case FrameKind::kAbort:
      if (!parse_abort(payload, kWorldSize, &abort)) return;
      require(abort.code >= HVD_INVALID_ARGUMENT && abort.rank >= -1 && abort.rank < kWorldSize);
      return;
    case FrameKind::kBeat:
      return;
  }
  check_descriptor(payload);
}

void check_framing(FrameKind kind, const std::string& payload) {
  const std::string frame = make_frame(kind, payload);
  FrameParser parser;
  FrameKind kind_read{};
  std::string payload_read;
  parser.feed(frame.data(), frame.size() - 1);
  require(!parser.next(&kind_read, &payload_read));
  parser.feed(frame.data() + frame.size() - 1, 1);
  require(parser.next(&kind_read, &payload_read) && kind_read == kind && payload_read == payload);
  parser.reject();
  require(parser.broken() && !parser.next(&kind_read, &payload_read));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // A copy of just these bytes, so that the sanitizer sees a read beyond them.
  const std::string payload(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto kind = static_cast<FrameKind>(data[0]);
  check_payload(kind, payload);
  check_framing(kind, payload);
  return 0;
}
