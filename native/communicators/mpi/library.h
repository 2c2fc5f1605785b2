// SPDX-License-Identifier: Apache-2.0
// The MPI that this process uses (step 7): its functions, found at run time, and its handles, as mpi4py has them. No
// header of any MPI is needed, and one binary serves all of them.
//
// A handle is a 4-byte integer in MPICH and its kin, and a pointer in Open MPI and in the standard's ABI. A uintptr_t
// carries both: passed by value, the callee reads what it needs; an output starts as zero.
#pragma once

#include <cstdint>
#include <string>

#include "platform/status.h"
#include "reduction/types.h"

namespace hvd::mpi {

using Handle = uintptr_t;

constexpr int kSuccess = 0;  // MPI_SUCCESS, in every MPI

// Those that are called, as mpi.h declares them.
struct Functions {
  int (*Comm_group)(Handle comm, Handle* group);
  int (*Group_incl)(Handle group, int count, const int* ranks, Handle* some);
  int (*Group_free)(Handle* group);
  int (*Comm_create_group)(Handle comm, Handle group, int tag, Handle* made);
  int (*Comm_free)(Handle* comm);
  int (*Isend)(const void* data, int count, Handle type, int to, int tag, Handle comm, Handle* request);
  int (*Irecv)(void* data, int count, Handle type, int from, int tag, Handle comm, Handle* request);
  int (*Iprobe)(int from, int tag, Handle comm, int* there, void* status);
  int (*Test)(Handle* request, int* done, void* status);
  int (*Error_string)(int code, char* text, int* length);
  int (*Finalized)(int* flag);
};

struct Library {
  Functions call;
  Handle world;  // the rank in it is the rank of the job
  Handle byte;
  std::string version;
};

// Kept for the life of the process. A second library is refused, another world of the same one is taken. Any thread.
Status use(const hvd_mpi& given);
// Empty if there is an MPI, else why not.
std::string why_unavailable();
// Null until `use` was given a world.
const Library* library();

// Translates the return value of a call.
Status checked(const Library& mpi, int code, const char* function);

}  // namespace hvd::mpi
