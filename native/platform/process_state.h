// SPDX-License-Identifier: Apache-2.0
// The kernel's state of a process that has stopped giving signs of life.
#pragma once

namespace hvd {

// The letter of /proc/PID/stat: R runs, S sleeps, D waits in the kernel, T stopped by a signal, t held by a debugger,
// Z ended. '\0' where it cannot be read: gone, or in another PID namespace. From any thread; does not block.
char process_state(int pid);

}  // namespace hvd
