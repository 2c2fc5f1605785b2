// SPDX-License-Identifier: Apache-2.0
// Every operation on every communicator, with 1 to 6 members, as threads and as processes: random sequences with random
// delays, results compared bit for bit with the scalar reference.
#include "collectives/communicator.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "random_tensors.h"

namespace {

using namespace random_tensors;
using hvd::CommunicatorSettings;
using members::Wire;
using members::World;

void random_allreduce(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const hvd::Reduction reduction = random_reduction(communicator, random);
  const hvd_dtype dtype = reduction.dtype;
  const int64_t count = random_count(random);
  std::vector<Bytes> inputs;
  std::vector<const std::byte*> pointers;
  for (int m = 0; m < communicator.size(); ++m) inputs.push_back(data_of(dtype, count, seed, m));
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  // The cut into slices and their places are the batch's; in place or not is each member's own affair.
  const bool in_place = (random() + static_cast<uint64_t>(communicator.member())) % 2 == 0;
  Tensors tensors(random, inputs[static_cast<size_t>(communicator.member())], hvd::element_size(dtype), in_place,
                  1 + static_cast<int>(random() % 7));
  expect_ok(communicator.allreduce(tensors.slices, reduction));
  expect_equal(expected_fold(reduction, pointers, count), tensors.result(), communicator, "allreduce", seed);
  EXPECT(tensors.guards_hold());
}

void random_broadcast(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto dtype = static_cast<hvd_dtype>(random() % 13);
  const int64_t count = random_count(random);
  const int root = static_cast<int>(random() % static_cast<uint64_t>(communicator.size()));
  const Bytes expected = data_of(dtype, count, seed, root);
  Tensors tensors(random, data_of(dtype, count, seed, communicator.member()), hvd::element_size(dtype),
                  random() % 2 == 0, 1 + static_cast<int>(random() % 5));
  expect_ok(communicator.broadcast(tensors.slices, tensors.element_bytes, root));
  expect_equal(expected, tensors.result(), communicator, "broadcast", seed);
  EXPECT(tensors.guards_hold());
}

void random_exchange(Communicator& communicator, uint64_t seed) {
  const int64_t bytes = std::array<int64_t, 6>{0, 1, 56, 57, 4000, 65536}[seed % 6];
  Bytes expected, all(static_cast<size_t>(bytes * communicator.size()));
  for (int m = 0; m < communicator.size(); ++m) {
    const Bytes part = data_of(HVD_UINT8, bytes, seed, m);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  const Bytes mine = data_of(HVD_UINT8, bytes, seed, communicator.member());
  expect_ok(communicator.exchange(mine.data(), mine.size(), all.data()));
  expect_equal(expected, all, communicator, "exchange", seed);
}

void random_allgather(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> lengths;
  Bytes expected;
  for (int m = 0; m < communicator.size(); ++m) {
    lengths.push_back(random() % 4 == 0 ? 0 : 2 * random_count(random));
    const Bytes part = data_of(HVD_UINT8, lengths.back(), seed, m);
    expected.insert(expected.end(), part.begin(), part.end());
  }
  Bytes all(expected.size());
  const Bytes mine =
      data_of(HVD_UINT8, lengths[static_cast<size_t>(communicator.member())], seed, communicator.member());
  expect_ok(communicator.allgather(mine.data(), lengths, all.data()));
  expect_equal(expected, all, communicator, "allgather", seed);
}

// Of the very fold that allreduce gives, each member gets its part; the parts' lengths are any.
void random_reducescatter(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const hvd::Reduction reduction = random_reduction(communicator, random);
  const size_t element = hvd::element_size(reduction.dtype);
  const auto members = static_cast<size_t>(communicator.size());
  const auto me = static_cast<size_t>(communicator.member());
  const int tensors = 1 + static_cast<int>(random() % 4);
  std::vector<std::vector<Slice>> parts(members);
  std::vector<Bytes> inputs, outputs;  // by tensor: this member's
  Bytes expected;
  inputs.reserve(static_cast<size_t>(tensors));
  for (int t = 0; t < tensors; ++t) {
    const uint64_t tensor_seed = seed * 7 + static_cast<uint64_t>(t);
    std::vector<int64_t> lengths;
    int64_t count = 0;
    for (size_t m = 0; m < members; ++m) {
      lengths.push_back(random() % 4 == 0 ? 0 : random_count(random) / (1 + static_cast<int64_t>(random() % 4)));
      count += lengths.back();
    }
    std::vector<Bytes> all;
    std::vector<const std::byte*> pointers;
    for (size_t m = 0; m < members; ++m)
      all.push_back(data_of(reduction.dtype, count, tensor_seed, static_cast<int>(m)));
    for (const Bytes& data : all) pointers.push_back(data.data());
    const Bytes whole = expected_fold(reduction, pointers, count);
    inputs.push_back(all[me]);
    outputs.emplace_back(static_cast<size_t>(lengths[me]) * element + 2 * kGuardBytes, kGuard);
    size_t at = 0;
    for (size_t m = 0; m < members; ++m) {
      const size_t bytes = static_cast<size_t>(lengths[m]) * element;
      parts[m].push_back(
          {inputs.back().data() + at, m == me ? outputs.back().data() + kGuardBytes : nullptr, lengths[m]});
      if (m == me)
        expected.insert(expected.end(), whole.begin() + static_cast<ptrdiff_t>(at),
                        whole.begin() + static_cast<ptrdiff_t>(at + bytes));
      at += bytes;
    }
  }
  const std::vector<Bytes> before = inputs;
  expect_ok(communicator.reducescatter(parts, reduction));
  Bytes seen;
  for (const Bytes& output : outputs) {
    seen.insert(seen.end(), output.begin() + kGuardBytes, output.end() - kGuardBytes);
    EXPECT(output[kGuardBytes - 1] == kGuard && output[output.size() - kGuardBytes] == kGuard);
  }
  expect_equal(expected, seen, communicator, "reducescatter", seed);
  EXPECT(inputs == before);
}

void random_alltoall(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 random(seed);
  const int n = communicator.size(), me = communicator.member();
  const uint64_t shape = random() % 4;  // anything; one heavy pair; one heavy source; nothing
  std::vector<int64_t> lengths;
  for (int s = 0; s < n; ++s) {
    for (int d = 0; d < n; ++d) {
      const bool heavy = shape == 0 || (shape == 1 && s == 0 && d == n - 1) || (shape == 2 && s == n / 2);
      lengths.push_back(!heavy || random() % 4 == 0 ? 0 : 2 * random_count(random));
    }
  }
  const auto part = [&](int s, int d) {
    return data_of(HVD_UINT8, lengths[static_cast<size_t>(s * n + d)], seed + 17 * static_cast<uint64_t>(s), d);
  };
  Bytes mine, expected;
  for (int m = 0; m < n; ++m) {
    const Bytes out = part(me, m), in = part(m, me);
    mine.insert(mine.end(), out.begin(), out.end());
    expected.insert(expected.end(), in.begin(), in.end());
  }
  Bytes seen(expected.size());
  expect_ok(communicator.alltoall(mine.data(), lengths, seen.data()));
  expect_equal(expected, seen, communicator, "alltoall", seed);
}

// The same sequence on all members; what differs is when each of them comes.
void random_operations(Communicator& communicator, uint64_t seed, int operations) {
  std::mt19937_64 sequence(seed), delays(seed * 31 + static_cast<uint64_t>(communicator.member()));
  for (int i = 0; i < operations; ++i) {
    const uint64_t operation_seed = sequence() % 1'000'000'000;
    switch (sequence() % 14) {
      case 10:
      case 11:
        random_reducescatter(communicator, operation_seed);
        break;
      case 12:
      case 13:
        random_alltoall(communicator, operation_seed);
        break;
      case 0:
      case 1:
        random_broadcast(communicator, operation_seed);
        break;
      case 2:
        random_exchange(communicator, operation_seed);
        break;
      case 3:
      case 4:
        random_allgather(communicator, operation_seed);
        break;
      case 5:
        expect_ok(communicator.barrier());
        break;
      default:
        random_allreduce(communicator, operation_seed);
        break;
    }
    if (delays() % 4 == 0) {
      for (uint64_t yields = delays() % 200; yields > 0; --yields) sched_yield();
    }
  }
}

// Small operations in quick succession, where a slot comes round again the soonest.
void burst(Communicator& communicator, uint64_t seed) {
  std::mt19937_64 sequence(seed);
  const int n = communicator.size();
  for (int i = 0; i < 30 * kOperations; ++i) {
    const uint64_t kind = sequence() % 7;
    const int root = static_cast<int>(sequence() % static_cast<uint64_t>(n));
    const int length = kind == 4 ? 9000 : 30;
    std::vector<int32_t> values(static_cast<size_t>(length), communicator.member() * 1000 + i),
        gathered(values.size() * static_cast<size_t>(n));
    const Slice slice{reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<std::byte*>(values.data()), length};
    if (kind >= 5) {
      // Member m's part of the tensor is element m; in an alltoall it is 4 bytes long.
      std::vector<std::vector<Slice>> parts(static_cast<size_t>(n));
      int32_t result = -1;
      for (int m = 0; m < n; ++m) {
        auto* const output = m == communicator.member() ? reinterpret_cast<std::byte*>(&result) : nullptr;
        parts[static_cast<size_t>(m)].push_back(
            {reinterpret_cast<const std::byte*>(&values[static_cast<size_t>(m)]), output, 1});
      }
      const std::vector<int64_t> lengths(static_cast<size_t>(n * n), 4);
      if (kind == 5) {
        expect_ok(communicator.reducescatter(parts, {HVD_INT32, HVD_SUM}));
        EXPECT(result == 1000 * n * (n - 1) / 2 + n * i);
      } else {
        expect_ok(communicator.alltoall(values.data(), lengths, gathered.data()));
        for (int m = 0; m < n; ++m) EXPECT(gathered[static_cast<size_t>(m)] == m * 1000 + i);
      }
    } else if (kind == 1) {
      expect_ok(communicator.broadcast({&slice, 1}, 4, root));
      EXPECT(values[0] == root * 1000 + i && values.back() == root * 1000 + i);
    } else if (kind == 2) {
      expect_ok(communicator.exchange(values.data(), 120, gathered.data()));
      for (int m = 0; m < n; ++m) EXPECT(gathered[static_cast<size_t>(m * 30 + 29)] == m * 1000 + i);
    } else {
      expect_ok(communicator.allreduce({&slice, 1}, {HVD_INT32, HVD_SUM}));
      const int expected = 1000 * n * (n - 1) / 2 + n * i;
      EXPECT(values[0] == expected && values.back() == expected);
    }
  }
}

struct Variant {
  Wire wire;
  int links;
  CommunicatorSettings options;
};
std::vector<Variant> variants() {
  CommunicatorSettings cached, streamed, plain;
  cached.stores = hvd::Stores::kCached;
  streamed.stores = hvd::Stores::kStreamed;
  plain.isa = hvd::InstructionSet::kPlain;
  return {{Wire::kShm, 0, cached}, {Wire::kShm, 0, streamed}, {Wire::kTcp, 1, plain}, {Wire::kTcp, 3, cached}};
}

TEST(random_operations_among_threads) {
  for (const Variant& variant : variants()) {
    for (int n = variant.wire == Wire::kShm ? 1 : 2; n <= 5; ++n) {
      World world(variant.wire, n, variant.links);
      members::run_threads(world, variant.options,
                           [&](Communicator& t) { random_operations(t, static_cast<uint64_t>(n), kOperations); });
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not follow forks, and sees no race between two mappings anyway
TEST(random_operations_among_processes) {
  for (const Variant& variant : variants()) {
    for (int n = 2; n <= 5; ++n) {
      World world(variant.wire, n, variant.links);
      members::run_processes(world, variant.options, [&](Communicator& t) {
        random_operations(t, 50 + static_cast<uint64_t>(n), kOperations);
      });
    }
  }
}
#endif

// With results that are known without everybody's inputs: many members on few cores are slow enough.
void known_results(Communicator& communicator) {
  const int n = communicator.size();
  for (int length : {10, 700, 9000, 200'000}) {
    std::vector<int32_t> values(static_cast<size_t>(length));
    for (int i = 0; i < length; ++i) values[static_cast<size_t>(i)] = i * (communicator.member() + 1);
    const Slice slice{reinterpret_cast<std::byte*>(values.data()), reinterpret_cast<std::byte*>(values.data()), length};
    expect_ok(communicator.allreduce({&slice, 1}, {HVD_INT32, HVD_SUM}));
    int wrong = 0;
    for (int i = 0; i < length; ++i) wrong += values[static_cast<size_t>(i)] != i * (n * (n + 1) / 2);
    EXPECT(wrong == 0);
    values.assign(values.size(), communicator.member());
    expect_ok(communicator.broadcast({&slice, 1}, 4, length % n));
    EXPECT(std::count(values.begin(), values.end(), length % n) == length);
    const std::vector<int64_t> lengths(static_cast<size_t>(n), 400);
    std::vector<int32_t> mine(100, communicator.member()), all(static_cast<size_t>(100 * n));
    expect_ok(communicator.allgather(mine.data(), lengths, all.data()));
    for (int m = 0; m < n; ++m)
      EXPECT(all[static_cast<size_t>(100 * m)] == m && all[static_cast<size_t>(100 * m + 99)] == m);
    // Member m gets `length` elements of what everybody gives, and m + 1 elements of each in an alltoall.
    std::vector<int32_t> input(static_cast<size_t>(n * length)), output(static_cast<size_t>(length), -1);
    std::vector<std::vector<Slice>> parts(static_cast<size_t>(n));
    std::vector<int64_t> bytes;
    for (int m = 0; m < n; ++m) {
      int32_t* const part = input.data() + static_cast<ptrdiff_t>(m) * length;
      std::fill(part, part + length, m);
      auto* const own = m == communicator.member() ? reinterpret_cast<std::byte*>(output.data()) : nullptr;
      parts[static_cast<size_t>(m)].push_back({reinterpret_cast<const std::byte*>(part), own, length});
    }
    expect_ok(communicator.reducescatter(parts, {HVD_INT32, HVD_SUM}));
    EXPECT(std::count(output.begin(), output.end(), n * communicator.member()) == length);
    for (int s = 0; s < n; ++s) {
      for (int d = 0; d < n; ++d) bytes.push_back(4 * (d + 1));
    }
    std::vector<int32_t> sent(static_cast<size_t>(n * (n + 1) / 2), communicator.member());
    std::vector<int32_t> received(static_cast<size_t>(n * (communicator.member() + 1)), -1);
    expect_ok(communicator.alltoall(sent.data(), bytes, received.data()));
    for (size_t i = 0; i < received.size(); ++i)
      EXPECT(received[i] == static_cast<int32_t>(i) / (communicator.member() + 1));
  }
}

TEST(helpers_change_no_bit) {
  for (const Hosts& map : {Hosts{0, 0}, Hosts{0, 0, 0}, Hosts(5, 0), Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}}) {
    const Wire wire = std::ranges::count(map, 1) > 0 ? Wire::kHierarchical : Wire::kShm;
    hosts = map;
    World world(wire, map);
    world.helper_threads = static_cast<int>(map.size());
    members::run_threads(world, {}, [&](Communicator& c) {
      random_operations(c, 170 + map.size(), kOperations);
      known_results(c);
      if (wire == Wire::kShm) EXPECT(c.describe().find("\"helped_operations\": 0") == std::string::npos);
    });
    hosts.clear();
  }
}

TEST(several_hosts_give_the_bits_of_the_expression_over_every_wire) {
  for (const Hosts& map : kHosts) {
    for (const Wire wire : {Wire::kHierarchical, Wire::kTcp}) {
      hosts = map;
      World world(wire, map, 2);
      members::run_threads(world, {}, [&](Communicator& c) { random_operations(c, 90 + map.size(), kOperations); });
      hosts.clear();
    }
  }
}

Hosts one_member_each(int hosts) {
  Hosts map(static_cast<size_t>(hosts));
  std::iota(map.begin(), map.end(), 0);
  return map;
}

// Groups of the same size, of other sizes, more groups than members, and more members than groups.
TEST(groups_of_hosts_give_the_bits_of_the_expression_over_every_wire) {
  struct Case {
    Wire wire;
    Hosts map;
    int group_hosts;
  };
  const Hosts pairs{0, 0, 1, 1, 2, 2, 3, 3, 4, 4}, mixed{0, 1, 1, 2, 3, 3, 4, 0};
  for (const Case& one : {Case{Wire::kTcp, one_member_each(4), 2}, Case{Wire::kTcp, one_member_each(5), 2},
                          Case{Wire::kTcp, one_member_each(7), 3}, Case{Wire::kTcp, one_member_each(9), 3},
                          Case{Wire::kTcp, mixed, 2}, Case{Wire::kHierarchical, pairs, 2},
                          Case{Wire::kHierarchical, mixed, 2}, Case{Wire::kMpi, one_member_each(6), 3},
                          Case{Wire::kMpi, one_member_each(7), 2}, Case{Wire::kHierarchicalMpi, pairs, 2}}) {
    hosts = one.map;
    group_hosts = static_cast<size_t>(one.group_hosts);
    World world(one.wire, one.map, 2);
    CommunicatorSettings settings;
    settings.group_hosts = one.group_hosts;
    members::run_threads(world, settings, [&](Communicator& c) {
      const bool is_flat = one.wire == Wire::kTcp || one.wire == Wire::kMpi;
      if (is_flat) EXPECT(c.describe().find("\"host_groups\": ") != std::string::npos);
      random_operations(c, 210 + one.map.size(), kOperations);
      known_results(c);
    });
    hosts.clear();
    group_hosts = 0;
    EXPECT(world.mpi().faults() == 0);
  }
}

// No message of another size than expected, and none into memory that is being sent from.
TEST(mpi_carries_every_operation_with_the_bits_of_the_expression) {
  std::vector<Hosts> maps(std::begin(kHosts), std::end(kHosts));
  for (size_t n = 2; n <= 5; ++n) maps.push_back(Hosts(n, 0));
  maps.insert(maps.end(), {{0, 1}, {0, 1, 2}});  // one member on each
  for (const Hosts& map : maps) {
    for (const Wire wire : {Wire::kMpi, Wire::kHierarchicalMpi}) {
      hosts = map;
      World world(wire, map);
      members::run_threads(world, {}, [&](Communicator& c) { random_operations(c, 130 + map.size(), kOperations); });
      hosts.clear();
      EXPECT(world.mpi().faults() == 0);
      const bool between = std::ranges::count(map, map.front()) < static_cast<ptrdiff_t>(map.size());
      EXPECT((world.mpi().messages() > 0) == (wire == Wire::kMpi || between));
    }
  }
}

TEST(bursts_of_small_operations) {
  for (Wire wire : {Wire::kShm, Wire::kTcp}) {
    for (int n = 2; n <= 4; ++n) {
      World world(wire, n);
      members::run_threads(world, {}, [&](Communicator& t) { burst(t, static_cast<uint64_t>(n)); });
    }
  }
}

TEST(bursts_over_several_hosts) {
  for (const Hosts& map : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}}) {
    World world(Wire::kHierarchical, map);
    members::run_threads(world, {}, [&](Communicator& c) {
      burst(c, 4);
      known_results(c);
    });
  }
}

TEST(many_members_on_one_host) {
  for (int n : {9, 33, 64}) {
    if (n == 64 && (kSanitized || !thorough())) continue;  // sanitizers record each mapping of each member: 16 GB
    World world(Wire::kShm, n);
    members::run_threads(world, {}, known_results);
  }
}

TEST(one_member_alone_applies_the_scales) {
  std::unique_ptr<Communicator> communicator;
  const hvd::CommunicatorRow* row = nullptr;
  expect_ok(hvd::choose_communicator("auto", hvd::Topology::on_one_host(1), true, &row));
  expect_ok(row->make({{7}, 0, hvd::Topology::on_one_host(1)}, {}, &communicator));
  EXPECT(std::string(communicator->name()) == "loopback");
  random_operations(*communicator, 5, 4 * kOperations);
  float value = 3;
  const Slice slice{reinterpret_cast<std::byte*>(&value), reinterpret_cast<std::byte*>(&value), 1};
  expect_ok(communicator->allreduce({&slice, 1}, {HVD_FLOAT32, HVD_SUM, 2.0, 5.0, 1}));
  EXPECT(value == 30);
}

TEST(instruction_sets_the_machine_lacks_are_unavailable) {
  for (hvd::InstructionSet isa :
       {hvd::InstructionSet::kPlain, hvd::InstructionSet::kAvx2, hvd::InstructionSet::kAvx512}) {
    CommunicatorSettings options;
    options.isa = isa;
    World shm(Wire::kShm, 1), tcp(Wire::kTcp, 1);
    for (World* world : {&shm, &tcp}) {
      std::unique_ptr<Communicator> communicator;
      const Status status = world->make(0, options, &communicator);
      EXPECT(status.code() == (hvd::machine_has(isa) ? HVD_OK : HVD_UNAVAILABLE));
    }
  }
}

}  // namespace

TEST_MAIN
