// SPDX-License-Identifier: Apache-2.0
// The settings of an engine. The names are those of hvd_setting; users find them in Python's settings/table.py.
#pragma once

#include <cstdint>
#include <string>

#include "horovod/horovod.h"
#include "negotiation/decision.h"
#include "platform/status.h"
#include "reduction/kernels.h"

namespace hvd {

enum class GpuWay : uint8_t { kBest, kNccl, kHost };  // NCCL if all have it; or else an error; always by host memory
enum class GpuLevels : uint8_t { kNone, kHierarchical, kTorus };

struct EngineSettings {
  uint64_t fusion_threshold_bytes = 128u << 20;
  bool groups_apart = false;                // a grouped request is fused with no other
  int engine_cpu = -1;                      // the engine's thread runs there alone; -1: anywhere
  double cycle_time_ms = 1.0;               // a ready tensor that no thread waits for may linger this long for company
  uint64_t close_bytes = 0;                 // ... unless this much is ready; 0: by the number of hosts
  uint32_t cached_names = kMaxCachedNames;  // with the fast way; 0: none
  int relays_above_hosts = 256;             // with more hosts, they speak with rank 0 by relays; chosen
  uint64_t stall_warning_ms = 60000;        // 0: no stall reports
  uint64_t stall_shutdown_ms = 0;           // 0: never
  uint64_t start_timeout_ms = 30000;
  uint64_t frozen_timeout_ms = 3000;                // silence of a process of this host that is a loss; 0: never
  uint64_t lost_timeout_ms = 5000;                  // ... of another host; 0: never
  std::string communicator = "auto";                // a row of the registry
  std::string cuda_library;                         // the driver of GPUs; empty: the system's
  std::string nccl_library;                         // the user's word; empty: found
  std::string nccl_found;                           // where Python has found one
  GpuWay gpu_way[HVD_REMOVE_PROCESS_SET + 1] = {};  // of each hvd_kind
  GpuLevels gpu_levels = GpuLevels::kNone;          // of allreduce, where a set spans hosts
  uint64_t nccl_streams = 1;                        // of each process set
  uint64_t nccl_timeout_ms = 600000;                // of a GPU's work that others wait for; 0: none
  InstructionSet instruction_set = InstructionSet::kBest;
  uint64_t host_group_size = 0;  // at least, of the groups in which many hosts reduce; 0: by their number
  int helper_threads = -1;       // -1: by the cores that this rank may use
  uint64_t omp_threads = 0;      // OMP_NUM_THREADS: the cores that the framework uses; 0: not set
  bool warnings = true;          // on stderr
  bool log_time = false;         // ... with the time in front
};

Status parse_settings(const hvd_setting* settings, uint32_t count, EngineSettings* out);

}  // namespace hvd
