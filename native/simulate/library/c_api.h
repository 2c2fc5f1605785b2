/* SPDX-License-Identifier: Apache-2.0
 *
 * c_api.h: the C interface of libhorovod_simulate, for Python (src/horovod/simulate/native.py). Rules as in horovod.h:
 * structs open with their size, functions return an hvd_code and fill `status`, and no exception leaves the library.
 * One thread for each simulation.
 */
#ifndef HOROVOD_SIMULATE_C_API_H_
#define HOROVOD_SIMULATE_C_API_H_

#include "horovod/horovod.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvd_simulation hvd_simulation;

typedef struct {
  uint32_t size;
  int32_t hosts, ranks_per_host, steps;
  int32_t star_hosts; /* with more hosts, their leaders form a tree */
  uint64_t seed;
  double gbit;                /* of each host's link, Gbit/s */
  double latency_us;          /* of a message; frames of leaders take 0.5 to 1.33 times as long */
  double send_us, receive_us; /* processor time of a message at either end */
  int32_t plant;              /* 0; 1 to 3: a defect, for tests: a bell, an order, a frame */
  int32_t spans;              /* 1: the report has what each rank did when */
  int32_t shuffled;           /* 1: each rank submits in an order of its own */
} hvd_simulate_options;

/* What befalls the job. `kind`: kill-rank, kill-host, freeze, slow, cut, delay, late, shape, join, leave or rename. */
typedef struct {
  uint32_t size;
  int32_t target; /* a rank, of kill-host, cut and delay a host; of shape -1: all ranks; of rename: unused */
  const char* kind;
  int32_t step;   /* when this step begins ... */
  uint64_t event; /* ... or, if not 0, after so many events: kill-rank, kill-host, freeze, slow, cut and delay */
  double amount;  /* milliseconds of freeze (0: for ever), delay and late; the factor of slow */
} hvd_simulate_fault;

HVD_EXPORT int hvd_simulate_create(const hvd_simulate_options* options, hvd_simulation** simulation,
                                   hvd_status* status);
/* Before the first run. ready_us: after the step's start; all 0: a rank submits one name every 2 us. */
HVD_EXPORT int hvd_simulate_add_name(hvd_simulation* simulation, const char* name, int64_t elements, double ready_us,
                                     hvd_status* status);
HVD_EXPORT int hvd_simulate_add_fault(hvd_simulation* simulation, const hvd_simulate_fault* fault, hvd_status* status);
/* At most so many events. HVD_PENDING: there are more; HVD_OK: the run has ended, and all that must hold held;
   HVD_INTERNAL: something did not, and `status` says what. */
HVD_EXPORT int hvd_simulate_run(hvd_simulation* simulation, uint64_t events, hvd_status* status);
/* The counts so far as JSON, with integers only. Returns the length of the text, which is cut to `bytes` - 1. */
HVD_EXPORT int64_t hvd_simulate_report(hvd_simulation* simulation, char* buffer, int64_t bytes);
HVD_EXPORT void hvd_simulate_free(hvd_simulation* simulation);

#ifdef __cplusplus
}
#endif

#endif /* HOROVOD_SIMULATE_C_API_H_ */
