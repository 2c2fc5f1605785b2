// SPDX-License-Identifier: Apache-2.0
// Checks that an address is a function of TensorFlow, if it was found by a layout and not by a name.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace hvd::tensorflow {

// True if a library is TensorFlow's, by the name of its file. Its folder proves nothing: any package may be in a folder
// of such a name.
inline bool is_of_tensorflow(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return std::strstr(slash == nullptr ? path : slash, "tensorflow") != nullptr;
}

// True if it is a function of one of TensorFlow's libraries. A look-up takes half a millisecond in a library of that
// size, and it is nearly always the same function, so the last one is remembered.
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
