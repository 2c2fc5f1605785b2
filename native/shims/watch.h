// SPDX-License-Identifier: Apache-2.0
// Samples for Python of gradients that a compiled step reduces without it (gradients/watched.py): a few elements of
// each, in the first steps and then seldom.
//
// A *watch* is a list of gradients, each with its *place*. It has a number, which Python chooses. A step is complete
// when the reductions of all places have succeeded. What succeeds does so on all ranks, so all count the same steps.
// Thread safety: any thread. No function waits for Python. hvd_watch_next (watch.cc) blocks until a step is complete.
#pragma once

#include <cstdint>

#include "horovod/horovod.h"

namespace hvd::shims {

// Of each gradient: whether it is finite (1 or 0), how many samples are valid, and room for 16 of them.
constexpr int64_t kWatchSamples = 16;
constexpr int64_t kWatchValues = 2 + kWatchSamples;

// Before a request is submitted. Does nothing unless its name is watched, and its tensors are in host memory.
void watch(const hvd_request& request);
// When it has ended. `name`: the request's.
void watch_end(const char* name, bool has_succeeded);

}  // namespace hvd::shims
