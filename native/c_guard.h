// SPDX-License-Identifier: Apache-2.0
// How a function of horovod.h ends (step 4): a code and a text for whatever happens inside of it, and an error for a
// pointer that it needs and was not given. Pure, but for the check whether this is a forked child.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>

#include "horovod/horovod.h"
#include "platform/private_descriptors.h"
#include "platform/status.h"

namespace hvd {

// Callers of an older header pass a shorter hvd_status: nothing is written beyond its end.
inline int report(const Status& outcome, hvd_status* status) {
  if (status != nullptr && status->size >= offsetof(hvd_status, text) + 64) {
    status->code = outcome.code();
    status->failed_rank = outcome.failed_rank();
    status->member = -1;
    const size_t room = std::min<size_t>(status->size - offsetof(hvd_status, text), sizeof status->text) - 1;
    const size_t length = std::min(room, outcome.text().size());
    std::memcpy(status->text, outcome.text().data(), length);
    status->text[length] = '\0';
  }
  return outcome.code();
}

// The first pointer that is missing among those that a function cannot do without.
struct Given {
  const char* name;
  const void* pointer;
};
inline Status need(std::initializer_list<Given> all) {
  for (const Given& one : all) {
    if (one.pointer == nullptr) return {HVD_INVALID_ARGUMENT, std::string(one.name) + ": expected a pointer, got NULL"};
  }
  return {};
}
inline const char* text_or_empty(const char* text) { return text == nullptr ? "" : text; }

#define HVD_NEED(pointer) \
  hvd::Given { #pointer, reinterpret_cast<const void*>(pointer) }

template <class Body>
int guarded(hvd_status* status, Body&& body) {
  if (in_forked_child()) {
    return report({HVD_FORKED,
                   "this process was forked from a rank: it is not part of the job\nhint: use the spawn "
                   "start method, or call hvd functions in the parent only"},
                  status);
  }
  try {
    return report(body(), status);
  } catch (const std::bad_alloc&) {
    return report({HVD_OUT_OF_MEMORY, "out of memory"}, status);
  } catch (const std::exception& error) {
    return report({HVD_INTERNAL, std::string("internal error: ") + error.what()}, status);
  } catch (...) {
    return report({HVD_INTERNAL, "internal error"}, status);
  }
}

}  // namespace hvd
