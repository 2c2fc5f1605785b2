// SPDX-License-Identifier: Apache-2.0
// Collectives as operations of MXNet's engine (step 4 of a gradient's way, for MXNet 1.9).
//
// Python makes a call of a request and of the arrays' handles, and pushes it: MXEnginePushAsyncND(hvd_mxnet_run, call,
// hvd_mxnet_delete, ...). MXNet runs it when the arrays are computed; it submits and returns, and MXNet hears of its
// end through the callback that it gave. So a call waits for nothing on MXNet's threads, and overlaps with what else
// MXNet computes. If what computes an array fails, MXNet deletes the call without having run it: the peers are told.
//
// Needs no header of MXNet: the functions of its C interface come from Python, which has the library open.
#pragma once

#include <stdint.h>

#include "horovod/horovod.h"

extern "C" {

// Functions of the MXNet that the process has loaded, and of the C++ runtime that it uses.
typedef struct {
  int (*copy)(void* array, void** copied);            // MXShallowCopyNDArray
  int (*free)(void* array);                           // MXNDArrayFree
  int (*to_dlpack)(void* array, void** tensor);       // MXNDArrayToDLPack
  int (*free_dlpack)(void* tensor);                   // MXNDArrayCallDLPackDeleter
  const char* (*last_error)(void);                    // MXGetLastError
  void (*make_error)(void* error, const char* text);  // std::runtime_error's constructor, whose layout is dmlc::Error's
  void (*end_error)(void* error);                     // its destructor
  void (*reorder)(void* memory);  // NDArray::Chunk::Reorder2Default; null: this MXNet has no layouts of its own
} hvd_mxnet_api;

HVD_EXPORT void hvd_mxnet_use(const hvd_mxnet_api* api);
// The generation that calls are submitted to: after hvd_start, before hvd_stop (null). Any thread. Returns its number,
// which the text of an error ends with.
HVD_EXPORT uint64_t hvd_mxnet_attach(hvd_context* context);
// Counts the calls of a training step: its last call is not held back for more tensors. Freed with the last of `calls`.
HVD_EXPORT void* hvd_mxnet_new_step(uint32_t calls);
// Copies the request, whose tensors' addresses do not count; the arrays have them when the call runs. `outputs`: an
// array of each tensor, perhaps that of the input, which may have a layout of MXNet's own then. `step`: null, or a step
// that has fewer calls yet than it counts. Null if MXNet refuses (hvd_mxnet_api.last_error).
HVD_EXPORT void* hvd_mxnet_new(const hvd_request* request, void* const* inputs, void* const* outputs, void* step);
// The functions that MXNet calls: EngineAsyncFunc and EngineFuncParamDeleter.
HVD_EXPORT void hvd_mxnet_run(void* run_context, void* on_complete, void* call);
HVD_EXPORT void hvd_mxnet_delete(void* call);
// An operation that fails. Many of them, once, make room for the failures of calls (call.cc, `failing`).
HVD_EXPORT void hvd_mxnet_fail(void* run_context, void* on_complete, void* user);
}
