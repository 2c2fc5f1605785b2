// SPDX-License-Identifier: Apache-2.0
// Where this process' main thread stands, in the words of its language: a signal whose handler writes a text into a
// file. Offered once by the language's side (hvd_stack_source); taken by the monitor, whatever the main thread does.
#pragma once

#include <optional>
#include <string>

namespace hvd {

// The handler of `signal` is the one that is installed now. Both may be given again; any thread.
void offer_stack_source(int signal, int fd);

// Blocks for 250 ms at most. Empty where nothing was offered, or the handler is another one by now. nullopt: the main
// thread has not taken the signal yet (a busy machine, a signal mask, deep in the kernel); a later call takes the text
// without another signal. One caller at a time.
std::optional<std::string> take_stack();

}  // namespace hvd
