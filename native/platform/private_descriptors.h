// SPDX-License-Identifier: Apache-2.0
// Descriptors that must not live on in a forked child: a link that a DataLoader's worker holds open would hide the
// death of its rank from the peers. From any thread; fork() waits for a call that is under way.
#pragma once

namespace hvd {

// Closes them in every child that is forked from now on, and makes in_forked_child() true there.
void watch_forks();
bool in_forked_child();

void keep_private(int descriptor);
// Closes the descriptor, private or not, and forgets it: its number may be another's at once.
void close_private(int descriptor);

}  // namespace hvd
