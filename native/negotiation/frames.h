// SPDX-License-Identifier: Apache-2.0
// What the frames of wire.h carry, read and checked in full before the engine acts on any of it (step 5).
//
// Pure functions over bytes of a peer. Each returns false where the payload is cut, has bytes left over, or says what
// no rank of this project says: a rank outside of the world, an entry that cannot exist, a text or a name beyond its
// limit, an unknown code. Nothing is kept of such a payload; the engine poisons the generation and names the sender.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "negotiation/coordinator.h"
#include "negotiation/wire.h"

namespace hvd {

struct RequestFrame {  // kRequest and kRefuse
  int rank = 0;
  int32_t set = 0;
  std::string name;
  std::string body;  // an encoded descriptor, or why the rank's call failed
  bool waits = false;
};

struct RecalledFrame {
  uint32_t id = 0;
  Recalled found;
};

struct JoinFrame {
  int rank = 0;
  CountedIn counted;
};

struct RetireAnswer {
  uint32_t id = 0;
  bool idle = false;
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
  int culprit = -1;
  std::string text;
  std::vector<int> ranks;  // that it is for; empty: for all
};

bool parse_request(FrameKind kind, std::string_view payload, int world_size, RequestFrame* out);
bool parse_ids(std::string_view payload, std::vector<uint32_t>* ids);  // kHostReady, kRetired; kMayRetire downward
bool parse_may_retire(std::string_view payload, std::vector<RetireAnswer>* out);
bool parse_recalled(std::string_view payload, RecalledFrame* out);
std::string recalled_payload(const RecalledFrame& answer);
bool parse_join(std::string_view payload, int world_size, JoinFrame* out);
std::string join_payload(const JoinFrame& join);
bool parse_leave(std::string_view payload, int world_size, int* rank);
bool parse_stack_wanted(std::string_view payload, int world_size, int* rank);
bool parse_stack(std::string_view payload, int world_size, int* rank, std::string* text);
bool parse_recall(std::string_view payload, uint32_t* id);
bool parse_records(std::string_view payload, int world_size, std::vector<Decision>* out);
std::string records_payload(const std::vector<Decision>& decisions);
bool parse_abort(std::string_view payload, int world_size, AbortFrame* out);
std::string ids_payload(const std::vector<uint32_t>& ids);
std::string abort_payload(const Status& cause);
// Payloads of records, which also lie in shared memory.
bool parse_definition(std::string_view payload, Definition* out);
bool parse_failure(std::string_view payload, int world_size, Failure* out);

}  // namespace hvd
