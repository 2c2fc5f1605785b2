// SPDX-License-Identifier: Apache-2.0
// Calls through the wall: the handle of hvd_run_entry, the owner of a held context, and what hvd_plan refuses.
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "horovod/horovod.h"

namespace {

constexpr hvd_handle kUntouched = 12345;

hvd_status fresh() {
  hvd_status status{};
  status.size = sizeof status;
  return status;
}

// Ranks of one host, as threads of this process.
struct Pair {
  Pair() {
    int fds[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, rank, fd = fds[rank]] {
        const int32_t hosts[] = {0, 0};
        const hvd_link link{1 - rank, HVD_LINK_LOCAL, fd, 0};
        hvd_options options{};
        options.size = sizeof options;
        options.rank = rank;
        options.world_size = 2;
        options.generation = 1;
        options.host_of_rank = hosts;
        options.links = &link;
        options.nlinks = 1;
        hvd_status status = fresh();
        EXPECT(hvd_start(&options, &contexts[rank], &status) == HVD_OK);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const int fd : fds) close(fd);
  }
  ~Pair() { leave(); }
  void leave() {
    std::vector<std::thread> threads;
    for (hvd_context*& mine : contexts) {
      hvd_context* const context = std::exchange(mine, nullptr);
      if (context == nullptr) continue;
      threads.emplace_back([context] {
        hvd_status status = fresh();
        EXPECT(hvd_stop(context, 5000, &status) == HVD_OK);
        hvd_free(context);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  hvd_context* contexts[2] = {};
};

hvd_entry* prepare(hvd_context* context, const char* name, int64_t length) {
  hvd_tensor tensor{};
  tensor.shape = &length;
  tensor.ndim = 1;
  tensor.dtype = HVD_FLOAT32;
  hvd_request request{};
  request.size = sizeof request;
  request.kind = HVD_ALLREDUCE;
  request.op = HVD_SUM;
  request.name = name;
  request.tensors = &tensor;
  request.ntensors = 1;
  request.tensor_size = sizeof tensor;
  request.prescale = request.postscale = 1.0;
  hvd_entry* entry = nullptr;
  hvd_status status = fresh();
  EXPECT(hvd_prepare(context, &request, &entry, &status) == HVD_OK);
  return entry;
}

}  // namespace

TEST(run_entry_runs_and_leaves_nothing_to_release) {
  Pair pair;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      hvd_context* const context = pair.contexts[rank];
      hvd_entry* const entry = prepare(context, "t", 3);
      for (int round = 1; round <= 100; ++round) {
        const auto given = static_cast<float>(round + rank);
        const float input[3] = {given, given, given};
        float output[3] = {};
        hvd_handle handle = kUntouched;
        hvd_status status = fresh();
        EXPECT(hvd_run_entry(context, entry, input, output, 20000, &handle, &status) == HVD_OK);
        EXPECT(handle == 0 && output[2] == static_cast<float>(2 * round + 1));
      }
      // Every handle has been given back: the next one is the first slot's again.
      hvd_handle next = 0;
      hvd_status status = fresh();
      const float input[3] = {};
      float output[3];
      const void* inputs[] = {input};
      void* outputs[] = {output};
      EXPECT(hvd_submit_entry(context, entry, inputs, outputs, 0, &next, &status) == HVD_OK);
      EXPECT((next & 0xffffffff) == 1);
      EXPECT(hvd_wait(context, next, 20000, &status) == HVD_OK);
      hvd_release(context, next);
      hvd_release_entry(context, entry);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(run_entry_that_cannot_be_submitted_leaves_no_handle) {
  Pair pair;
  hvd_entry* const entry = prepare(pair.contexts[0], "t", 3);
  const float input[3] = {};
  hvd_handle handle = kUntouched;
  hvd_status status = fresh();
  EXPECT(hvd_run_entry(pair.contexts[0], entry, input, nullptr, 20000, &handle, &status) == HVD_INVALID_ARGUMENT);
  EXPECT(handle == 0 && std::string(status.text).find("output") != std::string::npos);
  hvd_release_entry(pair.contexts[0], entry);
}

// The time is up before the other rank comes: the handle stands, and is waited for later. From the second round of a
// name on, the rank that has come knows which one has not.
TEST(run_entry_that_is_pending_leaves_its_handle_and_names_who_is_missing) {
  Pair pair;
  hvd_entry* const mine = prepare(pair.contexts[0], "t", 1);
  hvd_entry* const theirs = prepare(pair.contexts[1], "t", 1);
  const float one = 1, two = 2;
  hvd_status status = fresh();
  for (uint32_t round = 0; round < 2; ++round) {
    float sums[2] = {};
    hvd_handle handles[2] = {kUntouched, kUntouched};
    EXPECT(hvd_run_entry(pair.contexts[0], mine, &one, &sums[0], 1, &handles[0], &status) == HVD_PENDING);
    EXPECT(handles[0] != 0 && handles[0] != kUntouched);
    int32_t missing[2] = {-1, -1};
    uint32_t count = 0;
    EXPECT(hvd_missing(pair.contexts[0], handles[0], missing, &count, &status) ==
           (round == 0 ? HVD_OK : HVD_INVALID_ARGUMENT));  // no room
    count = 2;
    EXPECT(hvd_missing(pair.contexts[0], handles[0], missing, &count, &status) == HVD_OK && count == round);
    EXPECT(round == 0 || missing[0] == 1);
    std::thread other([&] {
      hvd_status outcome = fresh();
      EXPECT(hvd_run_entry(pair.contexts[1], theirs, &two, &sums[1], 20000, &handles[1], &outcome) == HVD_OK);
      EXPECT(handles[1] == 0);
    });
    EXPECT(hvd_wait(pair.contexts[0], handles[0], 20000, &status) == HVD_OK);
    other.join();
    EXPECT(sums[0] == 3 && sums[1] == 3);
    EXPECT(hvd_missing(pair.contexts[0], handles[0], missing, &(count = 2), &status) == HVD_OK && count == 0);
    hvd_release(pair.contexts[0], handles[0]);
    EXPECT(hvd_poll(pair.contexts[0], handles[0], &status) == HVD_INVALID_ARGUMENT);  // it is gone
  }
  hvd_release_entry(pair.contexts[0], mine);
  hvd_release_entry(pair.contexts[1], theirs);
}

// The operation has come to its end, with an error: that is still to be released.
TEST(run_entry_that_fails_leaves_its_handle) {
  Pair pair;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      hvd_context* const context = pair.contexts[rank];
      hvd_entry* const entry = prepare(context, "t", 3 + rank);
      const float input[4] = {};
      float output[4] = {};
      hvd_handle handle = kUntouched;
      hvd_status status = fresh();
      EXPECT(hvd_run_entry(context, entry, input, output, 20000, &handle, &status) == HVD_MISMATCH);
      EXPECT(handle != 0 && handle != kUntouched && hvd_poll(context, handle, &status) == HVD_MISMATCH);
      hvd_release(context, handle);
      hvd_release_entry(context, entry);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A shim's thread, as in native/shims/tensorflow/xla.cc: it waits, and uses the context once more.
TEST(a_held_context_outlives_its_stop_and_free) {
  Pair pair;
  hvd_entry* const entry = prepare(pair.contexts[0], "t", 1);
  const float input = 1;
  float output = 0;
  const void* inputs[] = {&input};
  void* outputs[] = {&output};
  hvd_handle handle = 0;
  hvd_status status = fresh();
  EXPECT(hvd_submit_entry(pair.contexts[0], entry, inputs, outputs, 0, &handle, &status) == HVD_OK);
  hvd_context* const held = pair.contexts[0];
  hvd_hold(held);
  pair.leave();
  const int code = hvd_wait(held, handle, 20000, &status);
  EXPECT(code == HVD_NOT_RUNNING || code == HVD_RANK_LEFT);  // if the other one was faster
  hvd_release(held, handle);
  EXPECT(hvd_poll(held, handle, &status) == HVD_INVALID_ARGUMENT);
  hvd_free(held);
}

TEST(a_plan_names_the_member_that_is_out_of_range) {
  const int32_t host_of_rank[] = {0, 0, 0, 0};
  const int32_t members[] = {0, 7};
  char name[32] = {};
  uint8_t linked[4] = {};
  hvd_status status = fresh();
  EXPECT(hvd_plan("auto", 0, host_of_rank, 4, members, 2, 0, name, linked, &status) == HVD_INVALID_ARGUMENT);
  EXPECT(std::string(status.text) == "process set member 7 is out of range for 4 ranks");
}

TEST_MAIN
