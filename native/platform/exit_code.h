// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hvd {

// This process will end with exit code 1, also if its program says that all is well. Any thread.
void fail_at_exit();

}  // namespace hvd
