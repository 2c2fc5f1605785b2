// SPDX-License-Identifier: Apache-2.0
// The contents of the frames of wire.h, read and checked in full before the engine acts on them (step 5).
//
// Pure functions over bytes of a peer. Each returns false where the payload is cut, has bytes left over, or says what
// no rank of this project says: a rank outside of the world, an entry that cannot exist, a text or a name beyond its
// limit, an unknown code. Nothing is kept of such a payload; the engine poisons the generation and names the sender.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "negotiation/decision.h"
#include "negotiation/tally.h"
#include "negotiation/wire.h"

namespace hvd {

struct RequestFrame {  // equal requests of some ranks
  std::vector<Requester> ranks;
  int32_t set = 0;  // as the descriptor says
  std::string name;
  std::string descriptor;  // encoded
};

struct RefuseFrame {
  int rank = 0;
  int32_t set = 0;
  std::string name;
  std::string why;
};

struct CompleteFrame {
  uint32_t id = 0;
  uint64_t bytes = 0;
  bool waits = false;
};

struct RecalledFrame {
  uint32_t id = 0;
  Recalled found;
  // Of a group of hosts: ranks of those where the round has another number than in `found`, and that number.
  RoundOfRank others;
};

struct JoinFrame {
  int rank = 0;
  CountedIn counted;
};

struct HostReady {  // an entry that is complete on a host
  uint32_t id = 0;
  int32_t last_rank = -1;  // of the host, that came last; -1: unknown
};

struct RetireAnswer {
  uint32_t id = 0;
  bool idle = false;
};

struct Waiting {  // ranks of one host that wait for an entry
  uint32_t id = 0;
  uint32_t waited_ms = 0;  // the longest of them
  std::vector<int> ranks;
};

struct WhoWaits {  // on one host
  std::vector<Waiting> entries;
  std::vector<int> blocked;  // ranks that submit nothing until one of their operations is done
};

struct AbortFrame {
  hvd_code code = HVD_INTERNAL;
  int rank = -1;
  std::string text;
};

struct Definition {  // of a DEFINE record
  int32_t set = 0;
  std::string name;
  std::string descriptor;
};

struct Failure {  // of an ERROR record
  int32_t set = 0;
  std::string name;
  Status why;              // HVD_MISMATCH, HVD_REFUSED or HVD_JOINED
  std::vector<int> ranks;  // that it is for; empty: for all
};

bool parse_request(std::string_view payload, int world_size, RequestFrame* out);
std::string request_payload(const RequestFrame& request);
bool parse_refuse(std::string_view payload, int world_size, RefuseFrame* out);
std::string refuse_payload(const RefuseFrame& refusal);
bool parse_complete(std::string_view payload, CompleteFrame* out);
std::string complete_payload(const CompleteFrame& entry);
bool parse_waiting(std::string_view payload, int world_size, WhoWaits* out);
std::string waiting_payload(const WhoWaits& all);
bool parse_ids(std::string_view payload, std::vector<uint32_t>* ids);  // kRetired; kMayRetire downward
bool parse_may_retire(std::string_view payload, std::vector<RetireAnswer>* out);
std::string may_retire_payload(const std::vector<RetireAnswer>& answers);
bool parse_recalled(std::string_view payload, int world_size, RecalledFrame* out);
std::string recalled_payload(const RecalledFrame& answer);
bool parse_join(std::string_view payload, int world_size, JoinFrame* out);
std::string join_payload(const JoinFrame& join);
bool parse_leave(std::string_view payload, int world_size, int* rank);
std::string leave_payload(int rank);
// The rank that a refusal, a join or a leave is about; negative: the frame is none of these, or makes no sense.
int sender_of(FrameKind kind, std::string_view payload, int world_size);
bool parse_stack_wanted(std::string_view payload, int world_size, int* rank);
std::string stack_wanted_payload(int rank);
bool parse_stack(std::string_view payload, int world_size, int* rank, std::string* text);
std::string stack_payload(int rank, std::string_view text);
bool parse_recall(std::string_view payload, uint32_t* id);
std::string recall_payload(uint32_t id);
bool parse_records(std::string_view payload, int world_size, std::vector<Decision>* out);
std::string records_payload(const std::vector<Decision>& decisions);
bool parse_abort(std::string_view payload, int world_size, AbortFrame* out);
bool parse_host_ready(std::string_view payload, int world_size, std::vector<HostReady>* out);
std::string host_ready_payload(const std::vector<HostReady>& ready);
std::string ids_payload(const std::vector<uint32_t>& ids);
std::string abort_payload(const Status& cause);
// Payloads of records, which also lie in shared memory.
bool parse_definition(std::string_view payload, Definition* out);
bool parse_failure(std::string_view payload, int world_size, Failure* out);
std::string failure_payload(const Failure& failure);

}  // namespace hvd
