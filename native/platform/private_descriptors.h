// SPDX-License-Identifier: Apache-2.0
// Descriptors that must not live on in a forked child: a link that a DataLoader's worker holds open would hide the
// death of its rank from the peers. From any thread; fork() waits for a call that is under way.
#pragma once

namespace hvd {

// Closes them in every child that is forked while this exists, and makes in_forked_child() true there. A process that
// is not in a world any more may fork a rank of another one.
class ForkWatch {
 public:
  ForkWatch();
  ~ForkWatch();
  ForkWatch(const ForkWatch&) = delete;
  ForkWatch& operator=(const ForkWatch&) = delete;
};
bool in_forked_child();

void keep_private(int descriptor);
// Closes the descriptor, private or not, and forgets it: its number may be another's at once.
void close_private(int descriptor);

}  // namespace hvd
