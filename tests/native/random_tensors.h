// SPDX-License-Identifier: Apache-2.0
// Random tensors for communicators, and what the scalar reference makes of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "members.h"
#include "reference.h"

namespace random_tensors {

using hvd::Communicator;
using hvd::Slice;
using hvd::Status;
using members::Hosts;
using reference::Bytes;

inline Hosts hosts;             // of the world that runs, by member; empty: one host
inline size_t group_hosts = 0;  // of its groups; 0: it has none

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kOperations = 30;
constexpr int64_t kLargest = 60'000;
#else
inline const int kOperations = thorough() ? 100 : 24;
constexpr int64_t kLargest = 400'000;
#endif

inline void expect_ok(const Status& status) {
  if (status.ok()) return;
  std::printf("code %d: %s\n", status.code(), status.text().c_str());
  ++check::failures();
}

inline void expect_equal(const Bytes& expected, const Bytes& seen, const Communicator& communicator, const char* what,
                         uint64_t seed) {
  if (expected == seen || ++check::failures() > 20) return;  // the sequence goes on, or the other members would wait
  size_t at = 0;
  while (expected[at] == seen[at]) ++at;
  std::printf("%s over %s, member %d of %d, seed %lu: byte %zu of %zu differs\n", what, communicator.name(),
              communicator.member(), communicator.size(), static_cast<unsigned long>(seed), at, expected.size());
}

// Bytes that are nobody's output must not change: between the slices lie guards.
constexpr std::byte kGuard{0xa7};
constexpr size_t kGuardBytes = 24;

struct Tensors {
  Bytes inputs, outputs;
  std::vector<Slice> slices;
  size_t element_bytes;

  Tensors(std::mt19937_64& random, const Bytes& data, size_t element, bool in_place, int pieces)
      : element_bytes(element) {
    const int64_t count = static_cast<int64_t>(data.size() / element);
    std::vector<int64_t> cuts = {0, count};
    for (int i = 1; i < pieces; ++i) cuts.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(count + 1)));
    std::sort(cuts.begin(), cuts.end());
    inputs.resize(data.size() + static_cast<size_t>(pieces + 1) * (kGuardBytes + 64), kGuard);
    outputs.resize(inputs.size(), kGuard);
    size_t at = kGuardBytes;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      const int64_t length = cuts[i + 1] - cuts[i];
      const size_t bytes = static_cast<size_t>(length) * element;
      if (bytes != 0) std::memcpy(inputs.data() + at, data.data() + static_cast<size_t>(cuts[i]) * element, bytes);
      slices.push_back({inputs.data() + at, (in_place ? inputs.data() : outputs.data()) + at, length});
      at += bytes + kGuardBytes / 8 * 8;
      at = (at + 7) / 8 * 8;
    }
  }
  Bytes result() const {
    Bytes all;
    for (const Slice& slice : slices)
      all.insert(all.end(), slice.output, slice.output + static_cast<size_t>(slice.count) * element_bytes);
    return all;
  }
  bool guards_hold() const {
    for (size_t i = 0; i < slices.size(); ++i) {
      const std::byte* const end = slices[i].output + static_cast<size_t>(slices[i].count) * element_bytes;
      if (slices[i].output[-1] != kGuard || *end != kGuard) return false;
    }
    return true;
  }
};

inline Bytes data_of(hvd_dtype dtype, int64_t count, uint64_t seed, int member) {
  Bytes data(static_cast<size_t>(count) * hvd::element_size(dtype));
  reference::fill(dtype, seed * 100 + static_cast<uint64_t>(member), data.data(), count);
  return data;
}

inline int64_t random_count(std::mt19937_64& random) {
  switch (random() % 16) {
    case 0:
      return static_cast<int64_t>(random() % 4);
    case 1:
    case 2:
      return static_cast<int64_t>(1 + random() % 16);
    case 3:
      return static_cast<int64_t>(random() % 1000);
    case 4:
    case 5:
      return static_cast<int64_t>(random() % 20000);
    case 6:
      return static_cast<int64_t>(random() % static_cast<uint64_t>(kLargest));
    default:
      return static_cast<int64_t>(random() % 3000);
  }
}

inline hvd::Reduction random_reduction(const Communicator& communicator, std::mt19937_64& random) {
  const auto dtype = static_cast<hvd_dtype>(random() % 13);
  hvd_op op = std::array{HVD_SUM, HVD_PRODUCT, HVD_MIN, HVD_MAX, HVD_BITAND, HVD_BITOR, HVD_BITXOR}[random() % 7];
  if (!reference::legal(dtype, op)) op = HVD_MIN;
  hvd::Reduction reduction{dtype, op};
  const bool scales = dtype != HVD_BOOL && !hvd::is_bitwise(op);
  if (scales && random() % 3 == 0) reduction.prescale = 0.5;
  if (scales && random() % 3 == 0) reduction.postscale = 1.25;
  if (op == HVD_SUM && random() % 2 == 0) reduction.divisor = communicator.size();
  return reduction;
}

inline Bytes expected_fold(const hvd::Reduction& reduction, const std::vector<const std::byte*>& inputs,
                           int64_t count) {
  const Hosts here = hosts.empty() ? Hosts(inputs.size(), 0) : hosts;
  return reference::fold_over_hosts(reduction, inputs, here, count, group_hosts);
}

// Several hosts, some with several members; in the last ones the ranks of a host do not follow each other.
inline const Hosts kHosts[] = {{0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 1}, {0, 1, 0, 1, 2}, {0, 0, 1, 1, 0, 2}};

}  // namespace random_tensors
