// SPDX-License-Identifier: Apache-2.0
// The kernel's knowledge of other processes on this machine.
#pragma once

#include <cstdint>

namespace hvd {

// The letter of /proc/PID/stat: R runs, S sleeps, D waits in the kernel, T stopped by a signal, t held by a debugger,
// Z ended. '\0' where it cannot be read: gone, or in another PID namespace. R also if its main thread sleeps and
// another one runs, or waits for a core. From any thread; does not block.
char process_state(int pid);

// A number of the PID namespace that this process is in, where others of this machine have the same number only if
// they are in it, too: a container has its own, and a process has another number in each. 0 if /proc is not there.
uint64_t pid_namespace();

}  // namespace hvd
