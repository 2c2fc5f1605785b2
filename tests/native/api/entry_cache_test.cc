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

// key_of names all fields, or it does not compile. Here each that decides a result changes by itself.
TEST(requests_that_differ_in_one_field_are_not_taken_for_each_other) {
  Shim shim;
  hvd_context* const context = start_alone();
  shim.generation.attach(context);
  std::vector<float> data(16);
  const std::vector<int64_t> shape = {2, 1}, other_shape = {1, 2}, splits = {2}, other_splits = {1};
  const hvd_tensor plain = {data.data(), data.data(), shape.data(), 2, HVD_FLOAT32};
  Collective collective;
  collective.name = "name";

  const auto is_new = [&](const auto& change) {
    std::vector<hvd_tensor> tensors(2, plain);
    hvd_request request = request_of(collective, tensors);
    request.ntensors = 1;
    change(&request, tensors.data());
    const size_t before = shim.entries.size();
    hvd_handle handle = 0;
    hvd_status status = new_status();
    if (shim.entries.submit(&shim.generation, request, nullptr, &handle, &status) == HVD_OK) {
      EXPECT(hvd_wait(context, handle, 10000, nullptr) == HVD_OK);
      hvd_release(context, handle);
    }
    return shim.entries.size() == before + 1;
  };

  const auto same = [](hvd_request*, hvd_tensor*) {};
  EXPECT(is_new(same));
  EXPECT(!is_new(same));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->kind = HVD_BROADCAST; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->op = HVD_MAX; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->process_set = 1; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->root_rank = 0; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->ntensors = 2; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->name = "other"; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->name = nullptr; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->prescale = 2; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->postscale = 2; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->place = HVD_ON_CUDA; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->device = 1; }));
  EXPECT(is_new([](hvd_request* request, hvd_tensor*) { request->tag = 1; }));
  EXPECT(is_new([&](hvd_request* request, hvd_tensor*) { request->splits = splits.data(); }));
  EXPECT(is_new([&](hvd_request* request, hvd_tensor*) { request->splits = splits.data(), request->nsplits = 1; }));
  EXPECT(
      is_new([&](hvd_request* request, hvd_tensor*) { request->splits = other_splits.data(), request->nsplits = 1; }));
  EXPECT(is_new([&](hvd_request*, hvd_tensor* tensor) { tensor->shape = other_shape.data(); }));
  EXPECT(is_new([](hvd_request*, hvd_tensor* tensor) { tensor->ndim = 1; }));
  EXPECT(is_new([](hvd_request*, hvd_tensor* tensor) { tensor->dtype = HVD_INT32; }));
  EXPECT(is_new([](hvd_request*, hvd_tensor* tensor) { tensor->output_bytes = 8; }));
  EXPECT(hvd_stop(context, 1000, nullptr) == HVD_OK);
  hvd_free(context);
}

}  // namespace
}  // namespace hvd::shims
TEST_MAIN
