// SPDX-License-Identifier: Apache-2.0
// Timing of cached against streamed stores (step 7).
#include "communicators/shm/store_choice.h"

#include <algorithm>
#include <vector>

#include "collectives/slot_allreduce.h"
#include "collectives/slot_copy.h"
#include "platform/clock.h"

namespace hvd {

namespace {

// The time that measuring may add to a start, and to the operation that it precedes. The limit is the same on every
// machine: slower rounds mean fewer rounds, and if members share cores, more rounds would tell nothing more. So the
// limit decides how good the best round is, and never which way is the better one.
constexpr uint64_t kPatienceNs = 4'000'000;
constexpr int kLeastRounds = 2;   // one may be spoilt by a member that was not on a core
constexpr double kBetter = 0.95;  // of the other's time; what is chosen stays if they are about equal

}  // namespace

bool StoreChoice::measure(SlotRing& ring, const Kernels& kernels, size_t small_bytes, int rounds) {
  return measure_size(ring, kernels, kSmall, small_bytes, rounds) &&
         measure_size(ring, kernels, kLarge, kLargeBytes, rounds);
}

bool StoreChoice::measure_size(SlotRing& ring, const Kernels& kernels, Size size, size_t bytes, int rounds) {
  std::vector<float> values(bytes / sizeof(float), 0.0f);
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  const Slice slice{data, data, static_cast<int64_t>(values.size())};
  const SliceList list({&slice, 1}, sizeof(float));
  const auto timed = [&](bool stream, uint64_t* ns) {
    const uint64_t begin = now_ns();
    const Reduction sum;
    const Status status = size == kSmall ? one_shot_allreduce(ring, kernels, list, sum, stream)
                                         : two_shot_allreduce(ring, kernels, list, sum, {stream, false});
    *ns = now_ns() - begin;
    return status.ok();
  };
  struct Times {
    uint64_t cached = 0, streamed = 0;
  };
  std::vector<Times> all(static_cast<size_t>(ring.size()));
  Times best{UINT32_MAX, UINT32_MAX}, mine;
  if (!timed(false, &mine.cached)) return false;  // the pages are there from here on
  uint64_t spent_ns = 0;
  for (int round = 0; round < rounds && (round < kLeastRounds || spent_ns < kPatienceNs); ++round) {
    if (!timed(false, &mine.cached) || !timed(true, &mine.streamed)) return false;
    if (!slot_exchange(ring, kernels, &mine, sizeof mine, all.data()).ok()) return false;
    Times slowest;
    for (const Times& one : all) {
      slowest.cached = std::max(slowest.cached, one.cached);
      slowest.streamed = std::max(slowest.streamed, one.streamed);
    }
    best.cached = std::min(best.cached, slowest.cached);
    best.streamed = std::min(best.streamed, slowest.streamed);
    spent_ns += slowest.cached + slowest.streamed;
  }
  Choice& choice = choices_[size];
  const auto cached = static_cast<double>(best.cached), streamed = static_cast<double>(best.streamed);
  const bool streams = choice.streams.load(std::memory_order_relaxed);
  choice.streams.store(streams ? !(cached < kBetter * streamed) : streamed < kBetter * cached,
                       std::memory_order_relaxed);
  choice.cached_ns.store(static_cast<uint32_t>(best.cached), std::memory_order_relaxed);
  choice.streamed_ns.store(static_cast<uint32_t>(best.streamed), std::memory_order_relaxed);
  return true;
}

std::string StoreChoice::describe() const {
  static constexpr const char* kNames[kSizes] = {"stores_small", "stores"};
  std::string text;
  for (const Size size : {kSmall, kLarge}) {
    const Choice& choice = choices_[size];
    const std::string name = kNames[size];
    text += (text.empty() ? "\"" : ", \"") + name + "\": \"" +
            (choice.streams.load(std::memory_order_relaxed) ? "streamed" : "cached") + "\", \"" + name +
            "_cached_ns\": " + std::to_string(choice.cached_ns.load(std::memory_order_relaxed)) + ", \"" + name +
            "_streamed_ns\": " + std::to_string(choice.streamed_ns.load(std::memory_order_relaxed));
  }
  return text;
}

}  // namespace hvd
