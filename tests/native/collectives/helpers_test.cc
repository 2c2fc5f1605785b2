// SPDX-License-Identifier: Apache-2.0
// Threads that help with large operations: every piece runs once; they help only where that is faster, and only if they
// may. That bits do not depend on them is in communicator_test.cc.
#include "reduction/helpers.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

using hvd::Helpers;

constexpr size_t kLarge = size_t{1} << 20;
constexpr int kTrial = 8;  // operations, every other one of them with help

void sleep_us(int us) { std::this_thread::sleep_for(std::chrono::microseconds(us)); }

ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// A clock that only work moves: who gets a core when does not matter to what is decided.
std::atomic<uint64_t> worked_ns{0};
uint64_t work_clock() { return worked_ns.load(); }

uint64_t shared(int pieces) { return 4'000'000 / static_cast<uint64_t>(pieces); }
uint64_t contended(int pieces) { return 1'000'000 * static_cast<uint64_t>(pieces); }

// Whether helpers take part in an operation whose pieces, side by side, take `time_of(pieces)`.
bool is_helped(Helpers& helpers, uint64_t (*time_of)(int)) {
  const Helpers::Operation operation(&helpers, kLarge);
  const int pieces = helpers.pieces_of(kLarge);
  helpers.run(pieces, [&](int piece) {
    if (piece == 0) worked_ns += time_of(pieces);
  });
  return pieces > 1;
}

TEST(every_piece_runs_once) {
  Helpers helpers(3);
  helpers.always_help();
  const std::thread::id own = std::this_thread::get_id();
  std::vector<std::atomic<int>> runs(4);
  std::atomic<int> elsewhere{0};
  for (int round = 0; round < (kSanitized ? 500 : 5000); ++round) {
    const Helpers::Operation operation(&helpers, 1);
    for (int part = 0; part < 5; ++part) {
      const int pieces = helpers.pieces_of(static_cast<size_t>(64 * (1 + (round + part) % 6)));
      EXPECT(pieces == std::min(4, 1 + (round + part) % 6));
      for (std::atomic<int>& run : runs) run.store(0, std::memory_order_relaxed);
      helpers.run(pieces, [&](int piece) {
        runs[static_cast<size_t>(piece)].fetch_add(1, std::memory_order_relaxed);
        if (std::this_thread::get_id() != own) elsewhere.fetch_add(1, std::memory_order_relaxed);
        if (round % 20 == 0) sleep_us(20);
      });
      for (int piece = 0; piece < 4; ++piece)
        EXPECT(runs[static_cast<size_t>(piece)].load() == (piece < pieces ? 1 : 0));
    }
  }
  EXPECT(elsewhere.load() > 0);
  EXPECT(helpers.describe().ends_with(": " + std::to_string(kSanitized ? 500 : 5000)));
}

TEST(no_thread_starts_without_a_caller_that_waits) {
  const ptrdiff_t before = threads_of_process();
  Helpers helpers(2);
  for (int i = 0; i < 2 * kTrial; ++i) EXPECT(!is_helped(helpers, shared));
  EXPECT(threads_of_process() == before);
  helpers.allow(true);
  const Helpers::Operation small(&helpers, 1000);
  EXPECT(helpers.pieces_of(1000) == 1 && threads_of_process() == before);
}

TEST(helpers_help_where_that_is_faster) {
  Helpers helpers(1, work_clock);
  helpers.allow(true);
  for (int i = 0; i < kTrial; ++i) EXPECT(is_helped(helpers, shared) == (i % 2 == 1));
  EXPECT(is_helped(helpers, shared));
  helpers.allow(false);
  EXPECT(!is_helped(helpers, shared));
}

TEST(helpers_do_not_help_where_that_is_slower) {
  Helpers helpers(1, work_clock);
  helpers.allow(true);
  for (int i = 0; i < kTrial; ++i) EXPECT(is_helped(helpers, contended) == (i % 2 == 1));
  int helped = 0;
  for (int i = kTrial; i < 64; ++i) helped += is_helped(helpers, contended);
  EXPECT(helped == 0);
  // Tried again, in the next period: the cores may be idle by then.
  for (int i = 0; i < kTrial; ++i) EXPECT(is_helped(helpers, shared) == (i % 2 == 1));
  EXPECT(is_helped(helpers, shared));
}

TEST(threads_end_with_their_helpers) {
  const ptrdiff_t before = threads_of_process();
  for (int i = 0; i < 200; ++i) {
    Helpers helpers(2);
    helpers.always_help();
    for (int operations = 0; operations < i % 3; ++operations) is_helped(helpers, shared);
  }
  EXPECT(threads_of_process() == before);
}

}  // namespace

TEST_MAIN
