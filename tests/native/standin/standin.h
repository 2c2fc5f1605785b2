/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-in for GPUs on machines that have none: libhvd_standin.so has the functions of the CUDA driver and of
 * NCCL that the library looks up. "Device memory" is memory of the host, and a stream is a queue with a thread. The
 * library under test is the shipped one; it is told to open this file instead of libcuda.so.1 and libnccl.so.2.
 *
 * What it checks, when work is enqueued and so whatever the timing: two accesses to the same memory, of which one
 * writes, must be ordered by streams, events, or a host that has seen the end of the first one. Each stream and the
 * host have a vector clock. The host is one actor: how its threads order themselves is not seen here.
 *
 * What tests tell it follows; all of it from any thread.
 */
#ifndef HOROVOD_TESTS_STANDIN_H_
#define HOROVOD_TESTS_STANDIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STANDIN_DEVICES 4

/* What the driver says that it is: 11030 to 13000. Before it is opened. */
void standin_driver_version(int version);
/* The functions it has, as cuGetProcAddress knows them; NULL behind the last. */
const char* standin_function(int index);

/* Likewise of NCCL: 20000 to 23203 and so on, and its functions. */
void standin_nccl_version(int version);
const char* standin_nccl_function(int index);

/* Lines about accesses without an order since the last call; valid until the next one. Empty if there were none. */
const char* standin_races(void);
/* Forgets accesses: what follows is ordered after all that was. The streams must be idle. */
void standin_forget(void);

/* From the `after`th call of this function from now on (0: the next one), each call fails with `code`, `count` times.
 * ncclCommGetAsyncError tells of a failure with this code instead, and standin_allocate gives no memory. */
void standin_fail(const char* function, int after, int code, int count);

/* Likewise a call that takes so long; a negative time: until NCCL's communicator is aborted, if it has one. It knows
 * ncclCommInitRankConfig, ncclGroupEnd and ncclCommAbort. */
void standin_block(const char* function, int after, int milliseconds);
/* 1 until the call that blocks has begun. */
int standin_is_planned(const char* function);

/* Streams as a framework has them; `device` counts from 0. They are never destroyed. */
void* standin_stream(int device);
/* Work that is enqueued does not run until the stream is let go. */
void standin_hold(void* stream);
void standin_release(void* stream);
/* Waits until all work on it has run. */
void standin_drain(void* stream);

/* Device memory as a framework's allocator gives it: not in the order of a stream. Poisoned with 0xFD. */
void* standin_allocate(int device, size_t bytes);
void standin_free(void* memory);

/* A framework's kernels: what a stream reads and writes. `elements` of float32. */
void standin_fill(void* stream, float* to, size_t elements, float value);
void standin_copy(void* stream, void* to, const void* from, size_t bytes);
/* Work that does nothing to this memory, but counts as if it did. */
void standin_touch(void* stream, const void* memory, size_t bytes, int writes);
/* What `later` gets from now on comes after what `sooner` has. */
void standin_order(void* sooner, void* later);
/* As standin_free, in the order of the stream. */
void standin_free_on(void* stream, void* memory);

/* How many there are, for tests that look for leaks; how many copies had to wait for memory that is not pinned; for how
 * many ids NCCL was asked. */
typedef struct {
  int64_t streams, events, allocations, pinned, pageable_copies, launches, unique_ids;
} standin_counts;
standin_counts standin_count(void);

#ifdef __cplusplus
}
#endif
#endif /* HOROVOD_TESTS_STANDIN_H_ */
