// SPDX-License-Identifier: Apache-2.0
// Warnings of the core to people: lines on stderr. Any thread.
#pragma once

#include <string>

namespace hvd {

// Writes `horovod: warning: <text>`; `with_time`: behind the local time, as [YYYY-MM-DD HH:MM:SS.microseconds].
void warn(const std::string& text, bool with_time);

}  // namespace hvd
