// SPDX-License-Identifier: Apache-2.0
// Messages through MPI, and how they are waited for, with stand-ins for an MPI: their functions are those below.
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "check.h"
#include "communicators/mpi/mesh.h"
#include "communicators/mpi/patience.h"
#include "communicators/mpi/progress.h"
#include "platform/clock.h"

using namespace hvd;

namespace {

uint64_t cpu_ns() {  // of this thread
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

long naps() {  // how often this thread has left its core by itself
  rusage used{};
  getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

struct StandIn {
  std::atomic<int> probes = 0;
  std::atomic<int> tests = 0;
  std::atomic<bool> is_over = false;  // finalized
  uint64_t done_after_cpu_ns = 0;     // of the waiting thread
  std::atomic<uint64_t>* word = nullptr;
};
StandIn mpi_state;

mpi::Library stand_in() {
  mpi::Library library{};
  library.call.Iprobe = [](int, int, mpi::Handle, int* there, void*) {
    ++mpi_state.probes;
    *there = 0;
    return mpi::kSuccess;
  };
  library.call.Irecv = [](void*, int, mpi::Handle, int, int, mpi::Handle, mpi::Handle* request) {
    *request = 1;
    return mpi::kSuccess;
  };
  library.call.Test = [](mpi::Handle*, int* done, void*) {
    ++mpi_state.tests;
    *done = cpu_ns() >= mpi_state.done_after_cpu_ns ? 1 : 0;
    return mpi::kSuccess;
  };
  library.call.Finalized = [](int* flag) {
    *flag = mpi_state.is_over ? 1 : 0;
    return mpi::kSuccess;
  };
  return library;
}

std::set<std::string> threads() {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    found.insert(entry.path().filename());
  }
  return found;
}

long sleeps_of(const std::string& thread) {
  std::ifstream status("/proc/self/task/" + thread + "/status");
  const std::string key = "voluntary_ctxt_switches:";
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stol(line.substr(key.size()));
  }
  return -1;
}

// A member that waits for a message of another one.
struct Waiting {
  explicit Waiting(const Interrupt& interrupt = {}) : mesh(library, 0, {0, 1}, interrupt) {}
  Status wait() {
    mesh.begin("barrier");
    mesh.receive(1, 0, &received, 1);
    return mesh.drain();
  }
  const mpi::Library library = stand_in();
  mpi::MpiMesh mesh;
  std::byte received{};
};

}  // namespace

TEST(a_long_wait_leaves_the_core_to_others_again_and_again) {
  Waiting one;
  constexpr uint64_t kCpuNs = 100 * kMs;
  mpi_state.done_after_cpu_ns = cpu_ns() + kCpuNs;
  const long before = naps();
  EXPECT(one.wait().ok());
  EXPECT(naps() - before >= 20);  // about 45: a nap every 2 ms, more if others want the core
}

TEST(data_that_moves_all_the_time_keeps_the_core_from_others_for_10_ms_at_most) {
  mpi::Patience patience;
  patience.begin();
  const long before = naps();
  for (const uint64_t end = cpu_ns() + 100 * kMs; cpu_ns() < end;) {
    patience.moved();
    if (patience.is_over()) patience.turn();
  }
  EXPECT(naps() - before >= 5);  // about 10, more if others want the core
}

TEST(a_short_wait_takes_no_nap) {
  Waiting one;
  mpi_state.done_after_cpu_ns = 0;
  const long before = naps();
  for (int i = 0; i < 1000; ++i) EXPECT(one.wait().ok());
  EXPECT(naps() - before < 500);  // none, but for locks
}

TEST(an_interrupt_ends_a_wait_and_nobody_calls_mpi_any_more) {
  std::atomic<uint64_t> word = 1;
  Waiting one({&word, -1});
  mpi_state.done_after_cpu_ns = ~uint64_t{0};
  const Status status = one.wait();
  EXPECT(status.code() == HVD_ABORTED);
  EXPECT(status.text() == "barrier over MPI was interrupted while rank 0 waited for rank 1");
  sleep_ms(20);  // a call that runs
  mpi_state.probes = 0;
  sleep_ms(50);
  EXPECT(mpi_state.probes == 0);
}

TEST(nobody_calls_mpi_after_a_script_has_ended_it) {
  const mpi::Library library = stand_in();
  mpi::Progress progress(library);
  mpi_state.is_over = true;
  sleep_ms(20);  // a call that runs
  mpi_state.probes = 0;
  sleep_ms(50);
  EXPECT(mpi_state.probes == 0);
  mpi_state.is_over = false;
}

// The thread beside the ranks' own: MPI is called by it only between operations, and it seldom wakes.
TEST(the_thread_calls_mpi_between_operations_and_sleeps_while_one_runs) {
  const mpi::Library library = stand_in();
  const std::set<std::string> others = threads();
  mpi::Progress progress(library);
  std::string thread;
  for (const std::string& one : threads()) {
    if (!others.contains(one)) thread = one;
  }
  mpi_state.probes = 0;
  while (mpi_state.probes < 3) std::this_thread::yield();
  {
    const mpi::Progress::Busy busy(progress);
    const long before = sleeps_of(thread);
    EXPECT(before >= 0);
    sleep_ms(20);  // the call that it may be in ends
    const int probes = mpi_state.probes;
    const uint64_t began = now_ns();
    sleep_ms(200);
    const auto elapsed_ms = static_cast<long>((now_ns() - began) / kMs);
    EXPECT(mpi_state.probes == probes);
    EXPECT(sleeps_of(thread) - before <= 20 + elapsed_ms / 5);
  }
  mpi_state.probes = 0;
  while (mpi_state.probes < 3) std::this_thread::yield();
}

TEST_MAIN
