// SPDX-License-Identifier: Apache-2.0
#include "settings/settings.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <functional>
#include <map>

#include "platform/fault_point.h"

namespace hvd {
namespace {

bool parse_number(const std::string& text, double* out) {
  char* end = nullptr;
  *out = std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0' && *out >= 0;
}

bool parse_integer(const std::string& text, uint64_t* out) {
  char* end = nullptr;
  *out = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && text[0] != '-' && *end == '\0';
}

bool parse_cached_names(const std::string& text, uint32_t* out) {
  uint64_t value = 0;
  if (!parse_integer(text, &value)) return false;
  *out = static_cast<uint32_t>(std::min<uint64_t>(value, kMaxCachedNames));
  return true;
}

bool parse_instruction_set(const std::string& text, InstructionSet* out) {
  static const std::map<std::string, InstructionSet> kNames = {{"best", InstructionSet::kBest},
                                                               {"avx512", InstructionSet::kAvx512},
                                                               {"avx2", InstructionSet::kAvx2},
                                                               {"plain", InstructionSet::kPlain}};
  const auto found = kNames.find(text);
  if (found != kNames.end()) *out = found->second;
  return found != kNames.end();
}

bool parse_gpu_way(const std::string& text, GpuWay* out) {
  static const std::map<std::string, GpuWay> kNames = {
      {"best", GpuWay::kBest}, {"nccl", GpuWay::kNccl}, {"host", GpuWay::kHost}};
  const auto found = kNames.find(text);
  if (found != kNames.end()) *out = found->second;
  return found != kNames.end();
}

bool parse_gpu_levels(const std::string& text, GpuLevels* out) {
  static const std::map<std::string, GpuLevels> kNames = {
      {"none", GpuLevels::kNone}, {"hierarchical", GpuLevels::kHierarchical}, {"torus", GpuLevels::kTorus}};
  const auto found = kNames.find(text);
  if (found != kNames.end()) *out = found->second;
  return found != kNames.end();
}

bool parse_log_level(const std::string& text, bool* warnings) {
  *warnings = text != "error" && text != "fatal";
  return true;
}

}  // namespace

Status parse_settings(const hvd_setting* settings, uint32_t count, EngineSettings* out) {
  using Parser = std::function<bool(const std::string&)>;
  uint64_t groups_apart = 0, log_time = 0, relays_above_hosts = 256, engine_cpu = UINT64_MAX,
           helper_threads = UINT64_MAX;
  const std::map<std::string, Parser> parsers = {
      {"fusion_threshold_bytes", [&](auto& text) { return parse_integer(text, &out->fusion_threshold_bytes); }},
      {"cycle_time_ms", [&](auto& text) { return parse_number(text, &out->cycle_time_ms); }},
      {"close_bytes", [&](auto& text) { return parse_integer(text, &out->close_bytes); }},
      {"relays_above_hosts", [&](auto& text) { return parse_integer(text, &relays_above_hosts); }},
      {"groups_apart", [&](auto& text) { return parse_integer(text, &groups_apart); }},
      {"engine_cpu", [&](auto& text) { return parse_integer(text, &engine_cpu); }},
      {"cached_names", [&](auto& text) { return parse_cached_names(text, &out->cached_names); }},
      {"stall_warning_ms", [&](auto& text) { return parse_integer(text, &out->stall_warning_ms); }},
      {"stall_shutdown_ms", [&](auto& text) { return parse_integer(text, &out->stall_shutdown_ms); }},
      {"start_timeout_ms", [&](auto& text) { return parse_integer(text, &out->start_timeout_ms); }},
      {"frozen_timeout_ms", [&](auto& text) { return parse_integer(text, &out->frozen_timeout_ms); }},
      {"lost_timeout_ms", [&](auto& text) { return parse_integer(text, &out->lost_timeout_ms); }},
      {"fault_point", [](auto& text) { return arm_fault_point(text); }},
      {"instruction_set", [&](auto& text) { return parse_instruction_set(text, &out->instruction_set); }},
      {"host_group_size",
       [&](auto& text) { return parse_integer(text, &out->host_group_size) && out->host_group_size <= INT_MAX; }},
      {"helper_threads", [&](auto& text) { return parse_integer(text, &helper_threads) && helper_threads <= 256; }},
      {"omp_threads", [&](auto& text) { return parse_integer(text, &out->omp_threads); }},
      {"transport", [&](auto& text) { return !(out->communicator = text).empty(); }},
      {"cuda_library", [&](auto& text) { return out->cuda_library = text, true; }},
      {"nccl_library", [&](auto& text) { return out->nccl_library = text, true; }},
      {"nccl_found", [&](auto& text) { return out->nccl_found = text, true; }},
      {"gpu_levels", [&](auto& text) { return parse_gpu_levels(text, &out->gpu_levels); }},
      {"nccl_streams", [&](auto& text) { return parse_integer(text, &out->nccl_streams) && out->nccl_streams > 0; }},
      {"nccl_timeout_ms", [&](auto& text) { return parse_integer(text, &out->nccl_timeout_ms); }},
      {"gpu_allreduce", [&](auto& text) { return parse_gpu_way(text, &out->gpu_way[HVD_ALLREDUCE]); }},
      {"gpu_allgather", [&](auto& text) { return parse_gpu_way(text, &out->gpu_way[HVD_ALLGATHER]); }},
      {"gpu_broadcast", [&](auto& text) { return parse_gpu_way(text, &out->gpu_way[HVD_BROADCAST]); }},
      {"gpu_alltoall", [&](auto& text) { return parse_gpu_way(text, &out->gpu_way[HVD_ALLTOALL]); }},
      {"gpu_reducescatter", [&](auto& text) { return parse_gpu_way(text, &out->gpu_way[HVD_REDUCESCATTER]); }},
      {"log_level", [&](auto& text) { return parse_log_level(text, &out->warnings); }},
      {"log_time", [&](auto& text) { return parse_integer(text, &log_time); }},
  };
  for (uint32_t i = 0; i < count; ++i) {
    const std::string name = settings[i].name == nullptr ? "" : settings[i].name;
    const std::string value = settings[i].value == nullptr ? "" : settings[i].value;
    const auto parser = parsers.find(name);
    if (parser == parsers.end()) return {HVD_INVALID_ARGUMENT, "unknown setting `" + name + "`"};
    if (!parser->second(value)) {
      return {HVD_INVALID_ARGUMENT, "setting `" + name + "` cannot be `" + value + "`"};
    }
  }
  out->groups_apart = groups_apart != 0;
  out->log_time = log_time != 0;
  out->relays_above_hosts = static_cast<int>(std::min<uint64_t>(relays_above_hosts, INT32_MAX));
  if (helper_threads != UINT64_MAX) out->helper_threads = static_cast<int>(helper_threads);
  out->engine_cpu = engine_cpu < INT32_MAX ? static_cast<int>(engine_cpu) : -1;
  return {};
}

}  // namespace hvd
