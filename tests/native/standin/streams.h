// SPDX-License-Identifier: Apache-2.0
// The stand-in's streams, events and contexts, for cuda.cc and nccl.cc.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "order.h"

// As the driver names them: frameworks and libraries pass these pointers.
struct ContextBody {
  int device = 0;
  struct StreamBody* legacy = nullptr;  // the default stream
};

struct StreamBody {
  StreamBody(int number, ContextBody* context);
  void push(std::function<void()> work);
  void hold(bool on);
  void drain();

  const int number;
  ContextBody* const context;
  standin::Clock clock;  // guarded by State::mutex

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool held_ = false, busy_ = false;
};

// One record of an event. A stream waits for that, whatever becomes of the event meanwhile.
struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;  // guarded by mutex
};

struct EventBody {
  ContextBody* context = nullptr;
  std::shared_ptr<Mark> last;  // null: never recorded; guarded by State::mutex
  standin::Clock clock;        // of that time; guarded by State::mutex
};

namespace standin {

// Everything that is shared; for the life of the process, since stream threads never end.
struct State {
  std::mutex mutex;
  Order order;
  std::atomic<int64_t> unique_ids{0};
};
State& state();

// What a stream handle means on this thread: 0 and 1 are the current context's default stream. Null with `code` set if
// no context is current, or another one than the stream's.
StreamBody* resolve(StreamBody* stream, int* code);

struct Touched {
  const void* memory;
  size_t bytes;
  bool writes;
};
// Enqueues work that touches this memory: checks its order, then gives it to the stream's thread.
void enqueue(StreamBody* stream, const std::string& what, const std::vector<Touched>& touched,
             std::function<void()> work);

// The code that a test has planned for this call of a function, or 0.
int planned_failure(const char* function);

// Waits if a test has planned it for this call.
void block_as_planned(const char* function, const std::function<bool()>& is_aborted);

// On which device memory lies, -1: on none.
int device_of(const void* memory);

}  // namespace standin
