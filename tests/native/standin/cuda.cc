// SPDX-License-Identifier: Apache-2.0
// The stand-in's CUDA driver. The codes are CUDA's.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels.h"
#include "memory.h"
#include "standin.h"
#include "streams.h"

using standin::planned_failure;
using standin::resolve;
using standin::state;

namespace {

enum : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
};

std::atomic<int> driver_version{13000};
std::atomic<bool> initialized{false};
std::atomic<int64_t> streams_made{0}, events_made{0}, pageable_copies{0}, launches{0};
thread_local std::vector<ContextBody*> context_stack;

ContextBody* context_of_device(int device) {
  static auto* const contexts = [] {
    auto* const made = new std::array<ContextBody, STANDIN_DEVICES>;
    for (int d = 0; d < STANDIN_DEVICES; ++d) (*made)[static_cast<size_t>(d)].device = d;
    return made;
  }();
  return &contexts->at(static_cast<size_t>(device));
}

ContextBody* current() { return context_stack.empty() ? nullptr : context_stack.back(); }

StreamBody* make_stream(ContextBody* context) { return new StreamBody(static_cast<int>(++streams_made), context); }

StreamBody* legacy_of(ContextBody* context) {
  const std::lock_guard lock(state().mutex);
  if (context->legacy == nullptr) context->legacy = make_stream(context);
  return context->legacy;
}

}  // namespace

struct ModuleBody {
  std::string text;
};
struct FunctionBody {
  const standin::Twin* twin;
};

// A module is its context's: whoever has loaded it may forget it.
static void keep(ModuleBody* module) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<ModuleBody*>;
  const std::lock_guard lock(mutex);
  kept->push_back(module);
}

StreamBody* standin::resolve(StreamBody* stream, int* code) {
  ContextBody* const context = current();
  if (context == nullptr) {
    *code = kInvalidContext;
    return nullptr;
  }
  if (reinterpret_cast<uintptr_t>(stream) <= 1) return legacy_of(context);
  *code = stream->context == context ? kSuccess : kInvalidHandle;
  return stream->context == context ? stream : nullptr;
}

// A planned failure, or a call before cuInit, ends a function here.
#define STANDIN_ENTER(name)                                                    \
  if (const int planned = planned_failure(name); planned != 0) return planned; \
  if (!initialized.load()) return kNotInitialized;
#define STANDIN_CONTEXT(name) \
  STANDIN_ENTER(name)         \
  if (current() == nullptr) return kInvalidContext;
#define STANDIN_STREAM(name)                            \
  STANDIN_ENTER(name)                                   \
  int stream_code = kSuccess;                           \
  StreamBody* const on = resolve(stream, &stream_code); \
  if (on == nullptr) return stream_code;

extern "C" {

int cuInit(unsigned) {
  if (const int planned = planned_failure("cuInit"); planned != 0) return planned;
  initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  *version = driver_version;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  STANDIN_ENTER("cuDeviceGetCount")
  *count = STANDIN_DEVICES;
  return kSuccess;
}

int cuDeviceGet(int* device, int number) {
  STANDIN_ENTER("cuDeviceGet")
  if (number < 0 || number >= STANDIN_DEVICES) return kInvalidDevice;
  *device = number;
  return kSuccess;
}

int cuDeviceGetUuid(char* uuid, int device) {
  STANDIN_ENTER("cuDeviceGetUuid")
  std::memset(uuid, device + 1, 16);
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(ContextBody** context, int device) {
  STANDIN_ENTER("cuDevicePrimaryCtxRetain")
  *context = context_of_device(device);
  return kSuccess;
}

int cuCtxPushCurrent_v2(ContextBody* context) {
  STANDIN_ENTER("cuCtxPushCurrent")
  context_stack.push_back(context);
  return kSuccess;
}

int cuCtxPopCurrent_v2(ContextBody** context) {
  STANDIN_ENTER("cuCtxPopCurrent")
  if (context_stack.empty()) return kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  STANDIN_CONTEXT("cuCtxGetDevice")
  *device = current()->device;
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* lowest, int* highest) {
  STANDIN_CONTEXT("cuCtxGetStreamPriorityRange")
  *lowest = 0;
  *highest = -5;
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  STANDIN_ENTER("cuThreadExchangeStreamCaptureMode")
  thread_local int mine = 0;
  std::swap(mine, *mode);
  return kSuccess;
}

int cuStreamCreateWithPriority(StreamBody** stream, unsigned flags, int priority) {
  STANDIN_CONTEXT("cuStreamCreateWithPriority")
  // Another kind would wait for the default stream of a framework, and another priority for its kernels.
  if (flags != 1 || priority != -5) return kInvalidValue;
  *stream = make_stream(current());
  return kSuccess;
}

// Of a default stream, the current context. For others, none need be current.
int cuStreamGetCtx(StreamBody* stream, ContextBody** context) {
  STANDIN_ENTER("cuStreamGetCtx")
  *context = reinterpret_cast<uintptr_t>(stream) <= 2 ? current() : stream->context;
  return *context == nullptr ? kInvalidContext : kSuccess;
}

int cuEventCreate(EventBody** event, unsigned flags) {
  STANDIN_CONTEXT("cuEventCreate")
  if (flags != 2) return kInvalidValue;
  *event = new EventBody;
  (*event)->context = current();
  ++events_made;
  return kSuccess;
}

int cuEventRecord(EventBody* event, StreamBody* stream) {
  STANDIN_STREAM("cuEventRecord")
  if (event->context != on->context) return kInvalidHandle;
  const std::lock_guard lock(state().mutex);
  state().order.begin(on->number, on->clock);
  event->clock = on->clock;
  event->last = std::make_shared<Mark>();
  on->push([mark = event->last] {
    {
      const std::lock_guard guard(mark->mutex);
      mark->is_done = true;
    }
    mark->changed.notify_all();
  });
  return kSuccess;
}

int cuStreamWaitEvent(StreamBody* stream, EventBody* event, unsigned) {
  STANDIN_STREAM("cuStreamWaitEvent")
  const std::lock_guard lock(state().mutex);
  state().order.begin(on->number, on->clock);
  standin::merge(on->clock, event->clock);
  if (event->last == nullptr) return kSuccess;
  on->push([mark = event->last] {
    std::unique_lock guard(mark->mutex);
    mark->changed.wait(guard, [&] { return mark->is_done; });
  });
  return kSuccess;
}

int cuEventQuery(EventBody* event) {
  if (!initialized.load()) return kNotInitialized;
  const std::lock_guard lock(state().mutex);
  bool is_done = true;
  if (event->last != nullptr) {
    const std::lock_guard guard(event->last->mutex);
    is_done = event->last->is_done;
  }
  // Afterwards: what a test plans before it lets work go counts for whoever sees this work done.
  if (const int planned = planned_failure("cuEventQuery"); planned != 0) return planned;
  if (!is_done) return kNotReady;
  state().order.host_learns(event->clock);
  return kSuccess;
}

int cuPointerGetAttributes(unsigned count, int* which, void** values, unsigned long long address) {
  STANDIN_ENTER("cuPointerGetAttributes")
  const auto* const memory = reinterpret_cast<const void*>(address);
  const int device = standin::device_of(memory);
  for (unsigned i = 0; i < count; ++i) {
    switch (which[i]) {
      case 2:  // its type
        *static_cast<unsigned*>(values[i]) = device >= 0 ? 2 : standin::is_pinned(memory) ? 1 : 0;
        break;
      case 8:  // whether it is managed
        *static_cast<unsigned*>(values[i]) = 0;
        break;
      case 9:  // its device
        *static_cast<int*>(values[i]) = std::max(device, 0);
        break;
      default:
        return kInvalidValue;
    }
  }
  return kSuccess;
}

int cuMemAllocAsync(unsigned long long* address, size_t bytes, StreamBody* stream) {
  STANDIN_STREAM("cuMemAllocAsync")
  void* const memory = standin::allocate(on->context->device, bytes);
  *address = reinterpret_cast<unsigned long long>(memory);
  return memory == nullptr ? kOutOfMemory : kSuccess;
}

int cuMemFreeAsync(unsigned long long address, StreamBody* stream) {
  STANDIN_STREAM("cuMemFreeAsync")
  auto* const memory = reinterpret_cast<void*>(address);
  const size_t bytes = standin::block_bytes(memory);
  if (bytes == 0) return kInvalidValue;
  standin::enqueue(on, "free", {{memory, bytes, true}}, [memory] { standin::give_back(memory); });
  return kSuccess;
}

int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, StreamBody* stream) {
  STANDIN_STREAM("cuMemsetD8Async")
  auto* const memory = reinterpret_cast<void*>(address);
  standin::enqueue(on, "memset", {{memory, bytes, true}}, [=] { std::memset(memory, value, bytes); });
  return kSuccess;
}

int cuMemcpyAsync(unsigned long long to, unsigned long long from, size_t bytes, StreamBody* stream) {
  STANDIN_STREAM("cuMemcpyAsync")
  auto* const target = reinterpret_cast<std::byte*>(to);
  const auto* const source = reinterpret_cast<const std::byte*>(from);
  const auto moves_by_itself = [](const std::byte* memory) {
    return standin::device_of(memory) >= 0 || standin::is_pinned(memory);
  };
  std::vector<standin::Touched> touched;
  if (moves_by_itself(source)) touched.push_back({source, bytes, false});
  if (moves_by_itself(target)) touched.push_back({target, bytes, true});
  standin::enqueue(on, "copy", touched, [=] { std::memmove(target, source, bytes); });
  if (touched.size() < 2) {  // of memory that is not pinned: the driver waits for it in the one way or the other
    ++pageable_copies;
    on->drain();
  }
  return kSuccess;
}

int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  STANDIN_CONTEXT("cuMemHostRegister")
  return standin::pin(memory, bytes) ? kSuccess : kInvalidValue;
}

int cuMemHostUnregister(void* memory) {
  STANDIN_CONTEXT("cuMemHostUnregister")
  return standin::unpin(memory) ? kSuccess : kInvalidValue;
}

int cuModuleLoadData(ModuleBody** module, const void* text) {
  STANDIN_CONTEXT("cuModuleLoadData")
  *module = new ModuleBody{static_cast<const char*>(text)};
  keep(*module);
  return kSuccess;
}

int cuModuleGetFunction(FunctionBody** function, ModuleBody* module, const char* name) {
  STANDIN_ENTER("cuModuleGetFunction")
  if (module->text.find(".entry " + std::string(name) + "(") == std::string::npos) return kNotFound;
  for (const standin::Twin& twin : standin::kTwins) {
    if (twin.name != name) continue;
    *function = new FunctionBody{&twin};
    return kSuccess;
  }
  return kNotFound;
}

int cuLaunchKernel(FunctionBody* function, unsigned, unsigned rows, unsigned, unsigned, unsigned, unsigned, unsigned,
                   StreamBody* stream, void** parameters, void**) {
  STANDIN_STREAM("cuLaunchKernel")
  const auto* const table = static_cast<const standin::Piece*>(parameters[0]);
  if (rows == 0 || rows > standin::kPiecesOfTable) return kInvalidValue;
  const std::vector<standin::Piece> pieces(table, table + rows);
  const double factor = *static_cast<const double*>(parameters[1]);
  const standin::Twin& twin = *function->twin;
  std::vector<standin::Touched> touched;
  for (const standin::Piece& piece : pieces) {
    touched.push_back({piece.from, piece.count * twin.element_bytes, false});
    touched.push_back({piece.to, piece.count * twin.element_bytes, true});
  }
  ++launches;
  standin::enqueue(on, std::string(twin.name), touched, [=] {
    for (const standin::Piece& piece : pieces) {
      for (uint64_t i = 0; i < piece.count; ++i) {
        twin.element(piece.from + i * twin.element_bytes, piece.to + i * twin.element_bytes, factor);
      }
    }
  });
  return kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names = {{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                   {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                   {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED"},
                                                   {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE"},
                                                   {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                   {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE"},
                                                   {kNotFound, "CUDA_ERROR_NOT_FOUND"},
                                                   {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                   {719, "CUDA_ERROR_LAUNCH_FAILED"}};
  const auto found = names.find(code);
  if (found == names.end()) return kInvalidValue;
  *name = found->second;
  return kSuccess;
}

int cuGetErrorString(int code, const char** text) {
  *text = "of the stand-in";
  return cuGetErrorName(code, text) == kSuccess ? kSuccess : kInvalidValue;
}

}  // extern "C"

namespace {

struct Symbol {
  const char* name;
  int version;  // of the signature that is here
  void* function;
};
#define STANDIN_SYMBOL(name, version) {#name, version, reinterpret_cast<void*>(&name)}
#define STANDIN_SYMBOL_V2(name, version) {#name, version, reinterpret_cast<void*>(&name##_v2)}
const Symbol kSymbols[] = {
    STANDIN_SYMBOL(cuDriverGetVersion, 2020),
    STANDIN_SYMBOL(cuInit, 2000),
    STANDIN_SYMBOL(cuDeviceGetCount, 2000),
    STANDIN_SYMBOL(cuDeviceGet, 2000),
    STANDIN_SYMBOL(cuDeviceGetUuid, 9020),
    STANDIN_SYMBOL(cuDevicePrimaryCtxRetain, 7000),
    STANDIN_SYMBOL_V2(cuCtxPushCurrent, 4000),
    STANDIN_SYMBOL_V2(cuCtxPopCurrent, 4000),
    STANDIN_SYMBOL(cuCtxGetDevice, 2000),
    STANDIN_SYMBOL(cuCtxGetStreamPriorityRange, 5050),
    STANDIN_SYMBOL(cuThreadExchangeStreamCaptureMode, 10010),
    STANDIN_SYMBOL(cuStreamCreateWithPriority, 5050),
    STANDIN_SYMBOL(cuStreamGetCtx, 9020),
    STANDIN_SYMBOL(cuStreamWaitEvent, 3020),
    STANDIN_SYMBOL(cuEventCreate, 2000),
    STANDIN_SYMBOL(cuEventRecord, 2000),
    STANDIN_SYMBOL(cuEventQuery, 2000),
    STANDIN_SYMBOL(cuPointerGetAttributes, 7000),
    STANDIN_SYMBOL(cuMemAllocAsync, 11020),
    STANDIN_SYMBOL(cuMemFreeAsync, 11020),
    STANDIN_SYMBOL(cuMemsetD8Async, 3020),
    STANDIN_SYMBOL(cuMemcpyAsync, 4000),
    STANDIN_SYMBOL_V2(cuMemHostRegister, 6050),
    STANDIN_SYMBOL(cuMemHostUnregister, 4000),
    STANDIN_SYMBOL(cuModuleLoadData, 2000),
    STANDIN_SYMBOL(cuModuleGetFunction, 2000),
    STANDIN_SYMBOL(cuLaunchKernel, 4000),
    STANDIN_SYMBOL(cuGetErrorName, 6000),
    STANDIN_SYMBOL(cuGetErrorString, 6000),
};

// Flags 1: a stream handle of 0 is the legacy default stream. Another version than that of the signature would be
// another function.
int address_of(const char* name, void** function, int version, uint64_t flags) {
  if (flags != 1) return kInvalidValue;
  for (const Symbol& symbol : kSymbols) {
    if (std::strcmp(symbol.name, name) != 0 || symbol.version != version) continue;
    *function = symbol.function;
    return kSuccess;
  }
  *function = nullptr;
  return kNotFound;
}

}  // namespace

extern "C" {

int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return driver_version < 12000 ? address_of(name, function, version, flags) : kInvalidValue;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* found) {
  if (driver_version < 12000) return kInvalidValue;  // drivers of that age do not have it
  const int code = address_of(name, function, version, flags);
  if (found != nullptr) *found = code == kSuccess ? 0 : 1;
  return code;
}

void standin_driver_version(int version) { driver_version = version; }

const char* standin_function(int index) {
  return static_cast<size_t>(index) < std::size(kSymbols) ? kSymbols[index].name : nullptr;
}

void* standin_stream(int device) { return make_stream(context_of_device(device)); }

void standin_fill(void* stream, float* to, size_t elements, float value) {
  standin::enqueue(static_cast<StreamBody*>(stream), "fill", {{to, elements * sizeof(float), true}},
                   [=] { std::fill_n(to, elements, value); });
}

void standin_copy(void* stream, void* to, const void* from, size_t bytes) {
  std::vector<standin::Touched> touched;
  if (standin::device_of(from) >= 0) touched.push_back({from, bytes, false});
  if (standin::device_of(to) >= 0) touched.push_back({to, bytes, true});
  standin::enqueue(static_cast<StreamBody*>(stream), "the framework's copy", touched, [=] {
    if (bytes > 0) std::memcpy(to, from, bytes);
  });
}

void standin_touch(void* stream, const void* memory, size_t bytes, int writes) {
  standin::enqueue(static_cast<StreamBody*>(stream), "the framework's work", {{memory, bytes, writes != 0}}, [] {});
}

void standin_order(void* sooner, void* later) {
  auto* const first = static_cast<StreamBody*>(sooner);
  auto* const event = new EventBody;
  event->context = first->context;
  context_stack.push_back(first->context);
  cuEventRecord(event, first);
  cuStreamWaitEvent(static_cast<StreamBody*>(later), event, 0);
  context_stack.pop_back();
}

void standin_free_on(void* stream, void* memory) {
  standin::enqueue(static_cast<StreamBody*>(stream), "the framework's free",
                   {{memory, standin::block_bytes(memory), true}}, [memory] { standin::give_back(memory); });
}

standin_counts standin_count() {
  return {streams_made,    events_made, standin::allocations(), standin::pinned_ranges(),
          pageable_copies, launches,    state().unique_ids};
}

}  // extern "C"
