// SPDX-License-Identifier: Apache-2.0
// Whether an address that was found by a layout, and not by a name, is what it is taken for.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace hvd::tensorflow {

// Whether a library is one of TensorFlow's, by the name of its file. Its folder tells nothing: any package may lie in a
// folder of such a name.
inline bool is_of_tensorflow(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return std::strstr(slash == nullptr ? path : slash, "tensorflow") != nullptr;
}

// Whether it is a function of one of TensorFlow's libraries. To look that up takes half a millisecond in a library of
// its size, and it is nearly always the same function.
inline bool is_known(const void* function, std::atomic<const void*>* known) {
  if (function == known->load(std::memory_order_relaxed)) return function != nullptr;
  Dl_info info;
  if (function == nullptr || dladdr(function, &info) == 0 || info.dli_fname == nullptr ||
      !is_of_tensorflow(info.dli_fname)) {
    return false;
  }
  known->store(function, std::memory_order_relaxed);
  return true;
}

}  // namespace hvd::tensorflow
