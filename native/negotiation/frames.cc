// SPDX-License-Identifier: Apache-2.0
#include "negotiation/frames.h"

namespace hvd {
namespace {

constexpr uint8_t kResetAndRecalled = 2;

bool is_whole(const Reader& reader) { return !reader.broken() && reader.at_end(); }

bool is_rank(int rank, int world_size) { return rank >= 0 && rank < world_size; }

bool is_rank_or_none(int rank, int world_size) { return rank == -1 || is_rank(rank, world_size); }

bool read_ranks(Reader* reader, int world_size, std::vector<int>* ranks) {
  const auto length = reader->get<uint32_t>();
  ranks->clear();
  for (uint32_t i = 0; i < length && !reader->broken(); ++i) {
    ranks->push_back(reader->get<int32_t>());
    if (!is_rank(ranks->back(), world_size)) return false;
  }
  return true;
}

void put_ranks(Writer* payload, const std::vector<int>& ranks) {
  payload->put(static_cast<uint32_t>(ranks.size()));
  for (const int rank : ranks) payload->put(static_cast<int32_t>(rank));
}

bool is_name(std::string_view name) { return !name.empty() && name.size() <= kMaxNameBytes; }

bool read_descriptor(std::string_view bytes, int32_t* set) {
  Descriptor descriptor;
  if (!Descriptor::decode(bytes, &descriptor)) return false;
  *set = descriptor.process_set;
  return true;
}

bool is_record(const Decision& decision, int world_size) {
  Definition definition;
  Failure failure;
  switch (decision.kind) {
    case RecordKind::kDefine:
      return decision.id < kMaxEntries && parse_definition(decision.payload, &definition);
    case RecordKind::kReady:
      return decision.id < kMaxEntries && decision.payload.empty() && is_rank_or_none(decision.last_rank, world_size);
    case RecordKind::kRetire:
      return decision.id < kMaxEntries && decision.payload.empty();
    case RecordKind::kError:
      return decision.id < kMaxEntries && parse_failure(decision.payload, world_size, &failure);
    case RecordKind::kClose:
      return decision.id == 0 && decision.payload.empty();
    case RecordKind::kLeave:
    case RecordKind::kJoin:
      return decision.id < static_cast<uint32_t>(world_size) && decision.payload.empty() && !decision.reset;
    case RecordKind::kNone:
      break;
  }
  return false;
}

}  // namespace

bool parse_request(std::string_view payload, int world_size, RequestFrame* out) {
  Reader reader(payload);
  const auto length = reader.get<uint32_t>();
  out->ranks.clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    const int rank = reader.get<int32_t>();
    out->ranks.push_back({rank, reader.get<uint8_t>() != 0});
    if (!is_rank(rank, world_size)) return false;
  }
  out->name = reader.get_string();
  out->descriptor = reader.get_string();
  return is_whole(reader) && !out->ranks.empty() && is_name(out->name) && read_descriptor(out->descriptor, &out->set);
}

std::string request_payload(const RequestFrame& request) {
  Writer payload;
  payload.put(static_cast<uint32_t>(request.ranks.size()));
  for (const Requester& from : request.ranks) {
    payload.put(static_cast<int32_t>(from.rank)).put(static_cast<uint8_t>(from.waits));
  }
  payload.put_string(request.name).put_string(request.descriptor);
  return payload.take();
}

bool parse_refuse(std::string_view payload, int world_size, RefuseFrame* out) {
  Reader reader(payload);
  out->rank = reader.get<int32_t>();
  out->set = reader.get<int32_t>();
  out->name = reader.get_string();
  out->why = reader.get_string();
  return is_whole(reader) && is_rank(out->rank, world_size) && is_name(out->name) && out->why.size() <= kMaxTextBytes;
}

std::string refuse_payload(const RefuseFrame& refusal) {
  Writer payload;
  payload.put(static_cast<int32_t>(refusal.rank)).put(refusal.set).put_string(refusal.name).put_string(refusal.why);
  return payload.take();
}

bool parse_complete(std::string_view payload, CompleteFrame* out) {
  Reader reader(payload);
  out->id = reader.get<uint32_t>();
  out->bytes = reader.get<uint64_t>();
  out->waits = reader.get<uint8_t>() != 0;
  return is_whole(reader) && out->id < kMaxEntries;
}

std::string complete_payload(const CompleteFrame& entry) {
  Writer payload;
  payload.put(entry.id).put(entry.bytes).put(static_cast<uint8_t>(entry.waits));
  return payload.take();
}

bool parse_waiting(std::string_view payload, int world_size, WhoWaits* out) {
  Reader reader(payload);
  *out = {};
  const auto length = reader.get<uint32_t>();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    Waiting waiting{reader.get<uint32_t>(), 0, {}};
    waiting.waited_ms = reader.get<uint32_t>();
    if (!read_ranks(&reader, world_size, &waiting.ranks) || waiting.id >= kMaxEntries) return false;
    out->entries.push_back(std::move(waiting));
  }
  return read_ranks(&reader, world_size, &out->blocked) && is_whole(reader);
}

std::string waiting_payload(const WhoWaits& all) {
  Writer payload;
  payload.put(static_cast<uint32_t>(all.entries.size()));
  for (const Waiting& waiting : all.entries) {
    payload.put(waiting.id).put(waiting.waited_ms);
    put_ranks(&payload, waiting.ranks);
  }
  put_ranks(&payload, all.blocked);
  return payload.take();
}

bool parse_ids(std::string_view payload, std::vector<uint32_t>* ids) {
  Reader reader(payload);
  const auto length = reader.get<uint32_t>();
  ids->clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    ids->push_back(reader.get<uint32_t>());
    if (ids->back() >= kMaxEntries) return false;
  }
  return is_whole(reader);
}

bool parse_host_ready(std::string_view payload, int world_size, std::vector<HostReady>* out) {
  Reader reader(payload);
  const auto length = reader.get<uint32_t>();
  out->clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    const auto id = reader.get<uint32_t>();
    out->push_back({id, reader.get<int32_t>()});
    if (id >= kMaxEntries || !is_rank_or_none(out->back().last_rank, world_size)) return false;
  }
  return is_whole(reader);
}

std::string host_ready_payload(const std::vector<HostReady>& ready) {
  Writer payload;
  payload.put(static_cast<uint32_t>(ready.size()));
  for (const HostReady& entry : ready) payload.put(entry.id).put(entry.last_rank);
  return payload.take();
}

bool parse_may_retire(std::string_view payload, std::vector<RetireAnswer>* out) {
  Reader reader(payload);
  const auto length = reader.get<uint32_t>();
  out->clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    const auto id = reader.get<uint32_t>();
    out->push_back({id, reader.get<uint8_t>() != 0});
    if (id >= kMaxEntries) return false;
  }
  return is_whole(reader);
}

std::string may_retire_payload(const std::vector<RetireAnswer>& answers) {
  Writer payload;
  payload.put(static_cast<uint32_t>(answers.size()));
  for (const RetireAnswer& answer : answers) payload.put(answer.id).put(static_cast<uint8_t>(answer.idle));
  return payload.take();
}

std::string ids_payload(const std::vector<uint32_t>& ids) {
  Writer payload;
  payload.put(static_cast<uint32_t>(ids.size()));
  for (const uint32_t id : ids) payload.put(id);
  return payload.take();
}

bool parse_recalled(std::string_view payload, int world_size, RecalledFrame* out) {
  Reader reader(payload);
  out->id = reader.get<uint32_t>();
  out->found.round = reader.get<uint32_t>();
  out->found.count = reader.get<uint32_t>();
  out->found.complete = reader.get<uint8_t>() != 0;
  out->others.clear();
  const uint32_t length = reader.at_end() ? 0 : reader.get<uint32_t>();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    const auto rank = reader.get<int32_t>();
    if (!is_rank(rank, world_size)) return false;
    out->others[rank] = reader.get<uint32_t>();
  }
  return is_whole(reader) && out->id < kMaxEntries && !(out->found.complete && out->found.count > 0);
}

std::string recalled_payload(const RecalledFrame& answer) {
  Writer payload;
  payload.put(answer.id).put(answer.found.round).put(answer.found.count);
  payload.put(static_cast<uint8_t>(answer.found.complete));
  if (!answer.others.empty()) payload.put(static_cast<uint32_t>(answer.others.size()));
  for (const auto& [rank, round] : answer.others) payload.put(static_cast<int32_t>(rank)).put(round);
  return payload.take();
}

bool parse_join(std::string_view payload, int world_size, JoinFrame* out) {
  Reader reader(payload);
  out->rank = reader.get<int32_t>();
  const auto length = reader.get<uint32_t>();
  out->counted.clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    const auto id = reader.get<uint32_t>();
    if (id >= kMaxEntries) return false;
    out->counted[id] = reader.get<uint32_t>();
  }
  return is_whole(reader) && is_rank(out->rank, world_size);
}

std::string join_payload(const JoinFrame& join) {
  Writer payload;
  payload.put(static_cast<int32_t>(join.rank)).put(static_cast<uint32_t>(join.counted.size()));
  for (const auto& [id, round] : join.counted) payload.put(id).put(round);
  return payload.take();
}

bool parse_leave(std::string_view payload, int world_size, int* rank) {
  Reader reader(payload);
  *rank = reader.get<int32_t>();
  return is_whole(reader) && is_rank(*rank, world_size);
}

std::string leave_payload(int rank) { return Writer().put(static_cast<int32_t>(rank)).take(); }

int sender_of(FrameKind kind, std::string_view payload, int world_size) {
  if (RefuseFrame refusal; kind == FrameKind::kRefuse && parse_refuse(payload, world_size, &refusal))
    return refusal.rank;
  if (JoinFrame join; kind == FrameKind::kJoin && parse_join(payload, world_size, &join)) return join.rank;
  if (int rank = -1; kind == FrameKind::kLeave && parse_leave(payload, world_size, &rank)) return rank;
  return -1;
}

bool parse_stack_wanted(std::string_view payload, int world_size, int* rank) {
  return parse_leave(payload, world_size, rank);  // a rank as well
}

std::string stack_wanted_payload(int rank) { return leave_payload(rank); }

bool parse_stack(std::string_view payload, int world_size, int* rank, std::string* text) {
  Reader reader(payload);
  *rank = reader.get<int32_t>();
  *text = reader.get_string();
  return is_whole(reader) && is_rank(*rank, world_size) && text->size() <= kMaxTextBytes;
}

std::string stack_payload(int rank, std::string_view text) {
  return Writer().put(static_cast<int32_t>(rank)).put_string(text).take();
}

bool parse_recall(std::string_view payload, uint32_t* id) {
  Reader reader(payload);
  *id = reader.get<uint32_t>();
  return is_whole(reader) && *id < kMaxEntries;
}

std::string recall_payload(uint32_t id) { return Writer().put(id).take(); }

bool parse_records(std::string_view payload, int world_size, std::vector<Decision>* out) {
  Reader reader(payload);
  const auto length = reader.get<uint32_t>();
  out->clear();
  for (uint32_t i = 0; i < length && !reader.broken(); ++i) {
    Decision decision;
    decision.kind = static_cast<RecordKind>(reader.get<uint8_t>());
    const auto reset = reader.get<uint8_t>();
    decision.reset = reset != 0;
    decision.stays_recalled = reset == kResetAndRecalled;
    decision.id = reader.get<uint32_t>();
    decision.payload = reader.get_string();
    if (decision.kind == RecordKind::kReady) decision.last_rank = reader.get<int32_t>();
    if (reader.broken() || reset > kResetAndRecalled || !is_record(decision, world_size)) return false;
    out->push_back(std::move(decision));
  }
  return is_whole(reader);
}

std::string records_payload(const std::vector<Decision>& decisions) {
  Writer payload;
  payload.put(static_cast<uint32_t>(decisions.size()));
  for (const Decision& decision : decisions) {
    const bool slow = decision.reset && decision.stays_recalled;
    payload.put(static_cast<uint8_t>(decision.kind)).put(slow ? kResetAndRecalled : uint8_t{decision.reset});
    payload.put(decision.id).put_string(decision.payload);
    if (decision.kind == RecordKind::kReady) payload.put(decision.last_rank);
  }
  return payload.take();
}

bool parse_abort(std::string_view payload, int world_size, AbortFrame* out) {
  Reader reader(payload);
  const auto code = reader.get<int32_t>();
  out->rank = reader.get<int32_t>();
  out->text = reader.get_string();
  // A code that means "all is well" or "not yet" would end nothing, and all ranks would go on waiting.
  const bool is_none = code < HVD_INVALID_ARGUMENT || code > HVD_INTERNAL;
  if (!is_whole(reader) || (is_none && code != HVD_DEVICE_LOST && code != HVD_DEADLOCK)) return false;
  out->code = static_cast<hvd_code>(code);
  return is_rank_or_none(out->rank, world_size) && out->text.size() <= kMaxTextBytes;
}

std::string abort_payload(const Status& cause) {
  Writer payload;
  payload.put(static_cast<int32_t>(cause.code())).put(static_cast<int32_t>(cause.failed_rank()));
  payload.put_string(std::string_view(cause.text()).substr(0, kMaxTextBytes));
  return payload.take();
}

bool parse_definition(std::string_view payload, Definition* out) {
  Reader reader(payload);
  out->name = reader.get_string();
  out->descriptor = reader.get_string();
  return is_whole(reader) && is_name(out->name) && read_descriptor(out->descriptor, &out->set);
}

bool parse_failure(std::string_view payload, int world_size, Failure* out) {
  Reader reader(payload);
  out->set = reader.get<int32_t>();
  out->name = reader.get_string();
  const auto code = reader.get<int32_t>();
  const auto culprit = reader.get<int32_t>();
  std::string text(reader.get_string());
  if (!read_ranks(&reader, world_size, &out->ranks)) return false;
  const bool of_an_operation = code == HVD_MISMATCH || code == HVD_REFUSED || code == HVD_JOINED;
  if (!is_whole(reader) || !is_name(out->name) || !of_an_operation || text.size() > kMaxTextBytes) return false;
  out->why = {static_cast<hvd_code>(code), std::move(text), culprit};
  return is_rank_or_none(culprit, world_size);
}

std::string failure_payload(const Failure& failure) {
  Writer payload;
  payload.put(failure.set).put_string(failure.name);
  payload.put(static_cast<int32_t>(failure.why.code())).put(static_cast<int32_t>(failure.why.failed_rank()));
  payload.put_string(std::string_view(failure.why.text()).substr(0, kMaxTextBytes));
  put_ranks(&payload, failure.ranks);
  return payload.take();
}

}  // namespace hvd
