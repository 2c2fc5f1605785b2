// SPDX-License-Identifier: Apache-2.0
// The CUDA driver of this machine: its functions, found at run time. Neither a header of CUDA nor its run-time library
// is needed, and one binary serves all drivers from 11.3 on.
//
// The functions are those below and no others: the stand-in for machines without a GPU (tests/native/standin) has
// exactly these, and a test compares the two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "platform/status.h"

namespace hvd::cuda {

using Result = int;
using Ordinal = int;                  // CUdevice, and the number by which frameworks know a device
using Address = unsigned long long;   // CUdeviceptr
using Context = struct ContextBody*;  // CUcontext
using Stream = struct StreamBody*;    // CUstream; 0 and 1 mean the legacy default stream of the current context
using EventHandle = struct EventBody*;
using Module = struct ModuleBody*;
using Function = struct FunctionBody*;

constexpr Result kSuccess = 0;
constexpr Result kNotReady = 600;

constexpr unsigned kNonBlocking = 1;    // of a stream: it does not serialise with the legacy default stream
constexpr unsigned kDisableTiming = 2;  // of an event
constexpr unsigned kPortable = 1;       // of registered host memory: for all contexts
constexpr int kRelaxedCapture = 2;

// The attributes of an address that are queried.
constexpr int kMemoryType = 2, kDeviceOrdinal = 9, kIsManaged = 8;
constexpr unsigned kDeviceMemory = 2;

// FUNCTION(member, name without a suffix, version whose signature this is, return type and parameters).
#define HVD_CUDA_FUNCTIONS(FUNCTION)                                                                                   \
  FUNCTION(init, "cuInit", 2000, Result, (unsigned flags))                                                             \
  FUNCTION(device_count, "cuDeviceGetCount", 2000, Result, (int* count))                                               \
  FUNCTION(device, "cuDeviceGet", 2000, Result, (Ordinal * device, int number))                                        \
  FUNCTION(uuid, "cuDeviceGetUuid", 9020, Result, (char* uuid, Ordinal device))                                        \
  FUNCTION(retain_context, "cuDevicePrimaryCtxRetain", 7000, Result, (Context * context, Ordinal device))              \
  FUNCTION(push, "cuCtxPushCurrent", 4000, Result, (Context context))                                                  \
  FUNCTION(pop, "cuCtxPopCurrent", 4000, Result, (Context * context))                                                  \
  FUNCTION(current_device, "cuCtxGetDevice", 2000, Result, (Ordinal * device))                                         \
  FUNCTION(priority_range, "cuCtxGetStreamPriorityRange", 5050, Result, (int* lowest, int* highest))                   \
  FUNCTION(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010, Result, (int* mode))                     \
  FUNCTION(make_stream, "cuStreamCreateWithPriority", 5050, Result, (Stream * stream, unsigned flags, int priority))   \
  FUNCTION(context_of, "cuStreamGetCtx", 9020, Result, (Stream stream, Context * context))                             \
  FUNCTION(wait_event, "cuStreamWaitEvent", 3020, Result, (Stream stream, EventHandle event, unsigned flags))          \
  FUNCTION(make_event, "cuEventCreate", 2000, Result, (EventHandle * event, unsigned flags))                           \
  FUNCTION(record, "cuEventRecord", 2000, Result, (EventHandle event, Stream stream))                                  \
  FUNCTION(query, "cuEventQuery", 2000, Result, (EventHandle event))                                                   \
  FUNCTION(attributes, "cuPointerGetAttributes", 7000, Result,                                                         \
           (unsigned count, int* which, void** values, Address address))                                               \
  FUNCTION(allocate, "cuMemAllocAsync", 11020, Result, (Address * address, size_t bytes, Stream stream))               \
  FUNCTION(free, "cuMemFreeAsync", 11020, Result, (Address address, Stream stream))                                    \
  FUNCTION(fill, "cuMemsetD8Async", 3020, Result, (Address address, unsigned char value, size_t bytes, Stream stream)) \
  FUNCTION(copy, "cuMemcpyAsync", 4000, Result, (Address to, Address from, size_t bytes, Stream stream))               \
  FUNCTION(pin, "cuMemHostRegister", 6050, Result, (void* memory, size_t bytes, unsigned flags))                       \
  FUNCTION(unpin, "cuMemHostUnregister", 4000, Result, (void* memory))                                                 \
  FUNCTION(load, "cuModuleLoadData", 2000, Result, (Module * module, const void* text))                                \
  FUNCTION(function, "cuModuleGetFunction", 2000, Result, (Function * function, Module module, const char* name))      \
  FUNCTION(launch, "cuLaunchKernel", 4000, Result,                                                                     \
           (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
            unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra))                  \
  FUNCTION(error_name, "cuGetErrorName", 6000, Result, (Result code, const char** name))                               \
  FUNCTION(error_text, "cuGetErrorString", 6000, Result, (Result code, const char** text))

struct Functions {
#define HVD_CUDA_MEMBER(member, name, version, result, parameters) result(*member) parameters;
  HVD_CUDA_FUNCTIONS(HVD_CUDA_MEMBER)
#undef HVD_CUDA_MEMBER
};

// The driver, opened once and kept for the life of the process. Any thread.
class Driver {
 public:
  // `path`: the library; empty: libcuda.so.1. HVD_UNAVAILABLE with the reason if it does not open, is too old, or lacks
  // a function. Does not initialise CUDA, which a process that forks afterwards could not use.
  static Status open(const std::string& path, std::shared_ptr<const Driver>* out);

  const Functions& call() const { return call_; }
  int version() const { return version_; }  // 1000 * major + 10 * minor
  // Initialises CUDA on its first call, and counts the devices.
  Status count_devices(int* count) const;
  // Translates the return value of a call.
  Status checked(Result code, const char* doing) const;

 private:
  Functions call_{};
  int version_ = 0;
};

// The library's names as its table asks for them, for a test.
std::span<const char* const> names_of_functions();

// A context is current on this thread while this lives, and what is called then breaks no capture of another thread.
class Current {
 public:
  Current(const Driver& driver, Context context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  // Why it could not be made current.
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  int mode_ = kRelaxedCapture;  // the thread's own, while this lives
  Status status_;
};

}  // namespace hvd::cuda
