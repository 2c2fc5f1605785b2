// SPDX-License-Identifier: Apache-2.0
// Several hosts, and MPI at hand (step 7): both ways are tried, and the faster one stays.
//
// The choice is made when the communicator is, by all members alike. MPI must win clearly: it keeps its own order of
// sums, while ours has the same bits in every run.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "communicators/mpi/library.h"
#include "communicators/registry.h"

namespace hvd {

extern const CommunicatorRow kHierarchicalRow, kTcpRow, kMpiRow;

namespace {

constexpr size_t kTrialBytes = size_t{1} << 20;
constexpr int kWarmUps = 2, kRounds = 5;
constexpr double kClearly = 1.25;

const CommunicatorRow& own_row(const Topology& members) {
  return kHierarchicalRow.why_unfit(members).empty() ? kHierarchicalRow : kTcpRow;
}

std::string why_unavailable() { return mpi::library() == nullptr ? "MPI has not been opened" : ""; }

std::string why_unfit(const Topology& members) {
  return members.hosts() > 1 ? "" : "shared memory is faster than all else inside a host";
}

size_t shared_bytes(const Topology& members, int member) { return own_row(members).shared_bytes(members, member); }

bool needs_link(const Topology& members, int a, int b) { return own_row(members).needs_link(members, a, b); }

using Clock = std::chrono::steady_clock;

// The median of some rounds, in nanoseconds.
Status time(Communicator& tried, int64_t* out) {
  std::vector<float> values(kTrialBytes / sizeof(float), 0.0F);
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  const Slice slice = {data, data, static_cast<int64_t>(values.size())};
  std::vector<int64_t> taken;
  for (int round = 0; round < kWarmUps + kRounds; ++round) {
    HVD_RETURN_IF_ERROR(tried.barrier());
    const auto begin = Clock::now();
    HVD_RETURN_IF_ERROR(tried.allreduce({&slice, 1}, Reduction{}));
    if (round >= kWarmUps) taken.push_back((Clock::now() - begin).count());
  }
  std::ranges::nth_element(taken, taken.begin() + kRounds / 2);
  *out = taken[kRounds / 2];
  return {};
}

Status make(const Members& members, const CommunicatorParts& parts, std::unique_ptr<Communicator>* out) {
  std::unique_ptr<Communicator> own, mpi;
  HVD_RETURN_IF_ERROR(own_row(members.topology).make(members, parts, &own));
  HVD_RETURN_IF_ERROR(kMpiRow.make(members, parts, &mpi));
  struct Times {
    int64_t own = 0, mpi = 0;
  } mine;
  HVD_RETURN_IF_ERROR(time(*own, &mine.own));
  HVD_RETURN_IF_ERROR(time(*mpi, &mine.mpi));
  std::vector<Times> all(static_cast<size_t>(members.size()));
  HVD_RETURN_IF_ERROR(own->exchange(&mine, sizeof mine, all.data()));
  double of_own = 0, of_mpi = 0;
  for (const Times& times : all) {
    of_own += static_cast<double>(times.own);
    of_mpi += static_cast<double>(times.mpi);
  }
  *out = std::move(of_own > kClearly * of_mpi ? mpi : own);
  return {};
}

}  // namespace

extern const CommunicatorRow kFastestRow;
const CommunicatorRow kFastestRow = {
    "fastest", "the faster of MPI and our own", "", why_unavailable, why_unfit, shared_bytes, needs_link, make};

}  // namespace hvd
