// SPDX-License-Identifier: Apache-2.0
#include "simulate/library/report.h"

#include <initializer_list>
#include <utility>

namespace hvd {

namespace {

const char* name_of_kind(FrameKind kind) {
  switch (kind) {
    case FrameKind::kRequest:
      return "request";
    case FrameKind::kRefuse:
      return "refuse";
    case FrameKind::kHostReady:
      return "ready";
    case FrameKind::kRecalled:
      return "recalled";
    case FrameKind::kLeave:
      return "leave";
    case FrameKind::kRecall:
      return "recall";
    case FrameKind::kRecords:
      return "records";
    case FrameKind::kMayRetire:
      return "may retire";
    case FrameKind::kRetired:
      return "retired";
    case FrameKind::kJoin:
      return "join";
    default:
      return "other";
  }
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }  // of texts without quotes

std::string fields(std::initializer_list<std::pair<const char*, uint64_t>> all) {
  std::string text;
  for (const auto& [name, value] : all) {
    text += (text.empty() ? "" : ", ") + quoted(name) + ": " + std::to_string(value);
  }
  return text;
}

std::string moment(uint64_t ns) { return ns == 0 ? "null" : std::to_string(ns); }

std::string by_kind(const std::map<FrameKind, uint64_t>& counts) {
  std::map<std::string, uint64_t> named;
  for (const auto& [kind, count] : counts) named[name_of_kind(kind)] += count;
  std::string text;
  for (const auto& [name, count] : named) {
    text += (text.empty() ? "" : ", ") + quoted(name) + ": " + std::to_string(count);
  }
  return "{" + text + "}";
}

std::string step_of(const Counts::Step& counts) {
  return "{" +
         fields({{"batches", counts.reduced},
                 {"bytes_up", counts.bytes_up},
                 {"bytes_down", counts.bytes_down},
                 {"most_up_from_a_host", counts.most_up_from_a_host},
                 {"rank_0_busy_ns", counts.busy_ns},
                 {"collectives_ns", counts.collective_ns}}) +
         ", \"began_ns\": " + moment(counts.began_ns) + ", \"ended_ns\": " + moment(counts.ended_ns) +
         ", \"up\": " + by_kind(counts.up) + ", \"down\": " + by_kind(counts.down) +
         ", \"relayed\": " + by_kind(counts.relayed) + "}";
}

std::string spans_of(const Spans& spans) {
  constexpr const char* kNames[] = {"step", "wait", "batch"};
  std::string text;
  for (const Span& span : spans.all()) {
    text += (text.empty() ? "[" : ", [") + quoted(kNames[static_cast<size_t>(span.what)]);
    for (const uint64_t number : {uint64_t(span.rank), uint64_t{span.number}, span.begin_ns, span.end_ns}) {
      text += ", " + std::to_string(number);
    }
    text += "]";
  }
  return text;
}

}  // namespace

std::string report_of(const Simulation& simulation) {
  std::string steps, came;
  for (const bool has_come : simulation.counts().came)
    came += std::string(came.empty() ? "" : ", ") + (has_come ? "1" : "0");
  const Counts& counts = simulation.counts();
  for (size_t step = 0; step < counts.steps(); ++step) {
    steps += (step == 0 ? "" : ", ") + step_of(counts.of(step));
  }
  const Liveness::Loss* const cause = simulation.liveness().cause();
  return "{" +
         fields({{"events", simulation.queue().happened()},
                 {"virtual_ns", simulation.queue().now_ns()},
                 {"step", counts.current()},
                 {"ranks_done", counts.ranks_done},
                 {"failed_calls", counts.failed_calls},
                 {"noticed_after_ns", simulation.liveness().told_after_ns()}}) +
         ", \"came\": [" + came + "], \"cause\": " + (cause == nullptr ? "null" : quoted(cause->what)) +
         ", \"steps\": [" + steps + "], \"spans\": [" + spans_of(simulation.spans()) + "]}";
}

}  // namespace hvd
