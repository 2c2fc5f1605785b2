// SPDX-License-Identifier: Apache-2.0
#include "reduction/helpers.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <bit>
#include <system_error>

#include "platform/float_state.h"
#include "platform/futex.h"
#include "platform/wait.h"

namespace hvd {

namespace {

constexpr size_t kLeastBytes = size_t{256} << 10;       // of an operation that is worth waking threads for
constexpr size_t kLeastPieceBytes = size_t{16} << 10;   // below that, handing it over takes as long as doing it
constexpr uint32_t kTrialOperations = 8, kPeriod = 64;  // so many of each period are a trial, every other one with help
constexpr double kBetter = 0.9;                         // of the time without: what is not worth it keeps no cores busy
constexpr int kPauses = 200, kPatience = 1200;
constexpr int64_t kNapNs = 200'000;

// Waits for a moment for what another thread of this process is about to do.
void pause_or_yield(int turn) {
  if (turn < kPauses) {
    cpu_pause();
  } else {
    sched_yield();
  }
}

}  // namespace

Helpers::~Helpers() {
  over_.store(true);
  shift_.fetch_add(1);
  futex_wake(shift_);
  for (std::thread& thread : threads_) thread.join();
}

void Helpers::begin(size_t bytes) {
  bytes_ = bytes;
  worked_ns_ = 0;
  choice_ = nullptr;
  is_helped_ = false;
  if (always_) {
    is_helped_ = start_threads();
  } else if (bytes >= kLeastBytes && allowed_.load(std::memory_order_relaxed)) {
    const int size = std::bit_width(bytes) - std::bit_width(kLeastBytes);
    choice_ = &choices_[std::min(size, kSizes - 1)];
    const uint32_t place = choice_->operations++ % kPeriod;
    is_trial_ = place < kTrialOperations;
    if (place == 0) *choice_ = {.operations = choice_->operations, .helps = choice_->helps};
    is_helped_ = (is_trial_ ? place % 2 == 1 : choice_->helps) && start_threads();
  }
  if (!is_helped_) return;
  const uint64_t begin_ns = begin_part();
  shift_.fetch_add(1);
  futex_wake(shift_);
  end_part(begin_ns);
  helped_operations_.fetch_add(1, std::memory_order_relaxed);
}

void Helpers::end() {
  if (is_helped_) shift_.fetch_add(1);
  if (in_trial()) {
    (is_helped_ ? choice_->helped_ns : choice_->alone_ns) += worked_ns_;
    (is_helped_ ? choice_->helped_bytes : choice_->alone_bytes) += bytes_;
    if (choice_->operations % kPeriod == kTrialOperations) {
      const auto rate = [](uint64_t ns, uint64_t count) {
        return static_cast<double>(ns) / static_cast<double>(count);
      };
      choice_->helps = choice_->helped_bytes > 0 && rate(choice_->helped_ns, choice_->helped_bytes) <
                                                        kBetter * rate(choice_->alone_ns, choice_->alone_bytes);
    }
  }
  choice_ = nullptr;
  is_helped_ = false;
}

uint64_t Helpers::begin_part() const { return in_trial() ? clock_() : 0; }

void Helpers::end_part(uint64_t begin_ns) {
  if (in_trial()) worked_ns_ += clock_() - begin_ns;
}

int Helpers::pieces_of(size_t bytes) const {
  if (!is_helped_) return 1;
  const size_t least = always_ ? 64 : kLeastPieceBytes;
  return static_cast<int>(std::clamp<size_t>(bytes / least, 1, threads_.size() + 1));
}

// Signals are for the threads of the program.
bool Helpers::start_threads() {
  if (!threads_.empty() || wanted_ == 0) return !threads_.empty();
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    while (static_cast<int>(threads_.size()) < wanted_) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Without a thread more, those that there are help.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return !threads_.empty();
}

void Helpers::run_pieces(int pieces, Call call, const void* data) {
  call_ = call;
  data_ = data;
  ended_.store(0, std::memory_order_relaxed);
  pieces_.store(uint64_t{++round_} << 32 | static_cast<uint64_t>(pieces) << 16, std::memory_order_release);
  while (take_piece()) {
  }
  for (int turn = 0; ended_.load(std::memory_order_acquire) < pieces; ++turn) pause_or_yield(turn);
}

bool Helpers::take_piece() {
  uint64_t word = pieces_.load(std::memory_order_acquire);
  const auto next = static_cast<int>(word & 0xffff), pieces = static_cast<int>(word >> 16 & 0xffff);
  if (next >= pieces) return false;
  if (pieces_.compare_exchange_strong(word, word + 1, std::memory_order_acq_rel)) {
    call_(data_, next);
    ended_.fetch_add(1, std::memory_order_release);
  }
  return true;
}

void Helpers::work() {
  const FloatState state;
  for (;;) {
    const uint32_t shift = shift_.load();
    if (over_.load()) return;  // in this order: the end changes `shift_` last
    if (shift % 2 == 0) {
      futex_wait(shift_, shift, -1);
      continue;
    }
    for (int turn = 0; shift_.load(std::memory_order_relaxed) == shift; ++turn) {
      if (take_piece()) {
        turn = 0;
      } else if (turn < kPatience) {
        pause_or_yield(turn);
      } else {
        futex_wait(shift_, shift, kNapNs);  // the other ranks need long
      }
    }
  }
}

std::string Helpers::describe() const {
  return "\"helper_threads\": " + std::to_string(wanted_) +
         ", \"helped_operations\": " + std::to_string(helped_operations_.load(std::memory_order_relaxed));
}

}  // namespace hvd
