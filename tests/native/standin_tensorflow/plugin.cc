// SPDX-License-Identifier: Apache-2.0
// The stand-in's GPUs for TensorFlow: a pluggable device of type "GPU", whose memory and streams are the stand-in's. It
// is compiled against the C headers that TensorFlow's package brings. TensorFlow's CPU packages have no kernels for a
// GPU but those that fit any device (Identity, variables, control flow, copies): enough to run ours there. One is
// added, so that there is something that the GPU computes.
//
// TensorFlow keeps CUDA's stream in an Eigen::GpuDevice; standin_eigen_device gives ours in one.
#define EIGEN_USE_GPU
#define EIGEN_USE_THREADS
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "standin.h"
#include "streams.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "unsupported/Eigen/CXX11/Tensor"

extern "C" {
// The stand-in's driver.
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(ContextBody** context, int device);
int cuCtxPushCurrent_v2(ContextBody* context);
int cuCtxPopCurrent_v2(ContextBody** context);
int cuEventCreate(EventBody** event, unsigned flags);
int cuEventRecord(EventBody* event, StreamBody* stream);
int cuEventQuery(EventBody* event);
int cuStreamWaitEvent(StreamBody* stream, EventBody* event, unsigned flags);
}

// TensorFlow's own type, of the headers in its package: so the layout that the shim walks is theirs.
struct OneStream : Eigen::StreamInterface {
  explicit OneStream(StreamBody* body) : stream_(reinterpret_cast<cudaStream_t>(body)) {}
  const cudaStream_t& stream() const override { return stream_; }
  const cudaDeviceProp& deviceProperties() const override { std::abort(); }
  void* allocate(size_t) const override { std::abort(); }
  void deallocate(void*) const override { std::abort(); }
  void* scratchpad() const override { std::abort(); }
  unsigned int* semaphore() const override { std::abort(); }
  const cudaStream_t stream_;
};

struct SP_Stream_st {
  explicit SP_Stream_st(StreamBody* body_) : body(body_), one(body_), device(&one) {}
  StreamBody* const body;
  const OneStream one;
  const Eigen::GpuDevice device;
};
struct SP_Event_st {
  EventBody* body = nullptr;
};

namespace {

std::atomic<StreamBody*> computing{nullptr};

void set_ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }
void check(int code, TF_Status* status) {
  TF_SetStatus(status, code == 0 ? TF_OK : TF_INTERNAL, code == 0 ? "" : "the stand-in's driver has failed");
}

class Current {
 public:
  explicit Current(const SP_Device* device) {
    ContextBody* context = nullptr;
    cuDevicePrimaryCtxRetain(&context, device->ordinal);
    cuCtxPushCurrent_v2(context);
  }
  ~Current() {
    ContextBody* context = nullptr;
    cuCtxPopCurrent_v2(&context);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
};

void allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = standin_allocate(device->ordinal, size);
  memory->size = memory->opaque == nullptr ? 0 : size;
}
void deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  if (memory->opaque != nullptr) standin_free(memory->opaque);
  memory->opaque = nullptr;
}

void create_stream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  auto* const body = static_cast<StreamBody*>(standin_stream(device->ordinal));
  *stream = new SP_Stream_st(body);
  set_ok(status);
}

void create_event(const SP_Device* device, SP_Event* event, TF_Status* status) {
  const Current current(device);
  *event = new SP_Event_st;
  check(cuEventCreate(&(*event)->body, 2), status);
}
SE_EventStatus event_status(const SP_Device* device, SP_Event event) {
  const Current current(device);
  const int code = cuEventQuery(event->body);
  return code == 0 ? SE_EVENT_COMPLETE : code == 600 ? SE_EVENT_PENDING : SE_EVENT_ERROR;
}

void copy(SP_Stream stream, void* to, const void* from, uint64_t size, TF_Status* status) {
  standin_copy(stream->body, to, from, size);
  set_ok(status);
}
// TensorFlow does it before there is any other work.
void copy_now(void* to, const void* from, uint64_t size, TF_Status* status) {
  std::memcpy(to, from, size);
  set_ok(status);
}
void fill(SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t pattern, uint64_t size, TF_Status* status) {
  standin::enqueue(stream->body, "TensorFlow's fill", {{memory->opaque, size, true}},
                   [to = memory->opaque, pattern, size] { std::memset(to, pattern, size); });
  set_ok(status);
}

void create_stream_executor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status* status) {
  SP_StreamExecutor& on = *params->stream_executor;
  on.struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  on.allocate = allocate;
  on.deallocate = deallocate;
  // Eigen wants it aligned.
  on.host_memory_allocate = [](const SP_Device*, uint64_t size) {
    return std::aligned_alloc(64, (size + 63) / 64 * 64);
  };
  on.host_memory_deallocate = [](const SP_Device*, void* memory) { std::free(memory); };
  on.get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  on.device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = int64_t{2} << 30;
    return 1;
  };
  on.create_stream = create_stream;
  on.destroy_stream = [](const SP_Device*, SP_Stream stream) { standin_drain(stream->body); };
  on.create_stream_dependency = [](const SP_Device*, SP_Stream later, SP_Stream sooner, TF_Status* how) {
    standin_order(sooner->body, later->body);
    set_ok(how);
  };
  on.get_stream_status = [](const SP_Device*, SP_Stream, TF_Status* how) { set_ok(how); };
  on.create_event = create_event;
  on.destroy_event = [](const SP_Device*, SP_Event event) { delete event; };
  on.get_event_status = event_status;
  on.record_event = [](const SP_Device* device, SP_Stream stream, SP_Event event, TF_Status* how) {
    const Current current(device);
    check(cuEventRecord(event->body, stream->body), how);
  };
  on.wait_for_event = [](const SP_Device* const device, SP_Stream stream, SP_Event event, TF_Status* const how) {
    const Current current(device);
    check(cuStreamWaitEvent(stream->body, event->body, 0), how);
  };
  on.block_host_for_event = [](const SP_Device* device, SP_Event event, TF_Status* how) {
    while (event_status(device, event) == SE_EVENT_PENDING) {
    }
    set_ok(how);
  };
  on.block_host_until_done = [](const SP_Device* device, SP_Stream stream, TF_Status* how) {
    SP_Event event = nullptr;
    create_event(device, &event, how);
    {
      const Current current(device);
      check(cuEventRecord(event->body, stream->body), how);
    }
    while (event_status(device, event) == SE_EVENT_PENDING) {
    }
    delete event;
  };
  on.synchronize_all_activity = [](const SP_Device*, TF_Status* how) { set_ok(how); };
  on.memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                      TF_Status* how) { copy(stream, to, from->opaque, size, how); };
  on.memcpy_htod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                      TF_Status* how) { copy(stream, to->opaque, from, size, how); };
  on.memcpy_dtod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                      uint64_t size, TF_Status* how) { copy(stream, to->opaque, from->opaque, size, how); };
  on.sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* how) {
    copy_now(to, from->opaque, size, how);
  };
  on.sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status* how) {
    copy_now(to->opaque, from, size, how);
  };
  on.sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
                           TF_Status* how) { copy_now(to->opaque, from->opaque, size, how); };
  on.mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint64_t size, TF_Status* how) {
    fill(stream, memory, 0, size, how);
  };
  on.memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t pattern, uint64_t size,
                 TF_Status* how) { fill(stream, memory, pattern, size, how); };
  on.memset32 = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint32_t pattern, uint64_t size,
                   TF_Status* how) { fill(stream, memory, static_cast<uint8_t>(pattern), size, how); };
  on.host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn call, void* argument) -> TF_Bool {
    stream->body->push([call, argument] {
      TF_Status* const how = TF_NewStatus();
      call(argument, how);
      TF_DeleteStatus(how);
    });
    return 1;
  };
  set_ok(status);
}

// What a GPU computes while TensorFlow goes on: the negative of float32.
void negate(void*, TF_OpKernelContext* context) {
  TF_Status* const how = TF_NewStatus();
  TF_Tensor* input = nullptr;
  TF_GetInput(context, 0, &input, how);
  std::vector<int64_t> shape;
  for (int d = 0; d < TF_NumDims(input); ++d) shape.push_back(TF_Dim(input, d));
  const size_t bytes = TF_TensorByteSize(input);
  TF_Tensor* const output =
      TF_AllocateOutput(context, 0, TF_FLOAT, shape.data(), static_cast<int>(shape.size()), bytes, how);
  auto* const from = static_cast<const float*>(TF_TensorData(input));
  auto* const to = static_cast<float*>(TF_TensorData(output));
  standin::enqueue(TF_GetStream(context, how)->body, "TensorFlow's kernel", {{from, bytes, false}, {to, bytes, true}},
                   [from, to, bytes] { std::transform(from, from + bytes / sizeof(float), to, std::negate<>()); });
  TF_DeleteTensor(input);
  TF_DeleteTensor(output);
  TF_DeleteStatus(how);
}

}  // namespace

extern "C" {

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  cuInit(0);
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "STANDIN";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  SP_PlatformFns& on = *params->platform_fns;
  on.struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  on.get_device_count = [](const SP_Platform*, int* count, TF_Status* how) {
    *count = STANDIN_DEVICES;
    set_ok(how);
  };
  on.create_device = [](const SP_Platform*, SE_CreateDeviceParams* made, TF_Status* how) {
    made->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    made->device->ordinal = made->ordinal;
    set_ok(how);
  };
  on.destroy_device = [](const SP_Platform*, SP_Device*) {};
  on.create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* made, TF_Status* how) {
    made->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
    set_ok(how);
  };
  on.destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  on.create_stream_executor = create_stream_executor;
  on.destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  on.create_timer_fns = [](const SP_Platform*, SP_TimerFns* made, TF_Status* how) {
    made->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    made->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
    set_ok(how);
  };
  on.destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  set_ok(status);
}

void TF_InitKernel() {
  TF_Status* const how = TF_NewStatus();
  TF_KernelBuilder* const kernel = TF_NewKernelBuilder("Neg", "GPU", nullptr, negate, [](void*) {});
  TF_KernelBuilder_TypeConstraint(kernel, "T", TF_FLOAT, how);
  TF_RegisterKernelBuilder("StandinNeg", kernel, how);
  TF_DeleteStatus(how);
}

// In place of OpKernelContext::eigen_device<Eigen::GpuDevice>().
const void* standin_eigen_device(void* context) {
  TF_Status* const how = TF_NewStatus();
  const SP_Stream stream = TF_GetStream(static_cast<TF_OpKernelContext*>(context), how);
  TF_DeleteStatus(how);
  computing = stream->body;
  return &stream->device;
}

// The stream on which TensorFlow's GPU computes, once one of our kernels has run there.
void* standin_tensorflow_stream() { return computing; }

}  // extern "C"
