// SPDX-License-Identifier: Apache-2.0
// The bytes of negotiation: descriptors, and the frames that go from a rank to its host's leader (through a ring in
// shared memory) and between leaders and rank 0 (through a socket). Little-endian, no padding.
//
//   frame      = u32 length of what follows | u8 kind | payload
//   string     = u32 length | bytes
//   descriptor = u8 kind | u8 op | i32 set | i32 root | f64 prescale | f64 postscale | u32 n | n x (u8 dtype | u8 ndim
//   | ndim x i64) | u32 n | n x i32 rank | u8 place, if it is not the host
//
// Parsing never trusts a length: a Reader that ran over its end says so and yields zeros from then on.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "platform/status.h"
#include "reduction/types.h"

namespace hvd {

constexpr uint32_t kMaxFrameBytes = 8u << 20;
constexpr int kMaxDimensions = 16;
constexpr size_t kMaxNameBytes = 4096;
constexpr size_t kMaxReasonBytes = 1024;     // why a rank's call failed; a status holds not much more
constexpr size_t kMaxTextBytes = 16u << 10;  // of an error; what is longer is cut where it is made

class Writer {
 public:
  template <class Number>
  Writer& put(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& put_string(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class Number>
  Number get() {
    Number value{};
    if (rest_.size() < sizeof value) {
      broken_ = true;
      rest_ = {};
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view get_string() {
    const uint32_t length = get<uint32_t>();
    if (broken_ || rest_.size() < length) {
      broken_ = true;
      rest_ = {};
      return {};
    }
    const std::string_view text{rest_.data(), length};
    rest_.remove_prefix(length);
    return text;
  }
  bool broken() const { return broken_; }
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool broken_ = false;
};

struct TensorSpec {
  DataType dtype = HVD_FLOAT32;
  std::vector<int64_t> shape;  // allgather, alltoall: dimension 0 is written as 0, ragged rows travel with the data

  int64_t count() const;
  bool possible() const;  // no extent is negative, and the size in bytes fits
  bool operator==(const TensorSpec&) const = default;
};

constexpr bool reduces(hvd_kind kind) { return kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER; }
constexpr bool is_point_to_point(hvd_kind kind) { return kind == HVD_SEND || kind == HVD_RECEIVE; }
// True if ranks may give different numbers of rows.
constexpr bool is_ragged(hvd_kind kind) { return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL; }
// Reducescatter deals rows in member order; the first members get one more where they do not come out even.
constexpr int64_t rows_of_member(int64_t rows, int members, int member) {
  return rows / members + (member < rows % members ? 1 : 0);
}

// The facts about one name on which all ranks must agree.
struct Descriptor {
  hvd_kind kind = HVD_ALLREDUCE;
  ReduceOp op = HVD_SUM;
  int32_t process_set = 0;  // where it takes place; of a removal: 0, the set to be removed stands in root_rank
  int32_t root_rank = -1;   // send: the sender. Receive from any rank: the tag
  double prescale = 1.0;
  double postscale = 1.0;
  hvd_place place = HVD_ON_HOST;
  std::vector<TensorSpec> tensors;
  std::vector<int32_t> ranks;  // a process set to be added

  std::string encode() const;
  static bool decode(std::string_view bytes, Descriptor* out);
};

std::string describe_shape(const std::vector<int64_t>& shape);
const char* name_of(DataType dtype);
const char* name_of(ReduceOp op);
const char* name_of(hvd_kind kind);
const char* name_of(hvd_place place);

struct Difference {
  std::string text;            // "expected ..., got ..."; empty: there is none
  const char* hint = nullptr;  // how to mend it
};

// The first difference that matters. Checked in this order: dtype, kind, number of tensors, shape, place, scales, op,
// root. Of a group, its first tensor that differs.
Difference difference(const Descriptor& expected, const Descriptor& seen);

// "Up" is to rank 0: from a rank to its host's leader, and from there on. "Down" is from rank 0 to the other leaders.
// Where hosts form a tree (world/control_tree.h), frames pass the relay of the group, whose word is that of a leader.
enum class FrameKind : uint8_t {
  kRequest = 1,       // up: u32 n | n x (i32 rank | u8 waits for it at once) | string name | string descriptor. A rank
                      // sends its own; a leader sends the equal ones of its host as one
  kRefuse = 2,        // up: i32 rank | i32 set | string name | string why
  kHostReady = 3,     // up, from a leader: u32 n | n x u32 entry
  kRecalled = 4,      // up, from a leader: u32 entry | u32 round | u32 count | u8 complete. A relay adds, if there are
                      // any: u32 n | n x (i32 rank | u32 round), of hosts that number the round otherwise
  kLeave = 5,         // up: i32 rank
  kRecall = 6,        // down: u32 entry
  kRecords = 7,       // down: u32 n | n x (u8 record kind | u8 reset, 2: stays recalled | u32 id | string payload)
  kAbort = 8,         // up and down: i32 code | i32 rank | string text
  kBeat = 9,          // up and down, on beat links, which else carry kAbort alone
  kMayRetire = 10,    // down: u32 n | n x u32 entry; the answer, up: u32 n | n x (u32 entry | u8 idle)
  kRetired = 11,      // up, from a leader: u32 n | n x u32 entry, whose RETIRE all ranks of the host have read
  kStackWanted = 12,  // down: i32 rank
  kStack = 13,        // up, from a leader: i32 rank | string where its main thread stands
  kJoin = 14,         // up: i32 rank | u32 n | n x (u32 entry | u32 round), which it is counted in
  kComplete = 15,     // from a rank to its leader: u32 entry | u64 bytes | u8 waits for it at once
  kWaiting = 16,      // up, from a leader: u32 n | n x (u32 entry | u32 waited ms | u32 m | m x i32 rank of the host)
  kWhoWaits = 17,     // down, a question without a payload, which kWaiting answers
};

std::string make_frame(FrameKind kind, std::string_view payload);

// Cuts a byte stream into frames.
class FrameParser {
 public:
  // Holds at most one frame and what is fed at once: call next() until it is false in between.
  void feed(const char* bytes, size_t length) {
    if (!broken_) buffer_.append(bytes, length);
  }
  void reject() { broken_ = true; }  // the stream it comes from makes no sense
  // False when no whole frame is there yet. A length beyond kMaxFrameBytes or of zero sets broken().
  bool next(FrameKind* kind, std::string* payload);
  bool broken() const { return broken_; }

 private:
  std::string buffer_;
  size_t consumed_ = 0;
  bool broken_ = false;
};

}  // namespace hvd
