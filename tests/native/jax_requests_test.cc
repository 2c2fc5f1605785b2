// SPDX-License-Identifier: Apache-2.0
// The prepared requests of compiled functions: those of shapes that come back are kept, and their number is bounded.
#include <vector>

#include "check.h"
#include "shims/jax/requests.h"

extern "C" void hvd_jax_attach(hvd_context* context);

namespace hvd::jax {
namespace {

hvd_context* world_of_one() {
  const int32_t host = 0;
  hvd_options options{};
  options.size = sizeof options;
  options.world_size = 1;
  options.generation = 1;
  options.host_of_rank = &host;
  hvd_context* context = nullptr;
  EXPECT(hvd_start(&options, &context, nullptr) == HVD_OK);
  return context;
}

void call(std::vector<int64_t> shape, hvd_dtype dtype = HVD_FLOAT32, int32_t process_set = 0, int expected = HVD_OK) {
  std::vector<float> data(16);
  Collective collective;
  collective.process_set = process_set;
  collective.tensors = {{data.data(), data.data(), shape.data(), static_cast<int32_t>(shape.size()), dtype}};
  hvd_handle handle = 0;
  hvd_status status{};
  status.size = sizeof status;
  EXPECT(submit(&collective, {}, &handle, &status) == expected);
  if (expected != HVD_OK) return;
  EXPECT(hvd_wait(generation().context, handle, 10000, nullptr) == HVD_OK);
  hvd_release(generation().context, handle);
}

TEST(shapes_that_come_twice_and_no_more_do_not_fill_the_memory) {
  hvd_context* const context = world_of_one();
  hvd_jax_attach(context);
  for (int64_t i = 0; i < 3 * static_cast<int64_t>(Generation::kMostKeys); ++i) {
    call({0, i});
    call({0, i});
    EXPECT(generation().entries.size() <= Generation::kMostKeys);
  }
  // Those of one value are not those of another: their order is that of the last use.
  call({2});
  const size_t known = generation().entries.size();
  call({2});
  call({2}, HVD_INT32);
  call({2, 1});
  EXPECT(generation().entries.size() == known + 2);
  hvd_jax_attach(nullptr);
  EXPECT(generation().entries.empty());
  EXPECT(hvd_stop(context, 1000, nullptr) == HVD_OK);
  hvd_free(context);
}

}  // namespace
}  // namespace hvd::jax

TEST_MAIN
