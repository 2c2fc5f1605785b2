// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "standin.h"

StreamBody::StreamBody(int number_, ContextBody* context_) : number(number_), context(context_) {
  std::thread([this] { run(); }).detach();
}

void StreamBody::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void StreamBody::hold(bool on) {
  {
    const std::lock_guard lock(mutex_);
    held_ = on;
  }
  changed_.notify_all();
}

void StreamBody::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !busy_; });
}

void StreamBody::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !held_ && !work_.empty(); });
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

namespace standin {

State& state() {
  static auto* const all = new State;
  return *all;
}

void enqueue(StreamBody* stream, const std::string& what, const std::vector<Touched>& touched,
             std::function<void()> work) {
  // Under the lock, so that what is enqueued from several threads runs in the order that was checked.
  const std::lock_guard lock(state().mutex);
  state().order.begin(stream->number, stream->clock);
  for (const Touched& one : touched) {
    state().order.touch(stream->number, stream->clock, one.memory, one.bytes, one.writes, what);
  }
  stream->push(std::move(work));
}

namespace {

struct Plan {
  int after, what, count;
};
using Plans = std::map<std::string, Plan>;
std::mutex plans_guard;
Plans failures, blocks;

// What is planned for this call, or 0.
int planned(Plans& plans, const char* function) {
  const std::lock_guard lock(plans_guard);
  const auto found = plans.find(function);
  if (found == plans.end()) return 0;
  Plan& plan = found->second;
  if (plan.after-- > 0) return 0;
  const int what = plan.what;
  if (--plan.count <= 0) plans.erase(found);
  return what;
}

}  // namespace

int planned_failure(const char* function) { return planned(failures, function); }

void block_as_planned(const char* function, const std::function<bool()>& is_aborted) {
  int left_ms = planned(blocks, function);
  while (left_ms != 0 && !is_aborted()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (left_ms > 0) --left_ms;
  }
}

}  // namespace standin

extern "C" {

void standin_fail(const char* function, int after, int code, int count) {
  const std::lock_guard lock(standin::plans_guard);
  standin::failures[function] = {after, code, count};
}

void standin_block(const char* function, int after, int milliseconds) {
  const std::lock_guard lock(standin::plans_guard);
  standin::blocks[function] = {after, milliseconds, 1};
}

int standin_is_planned(const char* function) {
  const std::lock_guard lock(standin::plans_guard);
  return standin::blocks.count(function) > 0;
}

const char* standin_races() {
  static std::string lines;
  const std::lock_guard lock(standin::state().mutex);
  lines = standin::state().order.take_races();
  return lines.c_str();
}

void standin_forget() {
  const std::lock_guard lock(standin::state().mutex);
  standin::state().order.forget();
}

void standin_hold(void* stream) { static_cast<StreamBody*>(stream)->hold(true); }
void standin_release(void* stream) { static_cast<StreamBody*>(stream)->hold(false); }
void standin_drain(void* stream) { static_cast<StreamBody*>(stream)->drain(); }

}  // extern "C"
