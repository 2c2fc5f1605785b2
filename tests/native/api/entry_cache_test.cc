// SPDX-License-Identifier: Apache-2.0
// The prepared requests of shims: those of shapes that come back are kept, and their number is bounded.
#include <vector>

#include "alone.h"
#include "check.h"
#include "shims/collective.h"

namespace hvd::shims {
namespace {

constexpr size_t kMost = 64;

struct Shim {
  Generation generation;
  EntryCache entries{kMost};

  void call(const std::vector<int64_t>& shape, hvd_dtype dtype = HVD_FLOAT32) {
    std::vector<float> data(16);
    const hvd_tensor tensor = {data.data(), data.data(), shape.data(), static_cast<int32_t>(shape.size()), dtype};
    hvd_handle handle = 0;
    EXPECT(entries.submit(&generation, request_of(Collective{}, {&tensor, 1}), nullptr, &handle, nullptr) == HVD_OK);
    EXPECT(hvd_wait(generation.context, handle, 10000, nullptr) == HVD_OK);
    hvd_release(generation.context, handle);
  }
};

TEST(shapes_that_come_twice_and_no_more_do_not_fill_the_memory) {
  Shim shim;
  hvd_context* const context = start_alone();
  shim.generation.attach(context);
  for (int64_t i = 0; i < 3 * static_cast<int64_t>(kMost); ++i) {
    shim.call({0, i});
    shim.call({0, i});
    EXPECT(shim.entries.size() <= kMost);
  }
  // Those of one value are not those of another: their order is that of the last use.
  shim.call({2});
  const size_t known = shim.entries.size();
  shim.call({2});
  shim.call({2}, HVD_INT32);
  shim.call({2, 1});
  EXPECT(shim.entries.size() == known + 2);
  shim.generation.attach(nullptr);
  EXPECT(hvd_stop(context, 1000, nullptr) == HVD_OK);
  hvd_free(context);

  hvd_context* const another = start_alone();
  shim.generation.attach(another);
  shim.call({2});
  EXPECT(shim.entries.size() == 1);
  shim.entries.clear();
  EXPECT(hvd_stop(another, 1000, nullptr) == HVD_OK);
  hvd_free(another);
}

}  // namespace
}  // namespace hvd::shims
TEST_MAIN
