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
  std::vector<uint32_t> ids;
  RecalledFrame recalled;
  JoinFrame join;
  AbortFrame abort;
  std::vector<Decision> decisions;
  std::vector<RetireAnswer> answers;
  std::string text;
  int rank = -1;
  uint32_t id = 0;
  switch (kind) {
    case FrameKind::kRequest:
    case FrameKind::kRefuse:
      if (!parse_request(kind, payload, kWorldSize, &request)) return;
      require(request.rank >= 0 && request.rank < kWorldSize && request.name.size() <= kMaxNameBytes);
      if (kind == FrameKind::kRequest) check_descriptor(request.body);
      return;
    case FrameKind::kHostReady:
      if (!parse_ids(payload, &ids)) return;
      for (const uint32_t entry : ids) require(entry < kMaxEntries);
      require(payload.size() == 4 + 4 * ids.size());
      return;
    case FrameKind::kRecalled:
      if (!parse_recalled(payload, &recalled)) return;
      require(recalled.id < kMaxEntries);
      require(parse_recalled(recalled_payload(recalled), &recalled));
      return;
    case FrameKind::kJoin:
      if (!parse_join(payload, kWorldSize, &join)) return;
      require(join.rank >= 0 && join.rank < kWorldSize && join.counted.size() <= kMaxEntries);
      require(parse_join(join_payload(join), kWorldSize, &join));
      return;
    case FrameKind::kLeave:
      require(!parse_leave(payload, kWorldSize, &rank) || (rank >= 0 && rank < kWorldSize));
      return;
    case FrameKind::kRecall:
      require(!parse_recall(payload, &id) || id < kMaxEntries);
      return;
    case FrameKind::kRecords:
      if (!parse_records(payload, kWorldSize, &decisions)) return;
      for (const Decision& decision : decisions) require(decision.id <= kMaxEntries);
      require(parse_records(records_payload(decisions), kWorldSize, &decisions));
      return;
    case FrameKind::kMayRetire:
      if (parse_ids(payload, &ids)) require(parse_ids(ids_payload(ids), &ids));
      if (!parse_may_retire(payload, &answers)) return;
      for (const RetireAnswer& answer : answers) require(answer.id < kMaxEntries);
      return;
    case FrameKind::kRetired:
      if (parse_ids(payload, &ids)) require(parse_ids(ids_payload(ids), &ids));
      return;
    case FrameKind::kStackWanted:
      require(!parse_stack_wanted(payload, kWorldSize, &rank) || (rank >= 0 && rank < kWorldSize));
      return;
    case FrameKind::kStack:
      if (!parse_stack(payload, kWorldSize, &rank, &text)) return;
      require(rank >= 0 && rank < kWorldSize && text.size() <= kMaxTextBytes);
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
