// SPDX-License-Identifier: Apache-2.0
// What Eigen's GpuDevice needs of CUDA's header to be compiled without it. Nothing of it is called.
#pragma once

#include <cstddef>

using cudaStream_t = struct CUstream_st*;
using cudaError_t = int;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaErrorNotReady = 600 };
enum cudaSharedMemConfig { cudaSharedMemBankSizeEightByte };
struct cudaDeviceProp {
  int multiProcessorCount, maxThreadsPerBlock, maxThreadsPerMultiProcessor, major, minor;
  size_t sharedMemPerBlock;
};
constexpr cudaStream_t cudaStreamDefault = nullptr;
cudaError_t cudaGetDevice(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaFree(void*);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, int, cudaStream_t);
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t cudaMemset2DAsync(void*, size_t, int, size_t, size_t, cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig);
