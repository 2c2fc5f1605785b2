// SPDX-License-Identifier: Apache-2.0
// Texts for people: how they are shown, and warnings of the core, which are lines on stderr. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// The UTF-8 text with escapes for what would steer a terminal or turn text around: control characters, separators of
// lines and paragraphs, marks and overrides of direction, and bytes that are not UTF-8. Line ends and tabs stay, unless
// the text is to be on one line. The same as plain() and on_one_line() of core/wording.py.
std::string plain(std::string_view text, bool on_one_line = false);

// Writes `horovod: warning: <text>`, as plain() shows it; `with_time`: behind the local time, as
// [YYYY-MM-DD HH:MM:SS.microseconds].
void warn(const std::string& text, bool with_time);

}  // namespace hvd
