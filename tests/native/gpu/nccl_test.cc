// SPDX-License-Identifier: Apache-2.0
// NCCL's library and communicator over the stand-in: ranks are threads with a GPU each, and a host communicator.
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "check.h"
#include "communicators/nccl/library.h"
#include "communicators/registry.h"
#include "engine_world.h"
#include "reference.h"
#include "standin/standin.h"

using namespace hvd;

namespace {

std::shared_ptr<const nccl::Library> library() {
  std::shared_ptr<const nccl::Library> opened;
  EXPECT(nccl::Library::open({HVD_STANDIN, ""}, &opened).ok());
  return opened;
}

bool can_reduce(const Reduction& reduction, hvd_kind kind) {
  return device_row(HVD_ON_CUDA)->can_reduce(reduction, kind);
}

EngineSettings with_nccl() {
  EngineSettings settings;
  settings.cuda_library = settings.nccl_library = HVD_STANDIN;
  for (GpuWay& way : settings.gpu_way) way = GpuWay::kNccl;
  return settings;
}

double number(DataType dtype, const std::byte* at) {
  float single = 0;
  double wide = 0;
  _Float16 half = 0;
  uint16_t upper = 0;
  int8_t small = 0;
  int32_t whole = 0;
  int64_t large = 0;
  switch (dtype) {
    case HVD_FLOAT64:
      std::memcpy(&wide, at, 8);
      return wide;
    case HVD_FLOAT32:
      std::memcpy(&single, at, 4);
      return single;
    case HVD_FLOAT16:
      std::memcpy(&half, at, 2);
      return static_cast<double>(half);
    case HVD_BFLOAT16: {
      std::memcpy(&upper, at, 2);
      const uint32_t bits = static_cast<uint32_t>(upper) << 16;
      std::memcpy(&single, &bits, 4);
      return single;
    }
    case HVD_INT32:
    case HVD_UINT32:  // small ones only
      std::memcpy(&whole, at, 4);
      return whole;
    case HVD_INT64:
    case HVD_UINT64:
      std::memcpy(&large, at, 8);
      return static_cast<double>(large);
    case HVD_INT8:
      std::memcpy(&small, at, 1);
      return small;
    default:
      return static_cast<double>(static_cast<uint8_t>(*at));
  }
}

// Small whole numbers, so that every order of additions gives the same in every type.
void fill(DataType dtype, int rank, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>((i * 7 + rank * 3) % 5 + (dtype == HVD_BOOL ? -3 : 1));
    const bool truth = value > 0;
    const auto as = [&](auto typed) { std::memcpy(to + static_cast<size_t>(i) * sizeof typed, &typed, sizeof typed); };
    switch (dtype) {
      case HVD_FLOAT64:
        as(static_cast<double>(value));
        break;
      case HVD_FLOAT32:
        as(value);
        break;
      case HVD_FLOAT16:
        as(static_cast<_Float16>(value));
        break;
      case HVD_BFLOAT16: {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, 4);
        as(static_cast<uint16_t>(bits >> 16));
        break;
      }
      case HVD_INT64:
      case HVD_UINT64:
        as(static_cast<int64_t>(value));
        break;
      case HVD_INT32:
      case HVD_UINT32:
        as(static_cast<int32_t>(value));
        break;
      case HVD_BOOL:
        as(static_cast<uint8_t>(truth));
        break;
      default:
        as(static_cast<int8_t>(value));
    }
  }
}

}  // namespace

TEST(the_stand_in_has_the_functions_that_are_looked_up_and_no_others) {
  std::set<std::string> wanted, there;
  for (const char* name : nccl::names_of_functions()) wanted.insert(name);
  for (int i = 0; standin_nccl_function(i) != nullptr; ++i) there.insert(standin_nccl_function(i));
  EXPECT(wanted == there);
}

TEST(a_library_is_opened_from_2_14_on) {
  for (const int version : {21400, 21805, 22809, 23203}) {
    standin_nccl_version(version);
    const auto opened = library();
    EXPECT(opened != nullptr && opened->version() == version && opened->path().find("standin") != std::string::npos);
  }
  std::shared_ptr<const nccl::Library> none;
  standin_nccl_version(21303);
  EXPECT(has(nccl::Library::open({HVD_STANDIN, ""}, &none), HVD_UNAVAILABLE,
             {"version 2.13.3, and 2.14.0 is the oldest"}));
  standin_nccl_version(2708);  // as versions before 2.9 were told
  EXPECT(has(nccl::Library::open({HVD_STANDIN, ""}, &none), HVD_UNAVAILABLE, {"is the oldest"}));
  standin_nccl_version(23203);
  EXPECT(has(nccl::Library::open({"/no/such/libnccl.so", ""}, &none), HVD_UNAVAILABLE, {"/no/such/libnccl.so"}));
  EXPECT(none == nullptr);
}

TEST(nccl_is_asked_for_what_it_knows_only) {
  EXPECT(can_reduce({HVD_FLOAT32, HVD_SUM, 1, 1, 4}, HVD_ALLREDUCE));
  EXPECT(can_reduce({HVD_INT64, HVD_PRODUCT}, HVD_ALLREDUCE));
  EXPECT(can_reduce({HVD_BOOL, HVD_MIN}, HVD_ALLREDUCE));
  EXPECT(!can_reduce({HVD_BOOL, HVD_SUM}, HVD_ALLREDUCE));
  EXPECT(!can_reduce({HVD_INT16, HVD_SUM}, HVD_ALLREDUCE));
  EXPECT(can_reduce({HVD_UINT64, HVD_MAX}, HVD_ALLREDUCE));
  EXPECT(!can_reduce({HVD_UINT16, HVD_MAX}, HVD_ALLREDUCE));
  for (const ReduceOp op : {HVD_BITAND, HVD_BITOR, HVD_BITXOR}) {
    EXPECT(!can_reduce({HVD_INT32, op}, HVD_ALLREDUCE) && !can_reduce({HVD_BOOL, op}, HVD_REDUCESCATTER));
  }
  EXPECT(!can_reduce({HVD_INT32, HVD_SUM, 1, 1, 2}, HVD_ALLREDUCE));  // it does not truncate as we do
  EXPECT(!can_reduce({HVD_FLOAT32, HVD_ADASUM}, HVD_ALLREDUCE));
  EXPECT(!can_reduce({HVD_FLOAT32, HVD_MAX, 2, 1, 1}, HVD_REDUCESCATTER));
}

// Every type and operation, with factors that a half can hold and that it cannot, against the scalar reference.
TEST(reductions_have_the_values_that_they_have_on_the_cpu) {
  constexpr int kRanks = 3;
  static constexpr int64_t kCount = 257;
  run_world(make_world(kRanks, Wiring::kSharedMemory, with_nccl()), [](Engine& engine, int rank) {
    auto* const stream = static_cast<cuda::Stream>(standin_stream(rank));
    int number_of_case = 0;
    for (const DataType dtype : {HVD_UINT8, HVD_INT8, HVD_INT32, HVD_INT64, HVD_UINT32, HVD_UINT64, HVD_FLOAT16,
                                 HVD_BFLOAT16, HVD_FLOAT32, HVD_FLOAT64, HVD_BOOL}) {
      for (const ReduceOp op : {HVD_SUM, HVD_AVERAGE, HVD_MIN, HVD_MAX, HVD_PRODUCT}) {
        for (const double factor : {1.0, 0.5, 0.3}) {
          const Reduction reduction{dtype, op == HVD_AVERAGE ? HVD_SUM : op, factor, 1.0,
                                    op == HVD_AVERAGE ? kRanks : 1};
          if (!can_reduce(reduction, HVD_ALLREDUCE)) continue;
          const size_t bytes = static_cast<size_t>(kCount) * element_size(dtype);
          auto* const memory = static_cast<std::byte*>(standin_allocate(rank, 2 * bytes));
          fill(dtype, rank, memory, kCount);
          const hvd_tensor tensor{memory, memory + bytes, &kCount, 1, dtype};
          hvd_request request{};
          request.size = sizeof request;
          request.op = op;
          const std::string name = "case " + std::to_string(++number_of_case);
          request.name = name.c_str();
          request.prescale = factor;
          request.postscale = 1;
          request.tensors = &tensor;
          request.ntensors = 1;
          request.place = HVD_ON_CUDA;
          request.device = rank;
          std::shared_ptr<const Prepared> prepared;
          EXPECT(engine.submitter().prepare(request, &prepared).ok());
          const void* input = memory;
          void* output = memory + bytes;
          hvd_handle handle = 0;
          EXPECT(engine.submitter().submit(prepared, &input, &output, 0, &handle, nullptr, stream).ok());
          EXPECT(engine.submitter().wait(handle, 20000).ok());
          engine.submitter().release(handle);
          std::vector<std::vector<std::byte>> inputs(kRanks, std::vector<std::byte>(bytes));
          std::vector<const std::byte*> pointers;
          for (int r = 0; r < kRanks; ++r) {
            fill(dtype, r, inputs[static_cast<size_t>(r)].data(), kCount);
            pointers.push_back(inputs[static_cast<size_t>(r)].data());
          }
          const reference::Bytes expected = reference::fold(reduction, pointers, kCount);
          const double tolerance = dtype == HVD_BFLOAT16 ? 0.02 : dtype == HVD_FLOAT16 ? 3e-3 : 1e-6;
          for (int64_t i = 0; i < kCount; ++i) {
            const size_t at = static_cast<size_t>(i) * element_size(dtype);
            const double got = number(dtype, memory + bytes + at), want = number(dtype, expected.data() + at);
            if (std::fabs(got - want) <= tolerance * std::fabs(want)) continue;
            std::printf("dtype %d op %d factor %g, element %ld: expected %g, got %g\n", dtype, op, factor,
                        static_cast<long>(i), want, got);
            ++check::failures();
            break;
          }
          standin_free(memory);
        }
      }
    }
  });
  EXPECT(std::string(standin_races()).empty());
}

TEST_MAIN
