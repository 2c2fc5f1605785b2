// SPDX-License-Identifier: Apache-2.0
// Whether this very thread is inside a certain stretch of its engine's code. One thread at a time can be (the holder of
// the driver's token), so one word tells it; any thread may ask. Relaxed: a thread asks about nothing but itself.
#pragma once

#include <atomic>
#include <thread>

namespace hvd {

class OnThread {
 public:
  bool is_here() const { return thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }

  class Scope {
   public:
    explicit Scope(OnThread& where) : where_(where), before_(where.thread_.load(std::memory_order_relaxed)) {
      where.thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~Scope() { where_.thread_.store(before_, std::memory_order_relaxed); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    OnThread& where_;
    const std::thread::id before_;
  };

 private:
  std::atomic<std::thread::id> thread_{};
};

}  // namespace hvd
