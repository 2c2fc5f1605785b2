// SPDX-License-Identifier: Apache-2.0
// What a large allreduce over hosts is made of: parts that members give to everybody, pieces that are reduced one after
// the other, and the whole of it. Results are compared bit for bit with the scalar reference.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "random_tensors.h"

namespace {

using namespace random_tensors;
using members::Wire;
using members::World;

// Each member has a part for everybody; one member has none.
void random_share(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto dtype = static_cast<hvd_dtype>(random() % 13);
  const size_t element = hvd::element_size(dtype);
  std::vector<Tensors> parts;
  std::vector<std::vector<Slice>> slices;
  std::vector<Bytes> expected;
  for (int m = 0; m < communicator.size(); ++m) {
    const int64_t count = m == 1 ? 0 : random_count(random);
    expected.push_back(data_of(dtype, count, seed, m));
    const bool in_place = random() % 2 == 0;
    parts.emplace_back(random, m == communicator.member() ? expected.back() : Bytes(expected.back().size()), element,
                       in_place, 1 + static_cast<int>(random() % 4));
    slices.push_back(parts.back().slices);
  }
  expect_ok(communicator.share(slices, element));
  for (size_t m = 0; m < parts.size(); ++m) {
    expect_equal(expected[m], parts[m].result(), communicator, "share", seed);
    EXPECT(parts[m].guards_hold());
  }
}

Bytes first(Bytes data, size_t bytes) {
  data.resize(bytes);
  return data;
}

// An allreduce whose pieces are offered and finished one by one.
void random_pieces(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const hvd::Reduction reduction = random_reduction(communicator, random);
  const int64_t count = 1 + random_count(random);
  const hvd::Cut cut{1 + count / 40 + static_cast<int64_t>(random() % static_cast<uint64_t>(count + count / 4 + 1)),
                     1 + static_cast<int64_t>(random() % 4)};
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> pointers;
  for (int m = 0; m < communicator.size(); ++m) inputs.push_back(data_of(reduction.dtype, count, seed, m));
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Tensors tensors(random, inputs[static_cast<size_t>(communicator.member())], hvd::element_size(reduction.dtype), true,
                  1 + static_cast<int>(random() % 5));
  const int64_t pieces = (count + cut.elements - 1) / cut.elements;
  const Bytes expected = expected_fold(reduction, pointers, count);
  const auto operation = communicator.allreduce_in_pieces(tensors.slices, reduction, cut);
  for (int64_t k = 0; k < pieces + cut.ahead; ++k) {
    if (k < pieces) expect_ok(operation->offer(k));
    if (k < cut.ahead) continue;
    expect_ok(operation->finish(k - cut.ahead));
    const auto end = static_cast<size_t>(std::min(count, (k - cut.ahead + 1) * cut.elements)) * tensors.element_bytes;
    expect_equal(first(expected, end), first(tensors.result(), end), communicator, "pieces", seed);
  }
  EXPECT(tensors.guards_hold());
}

TEST(parts_are_shared_and_pieces_reduced_over_every_wire) {
  for (const Wire wire : {Wire::kShm, Wire::kTcp, Wire::kHierarchical, Wire::kMpi, Wire::kHierarchicalMpi}) {
    for (const Hosts& map : kHosts) {
      if (wire != Wire::kShm) hosts = map;
      World world(wire, wire == Wire::kShm ? Hosts(map.size(), 0) : map, 2);
      members::run_threads(world, {}, [&](Communicator& c) {
        for (uint64_t seed = 1; seed <= kOperations / 8; ++seed) {
          random_share(c, seed);
          random_pieces(c, seed + 1000);
        }
      });
      hosts.clear();
    }
  }
}

// So that every way of the trial, and what follows it, is taken, with pieces of all lengths at the end.
TEST(large_allreduces_over_hosts_have_the_same_bits_whoever_carries_them) {
  for (const Hosts& map : kHosts) {
    hosts = map;
    World world(Wire::kHierarchical, map, 2);
    members::run_threads(world, {}, [&](Communicator& c) {
      for (int64_t i = 0; i < (kSanitized ? 5 : 9); ++i) {
        const int64_t count = 80'000 + i * 7;
        std::vector<Bytes> inputs;
        std::vector<const std::byte*> pointers;
        for (int m = 0; m < c.size(); ++m)
          inputs.push_back(data_of(HVD_FLOAT32, count, 5 + static_cast<uint64_t>(i), m));
        for (const Bytes& input : inputs) pointers.push_back(input.data());
        Bytes mine = inputs[static_cast<size_t>(c.member())];
        const Slice slice{mine.data(), mine.data(), count};
        expect_ok(c.allreduce({&slice, 1}, {HVD_FLOAT32, HVD_SUM}));
        expect_equal(expected_fold({HVD_FLOAT32, HVD_SUM}, pointers, count), mine, c, "large allreduce",
                     static_cast<uint64_t>(i));
      }
      if (!kSanitized && map.size() == 4 && map[2] == map[3])
        EXPECT(c.describe().find("\"shared_ns\"") != std::string::npos);
    });
    hosts.clear();
  }
}

}  // namespace

TEST_MAIN
