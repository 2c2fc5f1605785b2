// SPDX-License-Identifier: Apache-2.0
// The C wall of the simulator.
#include "simulate/library/c_api.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>

#include "c_guard.h"
#include "simulate/library/report.h"
#include "simulate/simulation.h"

struct hvd_simulation {
  hvd::Program program;
  std::unique_ptr<hvd::Simulation> simulation;  // from the first run on
};

namespace {

using hvd::guarded;
using hvd::need;
using hvd::Status;

uint64_t ns_of(double us) { return static_cast<uint64_t>(std::llround(us * 1e3)); }

Status not_begun(const hvd_simulation* simulation) {
  if (simulation->simulation == nullptr) return {};
  return {HVD_INVALID_ARGUMENT, "the simulation has begun"};
}

}  // namespace

int hvd_simulate_create(const hvd_simulate_options* options, hvd_simulation** simulation, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(options), HVD_NEED(simulation)}));
    if (options->size != sizeof *options) return {HVD_INVALID_ARGUMENT, "hvd_simulate_options: another size"};
    if (options->hosts < 1 || options->ranks_per_host < 1 || options->steps < 1) {
      return {HVD_INVALID_ARGUMENT, "hosts, ranks_per_host, steps: expected 1 or more"};
    }
    auto made = std::make_unique<hvd_simulation>();
    hvd::Program& out = made->program;
    out.hosts = options->hosts;
    out.ranks_per_host = options->ranks_per_host;
    out.seed = options->seed;
    out.star_hosts = options->star_hosts;
    out.keeps_spans = options->spans != 0;
    out.plant = static_cast<hvd::Plant>(options->plant);
    out.steps.resize(static_cast<size_t>(options->steps));
    for (hvd::SimulatedStep& step : out.steps) step.shuffled = options->shuffled != 0;
    out.link.bytes_per_ns = out.control.bytes_per_ns = options->gbit / 8;
    out.link.latency_ns = ns_of(options->latency_us);
    out.control.least_latency_ns = out.link.latency_ns / 2;
    out.control.most_latency_ns = out.link.latency_ns * 4 / 3;
    out.link.send_ns = out.control.send_ns = ns_of(options->send_us);
    out.link.receive_ns = out.control.receive_ns = ns_of(options->receive_us);
    *simulation = made.release();
    return {};
  });
}

int hvd_simulate_add_name(hvd_simulation* simulation, const char* name, int64_t elements, double ready_us,
                          hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(simulation), HVD_NEED(name)}));
    HVD_RETURN_IF_ERROR(not_begun(simulation));
    simulation->program.names.push_back({name, std::max<int64_t>(1, elements), ns_of(ready_us)});
    return {};
  });
}

int hvd_simulate_add_fault(hvd_simulation* simulation, const hvd_simulate_fault* fault, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(simulation), HVD_NEED(fault), {"kind", fault ? fault->kind : nullptr}}));
    if (fault->size != sizeof *fault) return {HVD_INVALID_ARGUMENT, "hvd_simulate_fault: another size"};
    HVD_RETURN_IF_ERROR(not_begun(simulation));
    return simulation->program.add_fault(fault->kind, fault->target, fault->step, fault->event, fault->amount);
  });
}

int hvd_simulate_run(hvd_simulation* simulation, uint64_t events, hvd_status* status) {
  return guarded(status, [&]() -> Status {
    HVD_RETURN_IF_ERROR(need({HVD_NEED(simulation)}));
    if (simulation->simulation == nullptr) {
      simulation->simulation = std::make_unique<hvd::Simulation>(simulation->program);
    }
    if (simulation->simulation->run_for(events)) return {HVD_PENDING, ""};
    const std::string& problem = simulation->simulation->problem();
    return problem.empty() ? Status() : Status(HVD_INTERNAL, problem);
  });
}

int64_t hvd_simulate_report(hvd_simulation* simulation, char* buffer, int64_t bytes) {
  if (simulation == nullptr || simulation->simulation == nullptr) return 0;
  const std::string text = hvd::report_of(*simulation->simulation);
  if (buffer != nullptr && bytes > 0) {
    const size_t length = std::min(text.size(), static_cast<size_t>(bytes) - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return static_cast<int64_t>(text.size());
}

void hvd_simulate_free(hvd_simulation* simulation) { delete simulation; }
