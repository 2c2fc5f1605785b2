// SPDX-License-Identifier: Apache-2.0
// The NCCL of this process (step 7): its functions, found at run time. Neither its header nor CUDA's is needed, and one
// binary serves all versions from 2.14 on.
//
// The functions are those below and no others; the stand-in (tests/native/standin) has exactly these.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "communicators/device_communicator.h"

namespace hvd::nccl {

using Result = int;
using Comm = struct CommBody*;

constexpr Result kSuccess = 0;
constexpr Result kRemoteError = 6;
constexpr Result kInProgress = 7;

enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
using Op = int;  // those below, and those made at run time
constexpr Op kSum = 0, kProduct = 1, kMax = 2, kMin = 3;
constexpr int kHostScalar = 1;  // a factor is read from host memory, at once

struct UniqueId {
  char bytes[128];
};

// The first fields of ncclConfig_t, as of 2.17: all versions since 2.14 read them. Later fields take their defaults.
struct Config {
  size_t size = 40;
  uint32_t magic = 0xcafebeef;
  uint32_t version = 21700;
  int blocking = 1;  // before 2.17, INT_MIN is refused
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};
static_assert(sizeof(Config) == 40 && offsetof(Config, blocking) == 16 && offsetof(Config, net_name) == 32);

// FUNCTION(member, name, parameters); all return a Result.
#define HVD_NCCL_FUNCTIONS(FUNCTION)                                                                                 \
  FUNCTION(get_version, "ncclGetVersion", (int* version))                                                            \
  FUNCTION(get_unique_id, "ncclGetUniqueId", (UniqueId * id))                                                        \
  FUNCTION(init, "ncclCommInitRankConfig", (Comm * comm, int size, UniqueId id, int rank, Config* config))           \
  FUNCTION(finalize, "ncclCommFinalize", (Comm comm))                                                                \
  FUNCTION(destroy, "ncclCommDestroy", (Comm comm))                                                                  \
  FUNCTION(abort, "ncclCommAbort", (Comm comm))                                                                      \
  FUNCTION(async_error, "ncclCommGetAsyncError", (Comm comm, Result * error))                                        \
  FUNCTION(make_scaled_sum, "ncclRedOpCreatePreMulSum", (Op * op, void* factor, int type, int residence, Comm comm)) \
  FUNCTION(free_op, "ncclRedOpDestroy", (Op op, Comm comm))                                                          \
  FUNCTION(allreduce, "ncclAllReduce",                                                                               \
           (const void* in, void* out, size_t count, int type, Op op, Comm comm, cuda::Stream stream))               \
  FUNCTION(broadcast, "ncclBroadcast",                                                                               \
           (const void* in, void* out, size_t count, int type, int root, Comm comm, cuda::Stream stream))            \
  FUNCTION(reduce, "ncclReduce",                                                                                     \
           (const void* in, void* out, size_t count, int type, Op op, int root, Comm comm, cuda::Stream stream))     \
  FUNCTION(reduce_scatter, "ncclReduceScatter",                                                                      \
           (const void* in, void* out, size_t count_out, int type, Op op, Comm comm, cuda::Stream stream))           \
  FUNCTION(all_gather, "ncclAllGather",                                                                              \
           (const void* in, void* out, size_t count_in, int type, Comm comm, cuda::Stream stream))                   \
  FUNCTION(send, "ncclSend", (const void* in, size_t count, int type, int peer, Comm comm, cuda::Stream stream))     \
  FUNCTION(receive, "ncclRecv", (void* out, size_t count, int type, int peer, Comm comm, cuda::Stream stream))       \
  FUNCTION(begin_group, "ncclGroupStart", ())                                                                        \
  FUNCTION(end_group, "ncclGroupEnd", ())

struct Functions {
#define HVD_NCCL_MEMBER(member, name, parameters) Result(*member) parameters;
  HVD_NCCL_FUNCTIONS(HVD_NCCL_MEMBER)
#undef HVD_NCCL_MEMBER
  const char* (*error_text)(Result code);  // ncclGetErrorString
  const char* (*last_error)(Comm comm);    // ncclGetLastError
};

// Kept for the life of the process. Any thread.
class Library {
 public:
  // HVD_UNAVAILABLE with the reason if there is none, it is too old, or lacks a function. Initialises nothing.
  static Status open(const LibraryPlaces& places, std::shared_ptr<const Library>* out);

  const Functions& call() const { return call_; }
  int version() const { return version_; }           // 10000 * major + 100 * minor + patch
  const std::string& path() const { return path_; }  // the file it comes from
  // Translates the return value of a call; `comm` may be null.
  Status checked(Result code, const char* doing, Comm comm) const;

 private:
  Functions call_{};
  int version_ = 0;
  std::string path_;
};

std::string version_in_words(int version);
// The names that are looked up, for a test.
std::span<const char* const> names_of_functions();

}  // namespace hvd::nccl
