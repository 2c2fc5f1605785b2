// SPDX-License-Identifier: Apache-2.0
// An exit code for what is known only when a program ends: Python has no way to change it then.
#include "platform/exit_code.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace hvd {

namespace {

// Destroyed by exit(), after all that was registered later, such as Python's own end.
struct AtExit {
  std::atomic<bool> has_failed{false};
  ~AtExit() {
    if (!has_failed) return;
    std::fflush(nullptr);  // _exit() does not
    _exit(1);
  }
} at_exit;

}  // namespace

void fail_at_exit() { at_exit.has_failed = true; }

}  // namespace hvd
