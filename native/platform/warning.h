// SPDX-License-Identifier: Apache-2.0
// Texts for people: how they are shown, and warnings of the core, which are lines on stderr. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

constexpr uint32_t kNotUtf8 = 0xffffffff;

// The character at the beginning of a text that is not empty, and its length in bytes. For a byte that is not UTF-8:
// kNotUtf8.
uint32_t first_character(std::string_view text, size_t* length);

// True for line ends and tabs, too.
bool steers(uint32_t code);

// The UTF-8 text with escapes for what would steer a terminal or turn text around: control characters, separators of
// lines and paragraphs, marks and overrides of direction, and bytes that are not UTF-8. Line ends and tabs stay, unless
// the text is to be on one line. The same as plain() and on_one_line() of core/wording.py.
std::string plain(std::string_view text, bool on_one_line = false);

// Writes `horovod: warning: <text>`, as plain() shows it; `with_time`: behind the local time, as
// [YYYY-MM-DD HH:MM:SS.microseconds].
void warn(const std::string& text, bool with_time);

}  // namespace hvd
