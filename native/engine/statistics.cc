// SPDX-License-Identifier: Apache-2.0
// The counters of a generation, as text in JSON.
#include "engine/engine.h"
#include "platform/clock.h"

namespace hvd {

std::string Engine::statistics() {
  std::string text = "{";
  const auto field = [&](const char* name, const std::string& value) {
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + value;
  };
  text += runner_->describe_communicator();  // names itself
  const DeviceRunner::Counts& on_gpus = runner_->counts_on_gpus();
  const Execution::Counts& counts = runner_->counts();
  field("batches", std::to_string(counts.batches.load()));
  field("largest_reduction", std::to_string(counts.largest_reduction.load()));
  field("tensors", std::to_string(counts.tensors.load()));
  field("bytes", std::to_string(counts.bytes.load()));
  field("slow_requests", std::to_string(calls_->slow_requests()));
  field("control_messages", std::to_string(service_ == nullptr ? 0 : service_->messages()));
  field("engine_wakes", std::to_string(wakeup_->engine_wakes()));
  field("names_evicted", std::to_string(service_ == nullptr ? 0 : service_->names_evicted()));
  field("batches_by_nccl", std::to_string(on_gpus.by_nccl.load()));
  field("batches_in_levels", std::to_string(on_gpus.in_levels.load()));
  field("batches_staged", std::to_string(on_gpus.staged.load()));
  field("arrivals", arrivals_.describe(now_ns()));
  field("in_flight", std::to_string(calls_->in_flight()));
  return text + "}";
}

}  // namespace hvd
