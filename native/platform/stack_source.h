// SPDX-License-Identifier: Apache-2.0
// Where this process' main thread stands, in the words of its language: a signal whose handler writes a text into a
// file. Offered once by the language's side (hvd_stack_source); taken by the monitor, whatever the main thread does.
#pragma once

#include <string>

namespace hvd {

// The handler of `signal` is the one that is installed now. Both may be given again; any thread.
void offer_stack_source(int signal, int fd);

// Blocks for 250 ms at most. Empty where nothing was offered, the handler is another one by now, or the main thread
// does not take signals (stopped, or deep in the kernel). One caller at a time.
std::string take_stack();

}  // namespace hvd
