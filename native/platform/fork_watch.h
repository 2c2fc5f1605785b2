// SPDX-License-Identifier: Apache-2.0
// What a forked child of a rank must not keep: the job's sockets. A DataLoader worker that holds them open would hide
// its parent's death from the peers. (What a child execs loses them anyway: all are close-on-exec.)
#pragma once

namespace hvd {

// Installs the handlers, once per process.
void watch_forks();
// True in a process that was forked after watch_forks().
bool in_forked_child();

// From now on a forked child closes this descriptor first thing; until keep_on_fork(), called before it is closed here.
void close_on_fork(int descriptor);
void keep_on_fork(int descriptor);

}  // namespace hvd
