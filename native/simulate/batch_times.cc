// SPDX-License-Identifier: Apache-2.0
#include "simulate/batch_times.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "collectives/grid.h"
#include "collectives/plan.h"
#include "fusion/batch.h"
#include "simulate/simulated_allreduce.h"

namespace hvd {

namespace {

constexpr size_t kElementBytes = sizeof(float);
constexpr size_t kLeastBytes = 64, kMostBytes = size_t{64} << 20;

}  // namespace

uint64_t BatchTimes::of(size_t bytes) {
  if (model_.hosts * model_.ranks_per_host == 1) return 0;
  if (model_.hosts > kMostExact) return static_cast<uint64_t>(std::llround(formula_ns(bytes)));
  if (bytes >= kMostBytes) {
    return static_cast<uint64_t>(std::llround(at_size(kMostBytes) * static_cast<double>(bytes) / kMostBytes));
  }
  size_t low = kLeastBytes;
  while (low * 2 <= bytes) low *= 2;
  if (bytes <= low) return static_cast<uint64_t>(std::llround(at_size(low)));
  const double part = std::log2(static_cast<double>(bytes) / static_cast<double>(low));
  const double below = std::log(at_size(low)), above = std::log(at_size(low * 2));
  return static_cast<uint64_t>(std::llround(std::exp(below + part * (above - below))));
}

uint64_t BatchTimes::of_entries(const std::vector<int64_t>& elements) {
  std::vector<Descriptor> entries(elements.size());
  std::vector<const Descriptor*> pointers;
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].tensors = {{HVD_FLOAT32, {elements[i]}}};
    pointers.push_back(&entries[i]);
  }
  uint64_t sum_ns = 0;
  for (const Batch& batch : plan_batches(pointers, model_.fusion_bytes)) {
    size_t bytes = 0;
    for (const BatchTensor& tensor : batch.tensors)
      bytes += static_cast<size_t>(elements[tensor.entry]) * kElementBytes;
    sum_ns += of(bytes);
  }
  return sum_ns;
}

double BatchTimes::at_size(size_t bytes) {
  const auto found = known_.find(bytes);
  if (found != known_.end()) return found->second;
  return known_[bytes] = exact_ns(bytes);
}

// Both halves inside a host of an allreduce that does not go in pieces.
double BatchTimes::inside_ns(size_t bytes) const {
  if (model_.ranks_per_host == 1) return 0;
  Network network(1, model_.link, false);
  const Slice slice{nullptr, nullptr, static_cast<int64_t>(bytes / kElementBytes)};
  const Status status = network.run([&](int host) -> Status {
    SimulatedInside inside(network, host, {.members = model_.ranks_per_host});
    HVD_RETURN_IF_ERROR(inside.allreduce({&slice, 1}, {}));
    return model_.hosts == 1 ? Status() : inside.broadcast({&slice, 1}, kElementBytes, 0);
  });
  if (!status.ok()) throw std::runtime_error(status.text());
  return static_cast<double>(network.end_ns());
}

double BatchTimes::exact_ns(size_t bytes) const {
  if (model_.hosts == 1) return inside_ns(bytes);
  const bool in_pieces = model_.ranks_per_host > 1 && plan::goes_in_pieces(bytes);
  const Taken taken = allreduce(in_pieces ? Way::kInPieces : Way::kFlat, model_.hosts, bytes, model_.link);
  if (!taken.status.ok()) throw std::runtime_error(taken.status.text());
  return taken.ms * 1e6 + (in_pieces ? 0 : inside_ns(bytes));
}

// The processor of each host has all its messages to handle, and its link all its bytes to carry, whichever is longer.
// Pieces are also folded inside a host before, and shared inside it after; of these only the first and the last are not
// beside the link's time.
double BatchTimes::formula_ns(size_t bytes) const {
  if (model_.hosts == 1) return inside_ns(bytes);
  if (plan::is_gathered(bytes, model_.hosts)) return gathered_ns(bytes) + inside_ns(bytes);
  const plan::BetweenHosts cut = plan::between_hosts(bytes, model_.hosts, model_.group_hosts);
  const auto count = static_cast<int64_t>(bytes / kElementBytes);
  const bool in_pieces = model_.ranks_per_host > 1 && plan::goes_in_pieces(bytes);
  const int64_t chunk =
      in_pieces ? plan::piece_elements(count, kElementBytes, cut.shares, 1)
                : plan::direct_chunk_elements(count, kElementBytes, cut.shares, cut.in_groups, TcpMesh::kMessageBytes);
  const auto chunks = static_cast<double>(plan::pieces_of(count, chunk));
  constexpr InsideModel kInside;
  const double folding_ns = in_pieces ? 4 * static_cast<double>(kInside.hop_ns) +
                                            2 * static_cast<double>(bytes) / chunks / kInside.bytes_per_ns
                                      : 0;  // of a piece, and sharing
  const double between_ns = cut.in_groups ? groups_ns(bytes, chunks, folding_ns) : direct_ns(bytes, chunks, folding_ns);
  return in_pieces ? between_ns : between_ns + inside_ns(bytes);
}

// Every input goes to all others, or to those of the row, and the fold of the row to those of the column.
double BatchTimes::gathered_ns(size_t bytes) const {
  const LinkModel& link = model_.link;
  const Grid grid(model_.hosts, plan::host_groups(model_.hosts, model_.group_hosts));
  const auto latency_ns = static_cast<double>(link.latency_ns), send_ns = static_cast<double>(link.send_ns),
             message_ns = static_cast<double>(link.send_ns + link.receive_ns);
  const double wire_ns = static_cast<double>(bytes) / link.bytes_per_ns;
  double sum_ns = 0;
  for (const int members : {grid.longest_row(), grid.groups()}) {
    if (members == 1) continue;
    const double last_ns = (members - 1) * (send_ns + wire_ns) + latency_ns + message_ns - send_ns;
    sum_ns += std::max((members - 1) * message_ns, last_ns);
  }
  return sum_ns;
}

// A chunk is two messages to every other host: a share, and the fold of all shares, which can leave once the last share
// has come.
double BatchTimes::direct_ns(size_t bytes, double chunks, double folding_ns) const {
  const LinkModel& link = model_.link;
  const auto others = static_cast<double>(model_.hosts - 1);
  const auto latency_ns = static_cast<double>(link.latency_ns),
             message_ns = static_cast<double>(link.send_ns + link.receive_ns);
  const double processor_ns = chunks * 2 * others * message_ns,
               one_way_ns = others / (others + 1) * static_cast<double>(bytes) / link.bytes_per_ns;
  const double link_ns = std::max(2 * one_way_ns + latency_ns + message_ns,
                                  one_way_ns + one_way_ns / chunks + 2 * (latency_ns + message_ns));
  return std::max(processor_ns + chunks * folding_ns, link_ns + folding_ns);
}

// A chunk is on its way four times: in the row, in the column, and back. A stage lasts until the last message has left,
// was on its way, and has been taken; or until the processor has handled all of them.
double BatchTimes::groups_ns(size_t bytes, double chunks, double folding_ns) const {
  const LinkModel& link = model_.link;
  const Grid grid(model_.hosts, plan::host_groups(model_.hosts, model_.group_hosts));
  const auto latency_ns = static_cast<double>(link.latency_ns), send_ns = static_cast<double>(link.send_ns),
             receive_ns = static_cast<double>(link.receive_ns);
  const auto stage_ns = [&](double messages, double wire_ns) {
    const double last_ns = std::max(messages * send_ns, send_ns + wire_ns) + latency_ns + receive_ns;
    return std::max(messages * (send_ns + receive_ns), last_ns);
  };
  const double share_ns = static_cast<double>(bytes) / link.bytes_per_ns / grid.columns();
  const double row = grid.longest_row() - 1, column = grid.groups() - 1;
  const double row_ns = row * share_ns, column_ns = column / (column + 1) * share_ns;
  const double one_chunk_ns = 2 * stage_ns(row, row_ns / chunks) + 2 * stage_ns(column, column_ns / chunks);
  const double busy_ns =
      std::max(2 * (row_ns + column_ns) / chunks, 2 * (row + column) * (send_ns + receive_ns) + folding_ns);
  return one_chunk_ns + folding_ns + (chunks - 1) * busy_ns;
}

}  // namespace hvd
