// SPDX-License-Identifier: Apache-2.0
// The communicator over several hosts with several members on some of them (step 7): several communicators in one.
// *Inside* joins the members of a host; its first one, the host's leader, is also in *between*, which joins the
// leaders. Of large allreduces other members of the hosts carry parts, each with those of its number on the other
// hosts: as many as every host has.
//
//   allreduce      small: inside, to every member's output; between, over that; from the leader back to its host.
//                  large: allreduce.h
//   reducescatter  all to the leader; between, each leader gets what its host will have; out to the members
//   broadcast      on the root's host first, then between, then on the other hosts
//   allgather      each host's block inside, the blocks between, all of it from the leader to its host
//   alltoall       straight inside the host; what leaves it goes to the leader, between, and from that leader on
//   barrier        inside, between, inside
//
// The bits are those of levels.h: inside applies the prescale, between the postscale and the divisor. An Average of
// integers needs their exact sum, which a host's result of the same type may not hold: there all values travel.
//
// Errors are those of the inner communicators. A leader that fails between hosts leaves its host waiting inside; the
// engine poisons the generation then, which ends that wait.
#include "communicators/hierarchical/hierarchical.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "collectives/levels.h"
#include "collectives/plan.h"
#include "collectives/slices.h"
#include "communicators/hierarchical/allreduce.h"
#include "communicators/hierarchical/alltoall.h"
#include "communicators/hierarchical/carriers.h"
#include "communicators/registry.h"
#include "platform/clock.h"
#include "platform/float_state.h"
#include "platform/kept_memory.h"

namespace hvd {

namespace {

constexpr int kLeader = 0;                              // among the members of a host
constexpr int64_t kGatheredBytes = int64_t{256} << 10;  // of one member, if all values travel
using Bytes = Exchanged<std::byte>;

// How many members of each host may carry data to other hosts.
int carriers_of(const Topology& members) {
  size_t carriers = members.ranks_of(0).size();
  for (int host = 1; host < members.hosts(); ++host) carriers = std::min(carriers, members.ranks_of(host).size());
  return static_cast<int>(carriers);
}

class Hierarchical final : public Communicator {
 public:
  // `between`: those with this member's number; null if some host has none.
  Hierarchical(Members members, const CommunicatorSettings& settings, const Kernels& kernels,
               std::unique_ptr<Communicator> inside, std::unique_ptr<Communicator> between)
      : members_(std::move(members)),
        kernels_(kernels),
        carriers_(carriers_of(members_.topology)),
        group_hosts_(settings.group_hosts),
        inside_(std::move(inside)),
        carrier_(std::move(between)),
        between_(inside_->member() == kLeader ? carrier_.get() : nullptr) {
    for (int host = 0; host < topology().hosts(); ++host) {
      for (const int member : topology().ranks_of(host)) by_host_.push_back(member);
    }
  }

  const char* name() const override { return "hierarchical"; }
  int member() const override { return members_.member; }
  int size() const override { return members_.size(); }

  // The inner communicators name their own operation in an error; these say what it was for.
  Status allreduce(std::span<const Slice> slices, const Reduction& reduction) override {
    return reduce(slices, reduction).while_doing("allreduce");
  }
  Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) override {
    return spread(slices, element_bytes, root_member).while_doing("broadcast");
  }
  Status exchange(const void* mine, size_t bytes, void* all) override {
    const std::vector<int64_t> equal(static_cast<size_t>(size()), static_cast<int64_t>(bytes));
    const auto inside = [&](const std::vector<int64_t>&, std::byte* block) {
      return inside_->exchange(mine, bytes, block);
    };
    return gather(equal, all, inside).while_doing("exchange");
  }
  Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) override {
    return gather_bytes(mine, bytes_of_member, all).while_doing("allgather");
  }
  Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) override {
    return reduce_parts(parts, reduction).while_doing("reducescatter");
  }
  Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) override {
    HierarchicalAlltoall operation(members_, by_host_, kernels_, {*inside_, between_}, bytes);
    return operation.run(static_cast<const std::byte*>(mine), static_cast<std::byte*>(all)).while_doing("alltoall");
  }
  Status barrier() override { return meet().while_doing("barrier"); }

  std::string describe() const override {
    std::string text = "\"transport\": \"hierarchical\", \"hosts\": " + std::to_string(topology().hosts()) +
                       ", \"isa\": \"" + instruction_set_name(kernels_.instruction_set()) +
                       "\", \"carriers\": " + choice_.describe() + ", \"inside\": {" + inside_->describe() + "}";
    return carrier_ == nullptr ? text : text + ", \"between\": {" + carrier_->describe() + "}";
  }

 private:
  const Topology& topology() const { return members_.topology; }
  int here() const { return members_.host(); }
  bool leads() const { return between_ != nullptr; }
  const std::vector<int>& locals() const { return topology().ranks_of(here()); }
  static bool averages_integers(const Reduction& reduction) {
    return !is_floating(reduction.dtype) && reduction.divisor != 1;
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) const {
    kernels_.copy(to, from, static_cast<size_t>(bytes), false);
  }

  Status reduce(std::span<const Slice> slices, const Reduction& reduction);
  Status reduce_in_pieces(std::span<const Slice> slices, const Reduction& reduction, size_t bytes);
  Status spread(std::span<const Slice> slices, size_t element_bytes, int root_member);
  Status gather_bytes(const void* mine, std::span<const int64_t> bytes_of_member, void* all) {
    return gather(bytes_of_member, all, [&](const std::vector<int64_t>& bytes_of_local, std::byte* block) {
      return inside_->allgather(mine, bytes_of_local, block);
    });
  }
  Status reduce_parts(std::span<const std::vector<Slice>> parts, const Reduction& reduction);
  Status meet() {
    HVD_RETURN_IF_ERROR(inside_->barrier());
    if (leads()) HVD_RETURN_IF_ERROR(between_->barrier());
    return inside_->barrier();
  }
  // `gather_inside(bytes by local member, where the host's block goes)`.
  template <class GatherInside>
  Status gather(std::span<const int64_t> bytes_of_member, void* all, GatherInside gather_inside);
  Status allreduce_of_all_values(std::span<const Slice> slices, const Reduction& reduction);
  Status scatter_from_leader(const Bytes& of_host, const std::vector<int64_t>& bytes_of_local,
                             const std::vector<Slice>& own, int64_t element_bytes);

  const Members members_;
  const Kernels kernels_;
  const int carriers_;
  const int group_hosts_;  // a setting
  const std::unique_ptr<Communicator> inside_;
  const std::unique_ptr<Communicator> carrier_;  // null if this member carries nothing to other hosts
  Communicator* const between_;                  // null if this member leads no host
  std::vector<int> by_host_;                     // all members, host by host
  CarrierChoice choice_;
};

// Each output as input and output of what follows.
std::vector<Slice> outputs_of(std::span<const Slice> slices) {
  std::vector<Slice> outputs;
  for (const Slice& slice : slices) outputs.push_back({slice.output, slice.output, slice.count});
  return outputs;
}

Status Hierarchical::reduce(std::span<const Slice> slices, const Reduction& reduction) {
  if (averages_integers(reduction)) return allreduce_of_all_values(slices, reduction);
  size_t bytes = 0;
  for (const Slice& slice : slices) bytes += static_cast<size_t>(slice.count) * element_size(reduction.dtype);
  if (plan::goes_in_pieces(bytes)) return reduce_in_pieces(slices, reduction, bytes);
  const Levels levels = levels_of(reduction);
  HVD_RETURN_IF_ERROR(inside_->allreduce(slices, levels.inside));
  const std::vector<Slice> results = outputs_of(slices);
  if (leads()) HVD_RETURN_IF_ERROR(between_->allreduce(results, levels.between));
  return inside_->broadcast(results, element_size(reduction.dtype), kLeader);
}

Status Hierarchical::reduce_in_pieces(std::span<const Slice> slices, const Reduction& reduction, size_t bytes) {
  const bool shares = carriers_ > 1 && choice_.shares(bytes);
  const uint64_t begin_ns = now_ns();
  HierarchicalAllreduce operation({*inside_, shares ? carrier_.get() : between_},
                                  plan::between_hosts(bytes, topology().hosts(), group_hosts_), shares ? carriers_ : 1,
                                  slices, reduction);
  HVD_RETURN_IF_ERROR(operation.run());
  if (carriers_ == 1 || !choice_.add(bytes, now_ns() - begin_ns)) return {};
  const CarrierChoice::Times mine = choice_.best(bytes);
  Exchanged<CarrierChoice::Times> all(static_cast<size_t>(size()));
  HVD_RETURN_IF_ERROR(exchange(&mine, sizeof mine, all.data()));
  CarrierChoice::Times slowest{0, 0};
  for (const CarrierChoice::Times& one : all) {
    slowest = {std::max(slowest.alone, one.alone), std::max(slowest.shared, one.shared)};
  }
  choice_.decide(bytes, slowest);
  return {};
}

Status Hierarchical::spread(std::span<const Slice> slices, size_t element_bytes, int root_member) {
  const int root_host = topology().host_of(root_member);
  const bool is_here = root_host == here();
  if (is_here) {
    HVD_RETURN_IF_ERROR(inside_->broadcast(slices, element_bytes, topology().local_rank_of(root_member)));
  }
  const std::vector<Slice> results = outputs_of(slices);
  if (leads()) HVD_RETURN_IF_ERROR(between_->broadcast(results, element_bytes, root_host));
  return is_here ? Status() : inside_->broadcast(results, element_bytes, kLeader);
}

template <class GatherInside>
Status Hierarchical::gather(std::span<const int64_t> bytes_of_member, void* all, GatherInside gather_inside) {
  std::vector<int64_t> bytes_of_host, bytes_of_local;
  int64_t begin_here = 0, total = 0;
  for (int host = 0; host < topology().hosts(); ++host) {
    int64_t bytes = 0;
    for (const int member : topology().ranks_of(host)) {
      bytes += bytes_of_member[static_cast<size_t>(member)];
      if (host == here()) bytes_of_local.push_back(bytes_of_member[static_cast<size_t>(member)]);
    }
    if (host == here()) begin_here = total;
    bytes_of_host.push_back(bytes);
    total += bytes;
  }
  if (total == 0) return Status();
  std::byte* const target = static_cast<std::byte*>(all);
  const bool in_order = std::ranges::is_sorted(by_host_);
  Bytes ordered(in_order ? 0 : static_cast<size_t>(total));
  std::byte* const blocks = in_order ? target : ordered.data();
  HVD_RETURN_IF_ERROR(gather_inside(bytes_of_local, blocks + begin_here));
  if (leads()) HVD_RETURN_IF_ERROR(between_->allgather(blocks + begin_here, bytes_of_host, blocks));
  const Slice whole{blocks, blocks, total};
  HVD_RETURN_IF_ERROR(inside_->broadcast({&whole, 1}, 1, kLeader));
  if (in_order) return Status();
  std::vector<int64_t> begins(bytes_of_member.size());
  std::exclusive_scan(bytes_of_member.begin(), bytes_of_member.end(), begins.begin(), int64_t{0});
  const std::byte* from = blocks;
  for (const int member : by_host_) {
    const int64_t bytes = bytes_of_member[static_cast<size_t>(member)];
    copy(target + begins[static_cast<size_t>(member)], from, bytes);
    from += bytes;
  }
  return Status();
}

Status Hierarchical::allreduce_of_all_values(std::span<const Slice> slices, const Reduction& reduction) {
  const FloatState state;
  const SliceList list(slices, element_size(reduction.dtype));
  const auto element_bytes = static_cast<int64_t>(list.element_bytes());
  const int64_t chunk = std::min(list.count(), kGatheredBytes / element_bytes);
  Bytes mine(static_cast<size_t>(chunk * element_bytes)), all(mine.size() * static_cast<size_t>(size()));
  std::vector<const std::byte*> sources(static_cast<size_t>(size()));
  for (int64_t begin = 0; begin < list.count(); begin += chunk) {
    const int64_t length = std::min(chunk, list.count() - begin);
    list.for_range(begin, length, [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
      copy(mine.data() + offset, input, count * element_bytes);
    });
    const std::vector<int64_t> equal(static_cast<size_t>(size()), length * element_bytes);
    HVD_RETURN_IF_ERROR(gather_bytes(mine.data(), equal, all.data()));
    list.for_range(begin, length, [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
      for (size_t m = 0; m < sources.size(); ++m) {
        sources[m] = all.data() + static_cast<int64_t>(m) * length * element_bytes + offset;
      }
      kernels_.fold(reduction, sources, count, {output});
    });
  }
  return Status();
}

Status Hierarchical::reduce_parts(std::span<const std::vector<Slice>> parts, const Reduction& reduction) {
  const auto element_bytes = static_cast<int64_t>(element_size(reduction.dtype));
  std::vector<int64_t> count_of(parts.size(), 0);
  for (size_t m = 0; m < parts.size(); ++m) {
    for (const Slice& slice : parts[m]) count_of[m] += slice.count;
  }
  const int64_t total = std::accumulate(count_of.begin(), count_of.end(), int64_t{0});
  if (total == 0) return Status();
  const bool all_values = averages_integers(reduction);
  // The results of the hosts' members, host by host.
  Bytes ordered(leads() || all_values ? static_cast<size_t>(total * element_bytes) : 0);
  std::vector<std::vector<Slice>> inputs(locals().size());
  int64_t at = 0;
  for (const int member : by_host_) {
    for (const Slice& slice : parts[static_cast<size_t>(member)]) {
      inputs[kLeader].push_back({slice.input, ordered.empty() ? nullptr : ordered.data() + at, slice.count});
      at += slice.count * element_bytes;
    }
  }
  std::vector<std::vector<Slice>> of_host;
  std::vector<int64_t> bytes_of_local;
  std::byte* next = ordered.data();
  std::byte* here_begin = nullptr;
  for (int host = 0; host < topology().hosts(); ++host) {
    int64_t count = 0;
    for (const int member : topology().ranks_of(host)) {
      count += count_of[static_cast<size_t>(member)];
      if (host == here()) bytes_of_local.push_back(count_of[static_cast<size_t>(member)] * element_bytes);
    }
    if (host == here()) here_begin = next;
    of_host.push_back({{next, nullptr, count}});
    if (!ordered.empty()) next += count * element_bytes;
  }
  Bytes result(leads() ? static_cast<size_t>(std::accumulate(bytes_of_local.begin(), bytes_of_local.end(), int64_t{0}))
                       : 0);
  if (all_values) {
    HVD_RETURN_IF_ERROR(allreduce_of_all_values(inputs[kLeader], reduction));
    if (leads()) copy(result.data(), here_begin, static_cast<int64_t>(result.size()));
  } else {
    const Levels levels = levels_of(reduction);
    HVD_RETURN_IF_ERROR(inside_->reducescatter(inputs, levels.inside));
    of_host[static_cast<size_t>(here())][0].output = result.data();
    if (leads()) HVD_RETURN_IF_ERROR(between_->reducescatter(of_host, levels.between));
  }
  return scatter_from_leader(result, bytes_of_local, parts[static_cast<size_t>(member())], element_bytes);
}

// `of_host`, at the leader: what its members will have, one after the other.
Status Hierarchical::scatter_from_leader(const Bytes& of_host, const std::vector<int64_t>& bytes_of_local,
                                         const std::vector<Slice>& own, int64_t element_bytes) {
  const size_t count = bytes_of_local.size(), place = static_cast<size_t>(topology().local_rank_of(member()));
  std::vector<int64_t> matrix(count * count, 0);
  std::ranges::copy(bytes_of_local, matrix.begin());  // the leader's row
  Bytes mine(static_cast<size_t>(bytes_of_local[place]));
  HVD_RETURN_IF_ERROR(inside_->alltoall(of_host.data(), matrix, mine.data()));
  const std::byte* from = mine.data();
  for (const Slice& slice : own) {
    copy(slice.output, from, slice.count * element_bytes);
    from += slice.count * element_bytes;
  }
  return Status();
}

// By host: the member with this number there.
std::vector<int> members_with(const Topology& members, int local_rank) {
  std::vector<int> found;
  for (int host = 0; host < members.hosts(); ++host) {
    found.push_back(members.ranks_of(host)[static_cast<size_t>(local_rank)]);
  }
  return found;
}

std::string why_unfit_for_hierarchical(const Topology& members) {
  if (members.hosts() < 2) return "its members must be on several hosts, and are on one";
  return members.is_flat() ? "each of its hosts has one member: nothing is to be done inside" : "";
}

// Of the members of one host.
const CommunicatorRow* row_inside(const Topology& members, int host) {
  const CommunicatorRow* row = nullptr;
  const Topology local = members.among(members.ranks_of(host));
  return choose_communicator("auto", local, false, &row).ok() ? row : nullptr;
}

size_t shared_bytes(const Topology& members, int member) {
  const int host = members.host_of(member);
  const CommunicatorRow* const row = row_inside(members, host);
  return row == nullptr ? 0 : row->shared_bytes(members.among(members.ranks_of(host)), members.local_rank_of(member));
}

bool needs_link(const Topology& members, int a, int b) {
  return members.host_of(a) != members.host_of(b) && members.local_rank_of(a) == members.local_rank_of(b) &&
         members.local_rank_of(a) < carriers_of(members);
}

Status make_by_auto(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  const CommunicatorRow* row = nullptr;
  HVD_RETURN_IF_ERROR(choose_communicator("auto", members.topology, true, &row));
  return row->make(members, parts, out);
}

Status make_of_parts(const Members& members, const CommunicatorParts& parts, MakeCommunicator make_between,
                     std::unique_ptr<Communicator>* out) {
  Kernels kernels;
  HVD_RETURN_IF_ERROR(Kernels::create(parts.settings.isa, &kernels));
  std::unique_ptr<Communicator> inside, between;
  const std::vector<int>& locals = members.topology.ranks_of(members.host());
  HVD_RETURN_IF_ERROR(make_by_auto(some_of(members, locals), parts, &inside));
  const int local_rank = members.topology.local_rank_of(members.member);
  if (local_rank < carriers_of(members.topology)) {
    const std::vector<int> peers = members_with(members.topology, local_rank);
    HVD_RETURN_IF_ERROR(make_between(some_of(members, peers), parts, &between));
  }
  *out = std::make_unique<Hierarchical>(members, parts.settings, kernels, std::move(inside), std::move(between));
  return {};
}

Status make_hierarchical(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  return make_of_parts(members, parts, make_by_auto, out);
}

}  // namespace

Status make_over_hosts(const Members& members, const CommunicatorParts& parts, MakeCommunicator between,
                       std::unique_ptr<Communicator>* out) {
  if (members.topology.hosts() < 2) return make_by_auto(members, parts, out);
  if (members.topology.is_flat()) return between(members, parts, out);
  return make_of_parts(members, parts, between, out);
}

size_t shared_bytes_over_hosts(const Topology& members, int member) { return shared_bytes(members, member); }

extern const CommunicatorRow kHierarchicalRow;
const CommunicatorRow kHierarchicalRow = {"hierarchical",
                                          "shared memory in a host, TCP between",
                                          "HIERARCHICAL_",
                                          always_available,
                                          why_unfit_for_hierarchical,
                                          shared_bytes,
                                          needs_link,
                                          make_hierarchical};

}  // namespace hvd
