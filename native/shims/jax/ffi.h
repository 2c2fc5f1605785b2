// SPDX-License-Identifier: Apache-2.0
// XLA's foreign function interface as far as it is used here, declared by hand: the same library serves every jaxlib.
//
// The interface is C. Its structs open with their size and only ever grow at the end. What is declared here is equal in
// every release from jaxlib 0.4.38 on; releases may add fields behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvd::jax {

struct Extension {
  size_t size;
  int32_t type;  // kMetadataExtension
  Extension* next;
};
constexpr int32_t kMetadataExtension = 1;

struct ApiVersion {
  size_t size;
  Extension* extensions;
  int32_t major, minor;
};

struct Metadata {
  size_t size;
  ApiVersion version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // XLA's own
struct Future;

// Numbers of absl::StatusCode.
enum class Code : int32_t {
  kUnknown = 2,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnavailable = 14
};

struct ErrorCreate {
  size_t size;
  Extension* extensions;
  const char* message;
  Code code;
};

struct FutureCreate {
  size_t size;
  Extension* extensions;
  Future* future;  // out
};

struct FutureSetAvailable {
  size_t size;
  Extension* extensions;
  Future* future;
};

struct FutureSetError {
  size_t size;
  Extension* extensions;
  Future* future;
  Error* error;  // taken over
};

struct StreamGet {
  size_t size;
  Extension* extensions;
  void* context;  // the frame's
  void* stream;   // out: a CUstream
};

struct Api {
  size_t size;
  Extension* extensions;
  ApiVersion version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void* not_used[3];
  Error* (*stream_get)(StreamGet*);
  void* not_used_either[8];
  Error* (*future_create)(FutureCreate*);
  Error* (*future_set_available)(FutureSetAvailable*);
  Error* (*future_set_error)(FutureSetError*);
};

struct Buffer {
  size_t size;
  Extension* extensions;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
constexpr int32_t kToken = 17;  // dtype of a buffer without data, which orders calls

// Operands or results: all of them are buffers.
struct Buffers {
  size_t size;
  Extension* extensions;
  int64_t count;
  int32_t* types;
  Buffer** buffers;
};

struct Span {
  const char* data;
  size_t length;
  std::string_view view() const { return {data, length}; }
};

struct Scalar {
  int32_t dtype;
  const void* value;
};

struct Attributes {
  size_t size;
  Extension* extensions;
  int64_t count;
  int32_t* types;
  Span** names;
  void** values;
};
constexpr int32_t kScalarAttribute = 3, kStringAttribute = 4;

struct CallFrame {
  size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  int32_t stage;
  Buffers operands;
  Buffers results;
  Attributes attributes;
  Future* future;  // out: not null if the call goes on after it has returned; XLA keeps all of the frame until then
};

static_assert(sizeof(Buffer) == 48 && offsetof(Api, error_create) == 48 && offsetof(Api, stream_get) == 80 &&
              offsetof(Api, future_create) == 152 && offsetof(CallFrame, operands) == 40 &&
              offsetof(CallFrame, attributes) == 120 && offsetof(CallFrame, future) == 168);

}  // namespace hvd::jax
