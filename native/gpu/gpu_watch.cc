// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "negotiation/names.h"
#include "platform/clock.h"
#include "platform/warning.h"

namespace hvd {

namespace {

// The rank whose inputs are missing says so first: its word is the cause.
constexpr uint64_t kGraceNs = 2000 * kMs;
// Of the generation's end. Chosen: with two ranks on one H200, an abort took less than 0.8 s. An abort waits for what
// the GPU still does, and for the aborts of the host's other ranks: so it gets longer, and the rank whose GPU does not
// come back ends.
constexpr uint64_t kAbortAfterNs = 3000 * kMs, kEndAfterNs = 6000 * kMs, kEndOfAbortAfterNs = 30000 * kMs;

}  // namespace

uint64_t GpuWatch::soonest_limit_ns() const {
  const auto limit = [](uint64_t ms) { return ms == 0 ? UINT64_MAX : ms * kMs; };
  return std::min(limit(settings_.stall_warning_ms), limit(settings_.nccl_timeout_ms));
}

Status GpuWatch::look(const LaunchedCalls& launched) {
  LaunchedCalls::Stuck stuck;
  HVD_RETURN_IF_ERROR(launched.find_stuck(soonest_limit_ns(), &stuck));
  if (stuck.call == nullptr) return {};
  return judge(stuck.since_ns, name_of(*stuck.call), stuck.has_inputs);
}

Status GpuWatch::look_at_inputs(uint64_t since_ns, const std::string& name) {
  if (now_ns() - since_ns < soonest_limit_ns()) return {};
  return judge(since_ns, quote_name(name), false);
}

Status GpuWatch::judge(uint64_t since_ns, const std::string& name, bool has_inputs) {
  const uint64_t waited_ns = now_ns() - since_ns;
  const std::string what = std::string("rank ") + std::to_string(rank_) + " waited " + in_seconds(waited_ns) +
                           " for its GPU to " + (has_inputs ? "end " : "compute the input of ") + name;
  const uint64_t limit_ns = settings_.nccl_timeout_ms * kMs + (has_inputs ? kGraceNs : 0);
  if (settings_.nccl_timeout_ms > 0 && waited_ns >= limit_ns) {
    return {HVD_ABORTED,
            what +
                (has_inputs ? ", whose input was there: NCCL waits for another rank or for the network"
                            : ", for which the other ranks wait") +
                " (HOROVOD_NCCL_TIMEOUT_SECONDS)",
            has_inputs ? -1 : rank_};
  }
  const bool is_due = settings_.stall_warning_ms > 0 && waited_ns >= settings_.stall_warning_ms * kMs;
  if (!is_due || !settings_.warnings || std::exchange(told_since_ns_, since_ns) == since_ns) return {};
  warn("stall: " + what +
           (has_inputs
                ? "\nhint: its input is there, so NCCL waits for another rank or for the network; NCCL_DEBUG=INFO "
                  "says more"
                : "\nhint: a kernel of the script hangs, or takes that long") +
           "\nmore: horovodrun --explain gpu-stall",
       settings_.log_time);
  return {};
}

void GpuWatch::judge_nccl(uint64_t inside_ns, Ending& ending) {
  const std::string what = "rank " + std::to_string(rank_) + " waited " + in_seconds(inside_ns) +
                           " for a call of NCCL to return, most likely for another rank";
  if (settings_.nccl_timeout_ms > 0 && inside_ns >= settings_.nccl_timeout_ms * kMs + kGraceNs) {
    ending.poison(HVD_ABORTED, -1, what + " (HOROVOD_NCCL_TIMEOUT_SECONDS)");
    return;
  }
  const bool is_due = settings_.stall_warning_ms > 0 && inside_ns >= settings_.stall_warning_ms * kMs;
  if (!std::exchange(told_of_nccl_, is_due) && is_due && settings_.warnings) {
    warn("stall: " + what + "\nhint: NCCL_DEBUG=INFO says more\nmore: horovodrun --explain gpu-stall",
         settings_.log_time);
  }
}

void GpuWatch::tick(DeviceRunner& runner, Ending& ending) {
  const uint64_t inside_ns = runner.inside_ns(), aborting_ns = runner.aborting_ns();
  if (inside_ns == 0 && aborting_ns == 0) return;
  if (!ending.poisoned()) {
    judge_nccl(inside_ns, ending);
    return;
  }
  const uint64_t now = now_ns();
  if (ended_ns_ == 0) ended_ns_ = now;
  const uint64_t hung_ns = std::min(inside_ns, now - ended_ns_);
  if (hung_ns >= kAbortAfterNs && !std::exchange(aborting_, true)) runner.abort_elsewhere();
  // While an abort hangs, calls have got their errors: only the GPU that does not come back is in the others' way.
  const bool is_in_the_way = ending.cause().failed_rank() == rank_ && aborting_ns >= kEndOfAbortAfterNs;
  if (hung_ns < kEndAfterNs && !is_in_the_way) return;
  warn("rank " + std::to_string(rank_) + " ends now: a call of NCCL has not returned for " +
           in_seconds(std::max(inside_ns, aborting_ns)) + ", and the job is over: " + ending.cause().text(),
       settings_.log_time);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace hvd
