// SPDX-License-Identifier: Apache-2.0
// TensorFlow's "done" of an asynchronous kernel, kept beyond the call that got it.
//
// A kernel gets the address of a std::function<void()> on TensorFlow's stack, gone when the kernel returns, and the C
// interface has no function to copy it. So it is copied here, by libstdc++'s layout of std::function: 16 bytes of
// storage, the manager, the invoker. The layout is checked before it is used: manager and invoker must be functions of
// TensorFlow's own libraries.
#pragma once

#include <atomic>
#include <utility>

#include "shims/tensorflow/api.h"
#include "shims/tensorflow/known_function.h"

namespace hvd::tensorflow {

class DoneCallback {
 public:
  DoneCallback() = default;
  DoneCallback(const DoneCallback&) = delete;
  DoneCallback& operator=(const DoneCallback&) = delete;
  ~DoneCallback() {
    if (copy_.manager != nullptr) copy_.manager(&copy_, &copy_, kDestroy);
  }

  // False where `theirs` is nothing that could be copied.
  bool copy(const TF_AsyncOpKernelDoneCallback* theirs) {
    const auto* original = reinterpret_cast<const Layout*>(theirs);
    if (!is_known(reinterpret_cast<const void*>(original->manager), &known_manager) ||
        !is_known(reinterpret_cast<const void*>(original->invoker), &known_invoker)) {
      return false;
    }
    original->manager(&copy_, original, kClone);
    copy_.invoker = original->invoker;
    copy_.manager = original->manager;
    return true;
  }

  void run() { tf.RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy_)); }

 private:
  enum Operation : int { kClone = 2, kDestroy = 3 };  // std::_Manager_operation
  struct Layout {
    void* storage[2];
    bool (*manager)(void*, const void*, int);
    void (*invoker)(const void*);
  };
  static_assert(sizeof(Layout) == 32);

  static inline std::atomic<const void*> known_manager{nullptr}, known_invoker{nullptr};

  Layout copy_{};
};

}  // namespace hvd::tensorflow
