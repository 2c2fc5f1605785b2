/* SPDX-License-Identifier: Apache-2.0
 *
 * horovod.h: THE boundary between the native core and every framework (step 4 of a gradient's way).
 *
 * ABI rules
 *  - C99 only. Handles are opaque. Every struct that crosses opens with `size`, set by the caller to sizeof(struct);
 *    the size of what stands in an array is a field beside the array, 0 for that of the first version. Fields are only
 *    ever appended. A newer library accepts an older, shorter struct: what is not there is zero. An older library
 *    accepts a newer, longer one if what it does not know is zero, otherwise the call is HVD_INVALID_ARGUMENT. Results
 *    are written as far as the caller's struct reaches.
 *  - Every function that can fail returns an hvd_code, and fills `status` if it is not NULL. No exception leaves the
 *    library.
 *  - Pointers in a request are borrowed during the call only, except tensor data, which is borrowed until the handle
 *    is done.
 *  - All functions may be called from any thread. hvd_wait and hvd_poll may run collectives on the calling thread.
 *  - The library reads no environment variable, opens no file for writing, and prints only warnings and fatal
 *    causes (stderr).
 *  - After fork() every call in the child fails with HVD_FORKED; the links are closed there.
 */
#ifndef HOROVOD_HOROVOD_H_
#define HOROVOD_HOROVOD_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_EXPORT __attribute__((visibility("default")))
#define HVD_ABI_VERSION 2u

/* Outcome of a call or of an operation. Names are stable, numbers are ABI. */
typedef enum {
  HVD_OK = 0,
  HVD_PENDING = 1,          /* hvd_wait: the time is up or a signal arrived; hvd_poll: not done yet */
  HVD_INVALID_ARGUMENT = 2, /* this rank's request is wrong; no peer knows of it */
  HVD_DUPLICATE_NAME = 3,   /* the name is in flight on this rank already */
  HVD_MISMATCH = 4,         /* the ranks disagree about a tensor; every member gets the same text */
  HVD_RANK_LOST = 5,        /* a rank died, froze or its host is unreachable */
  HVD_RANK_LEFT = 6,        /* a rank shut down or exited while others still wait for it */
  HVD_ABORTED = 7,          /* hvd_abort, or the stall limit */
  HVD_NOT_RUNNING = 8,      /* the context has been stopped */
  HVD_UNAVAILABLE = 9,      /* a transport or a resource that was asked for is not to be had */
  HVD_OUT_OF_MEMORY = 10,
  HVD_WOULD_DEADLOCK = 11, /* hvd_wait from inside a completion callback */
  HVD_FORKED = 12,         /* the caller is a forked child */
  HVD_INTERNAL = 13,       /* a defect of this library */
  HVD_REFUSED = 14,        /* another rank's call of the operation was wrong (hvd_refuse); failed_rank made it */
  HVD_JOINED = 15,         /* a rank has joined and gives no data; only allreduce can do without it */
  HVD_DEVICE_LOST = 16,    /* a rank's GPU cannot be used any more by its process */
  HVD_DEADLOCK = 17        /* ranks wait for each other in different calls, and none of them can submit anything */
} hvd_code;

typedef enum {
  HVD_UINT8 = 0,
  HVD_INT8 = 1,
  HVD_INT16 = 2,
  HVD_INT32 = 3,
  HVD_INT64 = 4,
  HVD_FLOAT16 = 5,
  HVD_BFLOAT16 = 6,
  HVD_FLOAT32 = 7,
  HVD_FLOAT64 = 8,
  HVD_BOOL = 9,
  HVD_UINT16 = 10,
  HVD_UINT32 = 11,
  HVD_UINT64 = 12
} hvd_dtype;

/* Numbers as in Horovod's public constants. */
typedef enum {
  HVD_AVERAGE = 0,
  HVD_SUM = 1,
  HVD_ADASUM = 2,
  HVD_MIN = 3,
  HVD_MAX = 4,
  HVD_PRODUCT = 5,
  HVD_BITAND = 6, /* of integers and bool, unscaled; so are the next two */
  HVD_BITOR = 7,
  HVD_BITXOR = 8
} hvd_op;

typedef enum {
  HVD_ALLREDUCE = 0,
  HVD_ALLGATHER = 1,
  HVD_BROADCAST = 2,
  HVD_BARRIER = 3,
  HVD_ALLTOALL = 4,
  HVD_REDUCESCATTER = 5,
  HVD_ADD_PROCESS_SET = 6, /* these two only through hvd_add_process_set and hvd_remove_process_set */
  HVD_REMOVE_PROCESS_SET = 7,
  HVD_SEND = 8, /* of one tensor to one rank, and its counterpart: see hvd_request.tag */
  HVD_RECEIVE = 9
} hvd_kind;

/* Where the tensors of a request lie. */
typedef enum {
  HVD_ON_HOST = 0,
  HVD_ON_CUDA = 1 /* in the memory of one GPU, by the CUDA driver */
} hvd_place;

/* hvd_request.flags */
enum {
  HVD_SYNC = 1,  /* the caller waits at once: no other thread needs to be woken for it, and the submission itself
                    already drives, for some microseconds, which may run the operation */
  HVD_URGENT = 2 /* do not linger for more tensors: a thread waits for the result, though not in hvd_wait */
};

/* What a link is for. Links are connected and authenticated before hvd_start, except those that an opener gives. */
typedef enum {
  HVD_LINK_LOCAL = 0,   /* unix stream socket between a host's leader (its lowest rank) and one follower */
  HVD_LINK_CONTROL = 1, /* TCP between two hosts' leaders that hvd_control_links names */
  HVD_LINK_DATA = 2,  /* TCP between two ranks that hvd_plan names; one or more per pair, the same number everywhere */
  HVD_LINK_BEAT = 3,  /* TCP between the same leaders: signs of life. Without: silence is not a loss */
  HVD_LINK_OPENER = 4 /* SOCK_SEQPACKET between the library and the caller's opener, which opens this rank's data links
                         when they are first used; `index`: how many each pair has. The library sends a rank (int32),
                         and gets back that rank with its sockets (SCM_RIGHTS, in the same order at both ends), or,
                         without any, the reason in words. It closes its end with the context */
} hvd_purpose;

typedef struct hvd_context hvd_context; /* one generation of one process; several may exist */
/* A prepared request: descriptor built; lives as long as its context, or until hvd_release_entry. */
typedef struct hvd_entry hvd_entry;
typedef uint64_t hvd_handle; /* {slot, reuse}: a stale one is an error, never a crash. 0 is not a handle */

typedef struct {
  const char *name, *value;
} hvd_setting;

typedef struct {
  uint32_t size;
  int32_t code;        /* hvd_code */
  int32_t failed_rank; /* the rank that caused it, -1 if no single rank did */
  int32_t member;      /* the member of a grouped request that failed, -1 otherwise */
  char text[2048];     /* what was expected and what came, UTF-8, NUL-terminated, cut at the end if it is too long */
} hvd_status;

typedef struct {
  int32_t peer;    /* world rank at the other end */
  int32_t purpose; /* hvd_purpose */
  int32_t fd;      /* duplicated by hvd_start; the caller closes its own */
  int32_t index;   /* 0, 1, ... among several data links with the same peer */
} hvd_link;

typedef struct {
  uint32_t size;
  int32_t rank, world_size;
  uint64_t generation;         /* equal on all ranks, differs between two starts of one job */
  const int32_t* host_of_rank; /* world_size entries; ranks on one host share memory */
  const hvd_setting* settings; /* see docs/settings; unknown names are an error */
  uint32_t nsettings;
  uint32_t nlinks;
  const hvd_link* links;
  uint32_t setting_size, link_size; /* sizeof(hvd_setting), sizeof(hvd_link) */
} hvd_options;

/* One tensor of a request: dense, row-major, aligned to its element size. */
typedef struct {
  const void* input;
  void* output; /* allreduce, broadcast: as large as input, may equal it. reducescatter: this member's rows of it, apart
                   from input. allgather, alltoall: memory of output_bytes apart from input, or NULL, read hvd_result.
                   send: NULL. receive: the tensor; input is NULL */
  const int64_t* shape;
  int32_t ndim;         /* at most 16 */
  int32_t dtype;        /* hvd_dtype */
  int64_t output_bytes; /* allgather, alltoall: 0, or how large the result will be. If it has another size, the call
                           fails on this rank once it is done */
} hvd_tensor;

/* Runs on the driving thread with no lock held; may submit, take the result and release the handle, not wait. Where the
   handle was to be written, it stands there before this is called. */
typedef void (*hvd_done_fn)(void* user, const hvd_status* status);

typedef struct {
  uint32_t size;
  int32_t kind, op;    /* hvd_kind, hvd_op */
  int32_t process_set; /* 0 = all ranks; others: see hvd_add_process_set. This rank must be a member */
  int32_t root_rank; /* world rank, a member. broadcast: the root. send, receive: the other rank; receive: -1 for any */
  uint32_t flags;
  uint32_t ntensors;    /* more than one: a grouped request, done or failed as a whole. Barrier: 0; alltoall, send,
                           receive: 1 */
  uint32_t tensor_size; /* sizeof(hvd_tensor) */
  const char* name;     /* NULL: unnamed, matched across ranks by the order of submission */
  const hvd_tensor* tensors;
  double prescale, postscale;
  hvd_done_fn done; /* may be NULL */
  void* user;
  const int64_t* splits; /* alltoall: rows for each member, in member order; NULL: the same number for all */
  uint32_t nsplits;
  uint32_t reserved;
  int32_t place;  /* hvd_place; the ranks must agree on it */
  int32_t device; /* HVD_ON_CUDA: the GPU's number in this process */
  int32_t tag;    /* send, receive, which have no name: they meet if set, ranks and tag are equal, in order */
} hvd_request;

/* Where an operation whose output size was unknown at submission left tensor `index`; valid until hvd_release. */
typedef struct {
  uint32_t size;
  int32_t ndim;
  const void* data;
  const int64_t* shape; /* dimension 0 is the sum of `rows` */
  const int64_t* rows;  /* allgather, alltoall: rows that came from each member, in member order.
                           hvd_add_process_set: one number, the set's. hvd_join: one, the last rank. receive: one,
                           the rank that sent */
  int32_t place;        /* hvd_place of `data`; of tensors on a GPU it may be either */
  int32_t device;       /* HVD_ON_CUDA: the GPU's number */
} hvd_result;

HVD_EXPORT uint32_t hvd_abi_version(void);
/* The word that `horovodrun --explain` knows an hvd_code by; NULL for a code that is not a failure of its own. */
HVD_EXPORT const char* hvd_code_name(int32_t code);
/* The version of the CUDA driver (1000 * major + 10 * minor) and of NCCL (10000 * major + 100 * minor + patch) that
   would be used; 0 if there is none that can be, and why in `status`. `library`: a file, or empty for the usual one;
   `found`: where to look for NCCL if the process has not loaded it. Neither is initialised. */
HVD_EXPORT int32_t hvd_cuda_version(const char* library, hvd_status* status);
HVD_EXPORT int32_t hvd_nccl_version(const char* library, const char* found, hvd_status* status);
/* How many bytes an element of an hvd_dtype has; 0 if there is no such dtype. */
HVD_EXPORT int32_t hvd_dtype_bytes(int32_t dtype);
/* How many of the first dimension's rows a member gets in a reducescatter. */
HVD_EXPORT int64_t hvd_rows_of_member(int64_t rows, int32_t members, int32_t member);
/* JSON: version, build (a checksum of the sources), compiler, the kernels' instruction sets that run here. */
HVD_EXPORT const char* hvd_build_info(void);

/* JSON, one object for each communicator of this build (after hvd_use_mpi, if MPI is to count), in the order in which
   "auto" tries them: name, title, available and, if it is not, why. */
HVD_EXPORT const char* hvd_communicators(void);
/* Which of them joins these members (world ranks, ascending) of a world, before there is a context. `transport`: a
   name, or "auto"; HVD_UNAVAILABLE if it does not fit and `must` is not 0, else the first one that fits is taken.
   `name` gets at most 32 bytes. linked[r] becomes 1 for each rank r with which `rank` needs a data link; the others
   stay as they are. */
HVD_EXPORT int hvd_plan(const char* transport, int32_t must, const int32_t* host_of_rank, int32_t world_size,
                        const int32_t* members, int32_t nmembers, int32_t rank, char* name, uint8_t* linked,
                        hvd_status* status);
/* linked[r] becomes 1 for each rank r with which `rank` needs a control link and a beat link; the others stay as they
   are. `relays_above_hosts`: the setting of that name. */
HVD_EXPORT int hvd_control_links(const int32_t* host_of_rank, int32_t world_size, int32_t relays_above_hosts,
                                 int32_t rank, uint8_t* linked, hvd_status* status);

/* What communicators need of MPI, which the caller has opened and initialised for all threads. */
typedef struct {
  uint32_t size;
  const char* why;     /* not NULL: there is no MPI, and why; nothing else counts */
  const char* path;    /* a loaded module that depends on the MPI; NULL: there is one, but it has not been opened yet */
  const char* version; /* for statistics */
  uint64_t world;      /* MPI_Comm: the job's ranks in their order; for Horovod's use alone */
  uint64_t byte;       /* MPI_BYTE */
} hvd_mpi;
/* Before hvd_start; strings are copied. HVD_UNAVAILABLE if a function is missing. */
HVD_EXPORT int hvd_use_mpi(const hvd_mpi* mpi, hvd_status* status);

/* Joins the generation: blocks until every rank of the host has attached, bounded by setting start_timeout_ms. */
HVD_EXPORT int hvd_start(const hvd_options* options, hvd_context** context, hvd_status* status);
/* Leaves the job in order and frees nothing that a handle needs; bounded by timeout_ms even where peers are dead.
   Operations in flight end with HVD_NOT_RUNNING here and with HVD_RANK_LEFT on the ranks that wait for this one. */
HVD_EXPORT int hvd_stop(hvd_context* context, uint32_t timeout_ms, hvd_status* status);
/* What the first operation that failed because the job ended was told here, also where only a callback has heard it;
   HVD_OK where none has. Before hvd_stop. */
HVD_EXPORT int hvd_end_seen(hvd_context* context, hvd_status* status);
/* This process will end with exit code 1, whatever its program says. For a failure that the program was not told of. */
HVD_EXPORT void hvd_fail_at_exit(void);
/* Around a call that may never return and that nothing interrupts, such as MPI_Init: after timeout_ms this process ends
   with exit code 1 and `text` on stderr, unless this is called again before, with 0. */
HVD_EXPORT void hvd_limit_time(uint32_t timeout_ms, const char* text);
/* For a caller that goes on to use the context while another one may stop and free it: hvd_free is called once more. */
HVD_EXPORT void hvd_hold(hvd_context* context);
/* Frees a stopped context, or, if it is held, leaves that to the last holder. The caller must not use it any more; none
   of its own calls may be running. */
HVD_EXPORT void hvd_free(hvd_context* context);
/* Ends the generation on every rank with this cause. Never blocks; async-signal-unsafe. */
HVD_EXPORT void hvd_abort(hvd_context* context, int32_t failed_rank, const char* text);

/* A request that will be submitted many times: everything but the tensor pointers is fixed here. */
HVD_EXPORT int hvd_prepare(hvd_context* context, const hvd_request* request, hvd_entry** entry, hvd_status* status);
/* Frees a prepared request before its context. The entry must not be used any more; its submitted calls go on. */
HVD_EXPORT void hvd_release_entry(hvd_context* context, hvd_entry* entry);
/* inputs and outputs: one pointer per tensor of the prepared request. Never blocks on a peer. */
HVD_EXPORT int hvd_submit_entry(hvd_context* context, hvd_entry* entry, const void* const* inputs, void* const* outputs,
                                uint32_t flags, hvd_handle* handle, hvd_status* status);
/* As hvd_submit_entry, and the request's `done` gets this `user` instead of the prepared one. */
HVD_EXPORT int hvd_submit_entry_for(hvd_context* context, hvd_entry* entry, const void* const* inputs,
                                    void* const* outputs, uint32_t flags, void* user, hvd_handle* handle,
                                    hvd_status* status);
/* As hvd_submit_entry_for, of tensors on a GPU: the inputs are those that `stream` (CUstream) has computed by now; the
   outputs have been allocated, if their memory is used again in the order of that stream. Both are borrowed until the
   handle is done, not only until hvd_wait_on_stream returns. */
HVD_EXPORT int hvd_submit_entry_on(hvd_context* context, hvd_entry* entry, const void* const* inputs,
                                   void* const* outputs, uint32_t flags, void* user, void* stream, hvd_handle* handle,
                                   hvd_status* status);
HVD_EXPORT int hvd_submit(hvd_context* context, const hvd_request* request, hvd_handle* handle, hvd_status* status);
/* hvd_submit_entry of a request with one tensor and HVD_SYNC, hvd_wait, and if that gives HVD_OK hvd_release, in one
   call: for a small tensor a call from another language costs as much as the operation. *handle is 0 afterwards if
   there is nothing left to wait for or to release: the operation is done, or could not be submitted. */
HVD_EXPORT int hvd_run_entry(hvd_context* context, hvd_entry* entry, const void* input, void* output,
                             int32_t timeout_ms, hvd_handle* handle, hvd_status* status);
/* Tells the other ranks that this rank's call of `name` failed before it could be submitted, so that they fail too
   (HVD_REFUSED with `why`) instead of waiting. `name` may be NULL for an unnamed call. */
HVD_EXPORT int hvd_refuse(hvd_context* context, const char* name, int32_t process_set, const char* why,
                          hvd_status* status);

/* Collective over all ranks, members or not, in the same order everywhere: start an operation that adds a set of world
   ranks (ascending, each once), or removes one. Wait for the handle; the result of adding is the set's number, the
   lowest that is free. A set with an operation in flight on any rank is not removed (HVD_MISMATCH names it). */
HVD_EXPORT int hvd_add_process_set(hvd_context* context, const int32_t* ranks, uint32_t nranks, hvd_handle* handle,
                                   hvd_status* status);
HVD_EXPORT int hvd_remove_process_set(hvd_context* context, int32_t process_set, hvd_handle* handle,
                                      hvd_status* status);
/* The number of members of a set, and this rank's place among them, -1 if it is none. */
HVD_EXPORT int hvd_process_set_place(hvd_context* context, int32_t process_set, int32_t* members, int32_t* member,
                                     hvd_status* status);

/* Starts this rank's join: it has no more data, and submits nothing more until all ranks have joined. Wait for the
   handle; the result is the rank that joined last. Meanwhile this rank gives zeros to the allreduces of the others, in
   every set; any other operation that it is a member of fails (HVD_MISMATCH) on those that called it. What it had in
   flight stays its own. */
HVD_EXPORT int hvd_join(hvd_context* context, hvd_handle* handle, hvd_status* status);

/* The number of the GPU whose memory an address is in; HVD_INVALID_ARGUMENT if it is not in a GPU's memory. */
HVD_EXPORT int hvd_device_of(hvd_context* context, const void* address, int32_t* device, hvd_status* status);
/* The number of the GPU that a stream (CUstream) belongs to: tensors without elements have no address. A default stream
   is that of the context which is current on the calling thread; an error if none is. */
HVD_EXPORT int hvd_device_of_stream(hvd_context* context, void* stream, int32_t* device, hvd_status* status);

/* Drives the engine until the handle is done, for at most timeout_ms (negative: no limit). Returns the operation's own
   code, or HVD_PENDING early when a signal arrived, so that the caller's language may run its handlers. */
HVD_EXPORT int hvd_wait(hvd_context* context, hvd_handle handle, int32_t timeout_ms, hvd_status* status);
/* This process submits nothing more until one of these operations is done: each of its threads that could waits for one
   of them. Holds until it submits something, one of its operations is ready, or the next call of this function; no
   handles: it may submit again. Ranks that wait for each other for ever are told so (HVD_DEADLOCK). */
HVD_EXPORT int hvd_declare_blocked(hvd_context* context, const hvd_handle* handles, uint32_t nhandles,
                                   hvd_status* status);
/* The ranks of this host that an operation waits for, ascending, as far as this rank knows: none if it is ready, or the
   first of its name. *nranks: the room in `ranks`, at least the ranks of this host; then their number. */
HVD_EXPORT int hvd_missing(hvd_context* context, hvd_handle handle, int32_t* ranks, uint32_t* nranks,
                           hvd_status* status);
/* HVD_PENDING: not done yet. */
HVD_EXPORT int hvd_poll(hvd_context* context, hvd_handle handle, hvd_status* status);
/* HVD_PENDING: hvd_wait_on_stream would still wait. Of other operations: hvd_poll. */
HVD_EXPORT int hvd_poll_launch(hvd_context* context, hvd_handle handle, hvd_status* status);
/* For tensors on a GPU: drives the engine until the operation is launched, and has `stream` wait for its end, which the
   caller does not. What fails after that is told by the next call that waits. Of other operations: hvd_wait. */
HVD_EXPORT int hvd_wait_on_stream(hvd_context* context, hvd_handle handle, void* stream, int32_t timeout_ms,
                                  hvd_status* status);
/* Drives the engine until all that has been launched has ended, for at most timeout_ms (negative: no limit). Tells also
   of an error that ended the generation before. HVD_PENDING: it goes on, and something has not ended. */
HVD_EXPORT int hvd_settle(hvd_context* context, int32_t timeout_ms, hvd_status* status);
HVD_EXPORT int hvd_get_result(hvd_context* context, hvd_handle handle, uint32_t index, hvd_result* result,
                              hvd_status* status);
/* Copies what hvd_result.data would point to, in host memory or on a GPU, to a GPU's memory `to`, in the order of
   `stream`, for which hvd_wait_on_stream has been called. Only for tensors on that GPU; once for each result. */
HVD_EXPORT int hvd_copy_result(hvd_context* context, hvd_handle handle, uint32_t index, void* to, void* stream,
                               hvd_status* status);
/* Every handle is released once; releasing one that is not done detaches it. */
HVD_EXPORT void hvd_release(hvd_context* context, hvd_handle handle);

/* Writes what happens to each tensor into a file (JSON, for Chrome's and Perfetto's viewers), together with the other
   ranks of the machine that were given the same file and session; what it held before is overwritten. Writes
   until hvd_stop_timeline or hvd_stop. A timeline that is on goes on in the new file. `descriptor`: an open file, for
   reading and writing; the library duplicates the descriptor. `path`: for warnings. */
HVD_EXPORT int hvd_start_timeline(hvd_context* context, int32_t descriptor, const char* path, const char* session,
                                  int32_t mark_cycles, hvd_status* status);
HVD_EXPORT int hvd_stop_timeline(hvd_context* context, hvd_status* status);

/* JSON about the running context: transport, hop_ns, isa, batches, bytes, messages ... Returns the length it has or
 * would have. */
HVD_EXPORT int64_t hvd_statistics(hvd_context* context, char* buffer, int64_t capacity);

/* Prints a warning of the caller's as the library prints its own: if the setting log_level allows it, and behind the
   time if log_time is set. */
HVD_EXPORT void hvd_warn(hvd_context* context, const char* text);

/* Lets stall reports of other ranks say where this process' main thread stands: the handler of `signal`, installed by
   the caller, writes that into `fd`, a file of its own, which stays open. For the whole process. */
HVD_EXPORT void hvd_stack_source(int signal, int fd);

/* For tests: ends or stops this process where `specification` (setting fault_point, see native/platform/fault_point.h)
   names `point`. For moments that lie outside of this library. 0 if the specification cannot be read. */
HVD_EXPORT int hvd_fault_point(const char* specification, const char* point);

#ifdef __cplusplus
}
#endif
#endif /* HOROVOD_HOROVOD_H_ */
