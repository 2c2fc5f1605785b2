// SPDX-License-Identifier: Apache-2.0
// Samples for Python of gradients that a compiled step reduces without it (gradients/watched.py): a few elements of
// each, in the first steps and then seldom.
//
// A *watch* is a list of gradients, each with its *place*. It has a number, which Python chooses. A step is complete
// when the reductions of all places have succeeded: then they have on all ranks, and these have counted the same steps.
// Thread safety: any thread, of each function. None waits for Python, but hvd_watch_next for something to tell.
#pragma once

#include <cstdint>

#include "horovod/horovod.h"

namespace hvd::shims {

// Of each gradient: whether it is finite (1 or 0), how many samples follow, and room for so many.
constexpr int64_t kWatchSamples = 16;
constexpr int64_t kWatchValues = 2 + kWatchSamples;

// Before a request is submitted. Does nothing unless its name is watched, and its tensors are in host memory.
void watch(const hvd_request& request);
// When it has ended. `name`: the request's.
void watch_end(const char* name, bool has_succeeded);

}  // namespace hvd::shims
