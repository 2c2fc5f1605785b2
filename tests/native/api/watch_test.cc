// SPDX-License-Identifier: Apache-2.0
// What Python hears of the gradients of compiled steps: few elements, of steps that have succeeded, seldom.
#include "shims/watch.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "check.h"

extern "C" {
void hvd_watch_turn(int32_t on);
void hvd_watch_list(int32_t watch, int32_t gradients, int32_t each_until, int32_t every, int32_t at_all);
void hvd_watch_request(const char* name, int32_t watch, const int32_t* places, int32_t count);
void hvd_watch_mark(void);
int64_t hvd_watch_next(int32_t* watch, uint64_t* step, float* values, int64_t room);
}

namespace hvd::shims {
namespace {

struct Seen {
  int32_t watch = 0;
  uint64_t step = 0;
  std::vector<float> values;
};

// All that Python would hear now.
std::vector<Seen> heard() {
  hvd_watch_mark();
  std::vector<Seen> all;
  while (true) {
    Seen seen;
    seen.values.resize(static_cast<size_t>(hvd_watch_next(&seen.watch, &seen.step, nullptr, -1)));
    hvd_watch_next(&seen.watch, &seen.step, seen.values.data(), static_cast<int64_t>(seen.values.size()));
    if (seen.watch < 0) return all;
    all.push_back(seen);
  }
}

template <class T>
void submit(const std::string& name, const std::vector<T>& data, hvd_dtype dtype, size_t times = 1) {
  const int64_t shape[] = {static_cast<int64_t>(data.size())};
  const std::vector<hvd_tensor> tensors(times, hvd_tensor{data.data(), nullptr, shape, 1, dtype});
  hvd_request request{};
  request.name = name.c_str();
  request.tensors = tensors.data();
  request.ntensors = static_cast<uint32_t>(times);
  watch(request);
}

void begin(int32_t number, const std::vector<std::string>& names, int32_t until, int32_t every, bool at_all) {
  hvd_watch_turn(1);
  hvd_watch_list(number, static_cast<int32_t>(names.size()), until, every, at_all ? 1 : 0);
  for (int32_t place = 0; place < static_cast<int32_t>(names.size()); ++place) {
    hvd_watch_request(names[static_cast<size_t>(place)].c_str(), number, &place, 1);
  }
}

TEST(the_first_steps_are_told_and_then_one_of_several) {
  begin(1, {"a", "b"}, 3, 4, false);
  for (int step = 0; step < 10; ++step) {
    submit<float>("b", {static_cast<float>(step)}, HVD_FLOAT32);
    submit<float>("a", {0.5F, 1.5F}, HVD_FLOAT32);
    submit<float>("not watched", {1}, HVD_FLOAT32);
    watch_end("a", true);
    EXPECT(heard().empty());
    watch_end("b", true);
    const std::vector<Seen> seen = heard();
    EXPECT(seen.size() == (step < 3 || step % 4 == 0 ? 1U : 0U));
    if (seen.empty()) continue;
    EXPECT(seen[0].step == static_cast<uint64_t>(step) && seen[0].watch == 1);
    EXPECT(seen[0].values[1] == 2 && seen[0].values[2] == 0.5F && seen[0].values[3] == 1.5F);
    EXPECT(seen[0].values[kWatchValues + 1] == 1);
    EXPECT(seen[0].values[kWatchValues + 2] == static_cast<float>(step));
  }
  hvd_watch_turn(0);
}

TEST(a_step_that_fails_is_not_told_and_does_not_count) {
  begin(2, {"a", "b"}, 9, 1, false);
  const auto step = [](float value, bool first, bool second) {
    submit<float>("a", {value}, HVD_FLOAT32);
    submit<float>("b", {value}, HVD_FLOAT32);
    watch_end("a", first);
    watch_end("b", second);
  };
  step(1, true, true);
  step(2, false, true);
  step(3, true, false);
  submit<float>("a", {4.0F}, HVD_FLOAT32);  // the other one never comes
  watch_end("a", true);
  step(5, true, true);
  const std::vector<Seen> seen = heard();
  EXPECT(seen.size() == 2 && seen[0].step == 0 && seen[1].step == 1);
  EXPECT(seen[0].values[2] == 1 && seen[1].values[2] == 5 && seen[1].values[kWatchValues + 2] == 5);
  hvd_watch_turn(0);
  step(6, true, true);
  EXPECT(heard().empty());
}

TEST(samples_are_spread_over_a_gradient_of_any_dtype) {
  const int32_t places[] = {0, 1};
  begin(3, {"half", "bfloat", "double", "int", "large"}, 9, 1, true);
  submit<uint16_t>("half", {0x3e00, 0xc000, 0x0001, 0x7c00}, HVD_FLOAT16);
  submit<uint16_t>("bfloat", {0x3fc0, 0xc000}, HVD_BFLOAT16);
  submit<double>("double", {1.5, 1e300}, HVD_FLOAT64);  // finite as it is
  submit<int32_t>("int", {1, 2}, HVD_INT32);
  std::vector<float> large(100000);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i);
  large[99999] = std::numeric_limits<float>::quiet_NaN();  // not among the samples
  submit<float>("large", large, HVD_FLOAT32);
  for (const char* name : {"half", "bfloat", "double", "int", "large"}) watch_end(name, true);
  const std::vector<float> values = heard().at(0).values;
  const float* const half = values.data();
  EXPECT(half[0] == 0 && half[1] == 4 && half[2] == 1.5F && half[3] == -2 && half[4] == std::ldexp(1.0F, -24));
  EXPECT(std::isinf(half[5]));
  const float* const bfloat = half + kWatchValues;
  EXPECT(bfloat[0] == 1 && bfloat[1] == 2 && bfloat[2] == 1.5F && bfloat[3] == -2);
  EXPECT(bfloat[kWatchValues] == 1 && bfloat[kWatchValues + 2] == 1.5F);
  EXPECT(bfloat[2 * kWatchValues] == 1 && bfloat[2 * kWatchValues + 1] == 0);
  const float* const last = bfloat + 3 * kWatchValues;
  EXPECT(last[0] == 0 && last[1] == kWatchSamples && last[2] == 0 && last[3] == 6250 && last[17] == 93750);
  // A request may hold more tensors than are watched, and places that the list does not have.
  hvd_watch_list(3, 1, 9, 1, 0);
  hvd_watch_request("several", 3, places, 2);
  submit<float>("several", {1}, HVD_FLOAT32, 3);
  watch_end("several", true);
  EXPECT(heard().empty());
  hvd_watch_turn(0);
}

}  // namespace
}  // namespace hvd::shims

TEST_MAIN
