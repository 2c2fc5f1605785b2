// SPDX-License-Identifier: Apache-2.0
// Adasum on both transports against a plain reference in float64, and what must not change its bits.
#include <cmath>
#include <map>
#include <mutex>
#include <random>

#include "check.h"
#include "engine_world.h"
#include "reference.h"

using namespace hvd;

namespace {

using Vector = std::vector<double>;

double product(const Vector& a, const Vector& b) {
  long double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * b[i];
  return static_cast<double>(sum);
}

Vector combined(const Vector& a, const Vector& b) {
  const double aa = product(a, a), bb = product(b, b), ab = product(a, b);
  Vector result(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    result[i] = a[i] * (aa == 0 ? 1 : 1 - ab / (2 * aa)) + b[i] * (bb == 0 ? 1 : 1 - ab / (2 * bb));
  }
  return result;
}

// Pairs of neighbours, then pairs of pairs.
Vector expected_of(std::vector<Vector> vectors) {
  while (vectors.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i < vectors.size(); i += 2) next.push_back(combined(vectors[i], vectors[i + 1]));
    vectors = std::move(next);
  }
  return vectors[0];
}

struct Dtype {
  hvd_dtype number;
  double tolerance;  // relative to the largest element
};
const Dtype kDtypes[] = {{HVD_FLOAT16, 1e-3}, {HVD_BFLOAT16, 8e-3}, {HVD_FLOAT32, 1e-6}, {HVD_FLOAT64, 1e-14}};

// Values as the dtype holds them; `storage` gets its bytes.
Vector rounded(const Vector& values, hvd_dtype dtype, std::vector<std::byte>* storage) {
  Kernels kernels;
  const auto count = static_cast<int64_t>(values.size());
  storage->assign(values.size() * element_size(dtype), {});
  if (values.empty()) return values;
  if (dtype == HVD_FLOAT64) {
    std::memcpy(storage->data(), values.data(), storage->size());
    return values;
  }
  std::vector<float> floats(values.begin(), values.end());
  if (dtype == HVD_FLOAT32) {
    std::memcpy(storage->data(), floats.data(), storage->size());
  } else {
    kernels.narrow(dtype, floats.data(), count, storage->data());
    kernels.widen(dtype, storage->data(), count, floats.data());
  }
  return {floats.begin(), floats.end()};
}

Vector read(const std::vector<std::byte>& storage, hvd_dtype dtype) {
  const size_t count = storage.size() / element_size(dtype);
  if (count == 0) return {};
  if (dtype == HVD_FLOAT64) {
    Vector values(count);
    std::memcpy(values.data(), storage.data(), storage.size());
    return values;
  }
  std::vector<float> floats(count);
  if (dtype == HVD_FLOAT32) {
    std::memcpy(floats.data(), storage.data(), storage.size());
  } else {
    Kernels().widen(dtype, storage.data(), static_cast<int64_t>(count), floats.data());
  }
  return {floats.begin(), floats.end()};
}

// A rank's input of a tensor: a common part and its own, so that the dot products matter; rank 1 has zeros in some.
Vector input_of(int rank, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed), own(seed * 100 + static_cast<uint64_t>(rank));
  std::normal_distribution<double> normal;
  Vector values(count);
  for (double& value : values) value = normal(random) + 0.7 * normal(own);
  if (rank == 1 && seed % 3 == 0) values.assign(count, 0);
  return values;
}

Status reduce(Engine& engine, const char* name, hvd_dtype dtype, std::vector<std::vector<std::byte>>* tensors,
              double prescale = 1, double postscale = 1) {
  Call call(HVD_ALLREDUCE, name);
  call.op(HVD_ADASUM).scale(prescale, postscale);
  for (std::vector<std::byte>& tensor : *tensors) {
    call.tensor(tensor, dtype, {static_cast<int64_t>(tensor.size() / element_size(dtype))});
  }
  return call.run(engine);
}

double largest(const Vector& values) {
  double most = 1e-3;
  for (const double value : values) most = std::max(most, std::fabs(value));
  return most;
}

}  // namespace

TEST(each_tensor_is_the_reference_s_and_equal_on_all_ranks_and_transports) {
  const std::vector<size_t> counts = {1, 3, 64, 1000, 0, 4097, 70001};
  std::mutex mutex;
  std::map<std::pair<int, int>, std::vector<std::vector<std::byte>>> bits;  // by size and dtype
  for (const Wiring wiring : kWirings) {
    for (const int size : {1, 2, 4, 8}) {
      if (size == 1 && wiring == Wiring::kSockets) continue;
      run_world(make_world(size, wiring), [&](Engine& engine, int rank) {
        for (const Dtype& dtype : kDtypes) {
          std::vector<std::vector<std::byte>> tensors(counts.size());
          std::vector<Vector> expected;
          for (size_t t = 0; t < counts.size(); ++t) {
            std::vector<Vector> inputs;
            for (int r = 0; r < size; ++r) {
              std::vector<std::byte> storage;
              inputs.push_back(rounded(input_of(r, counts[t], t), dtype.number, &storage));
              if (r == rank) tensors[t] = std::move(storage);
            }
            expected.push_back(expected_of(std::move(inputs)));
          }
          EXPECT(reduce(engine, "g", dtype.number, &tensors).ok());
          for (size_t t = 0; t < counts.size(); ++t) {
            const Vector seen = read(tensors[t], dtype.number);
            double off = 0;
            for (size_t i = 0; i < seen.size(); ++i) off = std::max(off, std::fabs(seen[i] - expected[t][i]));
            if (off > dtype.tolerance * largest(expected[t]))
              std::printf("       dtype %d, tensor %zu: off by %g\n", dtype.number, t, off);
            EXPECT(off <= dtype.tolerance * largest(expected[t]));
          }
          const std::lock_guard lock(mutex);
          const auto [place, first] = bits.try_emplace({size, dtype.number}, tensors);
          EXPECT(first || place->second == tensors);
        }
      });
    }
  }
}

TEST(neither_fusion_nor_the_instruction_set_changes_a_bit) {
  const std::vector<size_t> counts = {5, 130, 9001, 64, 333};
  std::mutex mutex;
  std::map<int, std::vector<std::vector<std::byte>>> bits;  // by dtype
  for (const uint64_t threshold : {uint64_t{0}, uint64_t{1000}, uint64_t{1} << 27}) {
    for (const InstructionSet isa : {InstructionSet::kPlain, InstructionSet::kBest}) {
      EngineSettings settings;
      settings.fusion_threshold_bytes = threshold;
      settings.instruction_set = isa;
      run_world(make_world(4, Wiring::kSharedMemory, settings), [&](Engine& engine, int rank) {
        for (const Dtype& dtype : kDtypes) {
          std::vector<std::vector<std::byte>> tensors(counts.size());
          for (size_t t = 0; t < counts.size(); ++t) {
            rounded(input_of(rank, counts[t], 7 + t), dtype.number, &tensors[t]);
          }
          EXPECT(reduce(engine, "g", dtype.number, &tensors).ok());
          const std::lock_guard lock(mutex);
          const auto [place, first] = bits.try_emplace(dtype.number, tensors);
          EXPECT(first || place->second == tensors);
        }
      });
    }
  }
}

// The dot products of a batch travel in exchanges of 64 KiB a member, which is 2730 tensors of two ranks.
TEST(each_tensor_of_a_large_group_has_products_of_its_own) {
  constexpr size_t kTensors = 6000;
  std::vector<Vector> expected;
  std::vector<std::vector<std::vector<std::byte>>> inputs(2, std::vector<std::vector<std::byte>>(kTensors));
  for (size_t t = 0; t < kTensors; ++t) {
    std::vector<Vector> vectors;
    for (int r = 0; r < 2; ++r) {
      vectors.push_back(rounded(input_of(r, 2, t), HVD_FLOAT32, &inputs[static_cast<size_t>(r)][t]));
    }
    expected.push_back(expected_of(std::move(vectors)));
  }
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [&](Engine& engine, int rank) {
      std::vector<std::vector<std::byte>> tensors = inputs[static_cast<size_t>(rank)];
      EXPECT(reduce(engine, "g", HVD_FLOAT32, &tensors).ok());
      size_t wrong = 0;
      for (size_t t = 0; t < kTensors; ++t) {
        const Vector seen = read(tensors[t], HVD_FLOAT32);
        for (size_t i = 0; i < seen.size(); ++i) {
          wrong += std::fabs(seen[i] - expected[t][i]) > 1e-6 * largest(expected[t]) ? 1 : 0;
        }
      }
      EXPECT(wrong == 0);
    });
  }
}

TEST(scales_and_special_values) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [](Engine& engine, int rank) {
      const auto one = [&](Vector mine, double prescale = 1, double postscale = 1) {
        std::vector<std::vector<std::byte>> tensors(1);
        rounded(mine, HVD_FLOAT32, &tensors[0]);
        EXPECT(reduce(engine, nullptr, HVD_FLOAT32, &tensors, prescale, postscale).ok());
        return read(tensors[0], HVD_FLOAT32);
      };
      const bool first = rank == 0;
      EXPECT((one({3, 4}) == Vector{3, 4}));                                          // equal vectors: themselves
      EXPECT((one(first ? Vector{1, 0} : Vector{0, 2}) == Vector{1, 2}));             // nothing in common: the sum
      EXPECT((one({0, 0}) == Vector{0, 0}));                                          // no norm at all
      EXPECT((one(first ? Vector{0, 0} : Vector{5, -1}) == Vector{5, -1}));           // one without
      EXPECT((one({3, 4}, 2, 0.25) == Vector{1.5, 2}));                               // scales, before and after
      EXPECT((one(first ? Vector{1e30, 0} : Vector{0, 1e-30})[0] == double{1e30f}));  // norms beyond a float32
      for (const double value : one(first ? Vector{NAN, 1} : Vector{2, 3})) EXPECT(std::isnan(value));
    });
  }
}

TEST(who_has_joined_counts_for_nothing) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(4, wiring), [](Engine& engine, int rank) {
      for (int round = 0; round < 3; ++round) {
        std::vector<float> values = {1, 2, 3};
        if (rank < 3) EXPECT(Call(HVD_ALLREDUCE, "t").op(HVD_ADASUM).tensor(values, HVD_FLOAT32).run(engine).ok());
        if (rank < 3) EXPECT(values == std::vector<float>({1, 2, 3}));
        hvd_handle handle = 0;
        EXPECT(engine.submitter().join(&handle).ok() && engine.submitter().wait(handle, 20000).ok());
        engine.submitter().release(handle);
      }
    });
  }
}

TEST(what_has_no_adasum_is_refused) {
  for (const int size : {2, 3}) {
    run_world(make_world(size, Wiring::kSharedMemory), [size](Engine& engine, int) {
      std::vector<float> floats(6);
      std::vector<int32_t> integers(6);
      const auto refused = [&engine](hvd_kind kind, auto& tensor, hvd_dtype dtype, const char* why) {
        const Status status = Call(kind, "t").op(HVD_ADASUM).tensor(tensor, dtype).run(engine);
        EXPECT(has(status, HVD_INVALID_ARGUMENT, {why}));
      };
      if (size == 3) return refused(HVD_ALLREDUCE, floats, HVD_FLOAT32, "2, 4, 8, ... ranks, got 3");
      refused(HVD_REDUCESCATTER, floats, HVD_FLOAT32, "reduce operation 2");
      refused(HVD_ALLREDUCE, integers, HVD_INT32, "floating-point tensors, got int32");
    });
  }
}

TEST_MAIN
