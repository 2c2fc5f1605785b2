// SPDX-License-Identifier: Apache-2.0
#include "shims/watch.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd::shims {

namespace {

constexpr int32_t kMark = -1;

struct Watch {
  uint64_t completed = 0;  // steps
  uint64_t attempt = 0;    // at the step that comes next: one that fails begins again
  std::vector<bool> seen;  // the places that were submitted in it
  size_t ended = 0;
  bool is_due = false;
  std::vector<float> values;
  uint64_t each_until = 0, every = 1;
  bool looks_at_all = false;
};

// A request's tensors, and the attempt in which it was submitted last.
struct Request {
  int32_t watch = 0;
  std::vector<int32_t> places;
  uint64_t attempt = 0;
};

struct Complete {
  int32_t watch = kMark;
  uint64_t step = 0;
  std::vector<float> values;
};

struct Watches {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int32_t, Watch> watches;
  std::map<std::string, Request, std::less<>> requests;
  std::deque<Complete> complete;  // for Python
};

std::atomic<bool> is_on{false};

Watches& all() {
  static auto* const one = new Watches;  // never destroyed: compiled code may outlive the library's statics
  return *one;
}

float from_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float size = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                     : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                      : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

template <class T>
T element(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

bool is_float(int32_t dtype) {
  return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
}

float value_of(const hvd_tensor& tensor, int64_t index) {
  switch (tensor.dtype) {
    case HVD_FLOAT16:
      return from_float16(element<uint16_t>(tensor.input, index));
    case HVD_BFLOAT16:
      return std::bit_cast<float>(static_cast<uint32_t>(element<uint16_t>(tensor.input, index)) << 16);
    case HVD_FLOAT32:
      return element<float>(tensor.input, index);
    default:
      return static_cast<float>(element<double>(tensor.input, index));
  }
}

bool is_finite(const hvd_tensor& tensor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const bool finite = tensor.dtype == HVD_FLOAT64 ? std::isfinite(element<double>(tensor.input, i))
                                                    : std::isfinite(value_of(tensor, i));
    if (!finite) return false;
  }
  return true;
}

void take(const hvd_tensor& tensor, bool looks_at_all, float* values) {
  int64_t count = is_float(tensor.dtype) ? 1 : 0;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  values[0] = !looks_at_all || is_finite(tensor, count) ? 1.0F : 0.0F;
  const int64_t apart = std::max<int64_t>(1, count / kWatchSamples);
  const int64_t samples = std::min(count, kWatchSamples);
  values[1] = static_cast<float>(samples);
  for (int64_t i = 0; i < samples; ++i) values[2 + i] = value_of(tensor, i * apart);
}

void begin_attempt(Watch* watch) {
  ++watch->attempt;
  watch->ended = 0;
  watch->seen.assign(watch->seen.size(), false);
  watch->is_due = watch->completed < watch->each_until || watch->completed % watch->every == 0;
  if (watch->is_due) watch->values.assign(watch->seen.size() * kWatchValues, 0.0F);
}

}  // namespace

void watch(const hvd_request& request) {
  if (!is_on.load() || request.name == nullptr || request.place != HVD_ON_HOST) return;
  const std::lock_guard lock(all().mutex);
  const auto found = all().requests.find(std::string_view(request.name));
  if (found == all().requests.end()) return;
  Request& known = found->second;
  Watch& watch = all().watches[known.watch];
  const size_t count = std::min<size_t>(known.places.size(), request.ntensors);
  for (size_t i = 0; i < count; ++i) {
    const auto place = static_cast<size_t>(known.places[i]);
    if (place >= watch.seen.size()) return;
    if (watch.seen[place] || watch.attempt == 0) begin_attempt(&watch);
    watch.seen[place] = true;
    if (watch.is_due) take(request.tensors[i], watch.looks_at_all, watch.values.data() + place * kWatchValues);
  }
  known.attempt = watch.attempt;
}

void watch_end(const char* name, bool has_succeeded) {
  if (!is_on.load() || name == nullptr) return;
  const std::lock_guard lock(all().mutex);
  const auto found = all().requests.find(std::string_view(name));
  if (found == all().requests.end()) return;
  Watch& watch = all().watches[found->second.watch];
  if (found->second.attempt != watch.attempt || watch.attempt == 0) return;
  if (!has_succeeded) return begin_attempt(&watch);
  watch.ended += found->second.places.size();
  if (watch.ended < watch.seen.size()) return;
  const uint64_t step = watch.completed++;
  if (watch.is_due) all().complete.push_back({found->second.watch, step, std::move(watch.values)});
  if (watch.is_due) all().changed.notify_one();
  begin_attempt(&watch);
}

}  // namespace hvd::shims

extern "C" {

// Says whether a generation runs, of which Python wants to hear. All lists begin with step 0 again.
HVD_EXPORT void hvd_watch_turn(int32_t on) {
  hvd::shims::Watches& all = hvd::shims::all();
  const std::lock_guard lock(all.mutex);
  hvd::shims::is_on = on != 0;
  all.complete.clear();
  for (auto& [number, watch] : all.watches) {
    watch.completed = 0;
    hvd::shims::begin_attempt(&watch);
  }
}

// Begins to watch a list of so many gradients: in the first steps, and then in one of `every`.
HVD_EXPORT void hvd_watch_list(int32_t watch, int32_t gradients, int32_t each_until, int32_t every, int32_t at_all) {
  hvd::shims::Watches& all = hvd::shims::all();
  const std::lock_guard lock(all.mutex);
  hvd::shims::Watch& list = all.watches[watch];
  list.seen.assign(static_cast<size_t>(gradients), false);
  list.each_until = static_cast<uint64_t>(each_until);
  list.every = static_cast<uint64_t>(every);
  list.looks_at_all = at_all != 0;
  hvd::shims::begin_attempt(&list);
}

// The request of this name holds gradients of the list, at these places.
HVD_EXPORT void hvd_watch_request(const char* name, int32_t watch, const int32_t* places, int32_t count) {
  hvd::shims::Watches& all = hvd::shims::all();
  const std::lock_guard lock(all.mutex);
  all.requests[name] = {watch, {places, places + count}, 0};
}

// Has hvd_watch_next return once without values, after all that is complete now.
HVD_EXPORT void hvd_watch_mark(void) {
  hvd::shims::Watches& all = hvd::shims::all();
  const std::lock_guard lock(all.mutex);
  all.complete.emplace_back();
  all.changed.notify_one();
}

// Blocks until a step is complete, and returns how many values there are. If there is less room, it takes nothing away.
HVD_EXPORT int64_t hvd_watch_next(int32_t* watch, uint64_t* step, float* values, int64_t room) {
  hvd::shims::Watches& all = hvd::shims::all();
  std::unique_lock lock(all.mutex);
  all.changed.wait(lock, [&all] { return !all.complete.empty(); });
  const hvd::shims::Complete& next = all.complete.front();
  const auto count = static_cast<int64_t>(next.values.size());
  if (count > room) return count;
  *watch = next.watch;
  *step = next.step;
  std::copy_n(next.values.begin(), count, values);
  all.complete.pop_front();
  return count;
}

}  // extern "C"
