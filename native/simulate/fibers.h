// SPDX-License-Identifier: Apache-2.0
// A function with a stack of its own, which can stop in its midst and be resumed: a simulated host inside a blocking
// operation of the shipped code.
//
// One thread. resume() runs the function until it pauses or returns; pause() is for the function itself. What the
// function throws comes out of resume(). A fiber is destroyed only before it has begun or after it has ended: what is
// on its stack is not unwound.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>

namespace hvd {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void resume();
  void pause();
  bool has_ended() const { return ended_; }

 private:
  static void enter(unsigned high, unsigned low);
  void run();
  void leave(bool for_good);

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t inside_{}, outside_{};
  bool ended_ = false;
  std::exception_ptr thrown_;
  // The sanitizers' view of the stacks; unused without a sanitizer.
  [[maybe_unused]] void *kept_inside_ = nullptr, *kept_outside_ = nullptr;
  [[maybe_unused]] const void* outside_stack_ = nullptr;
  [[maybe_unused]] size_t outside_bytes_ = 0;
};

}  // namespace hvd
