// SPDX-License-Identifier: Apache-2.0
#include "platform/warning.h"

#include <cstdint>
#include <cstdio>
#include <ctime>

namespace hvd {
namespace {

constexpr uint32_t kNotUtf8 = 0xffffffff;

// The character at the beginning of a text that is not empty, and its length in bytes.
uint32_t first_character(std::string_view text, size_t* length) {
  const auto byte_at = [&](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>(text[at])); };
  const uint32_t first = byte_at(0);
  *length = 1;
  if (first < 0x80) return first;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return kNotUtf8;
  uint32_t code = first & (0xffu >> (bytes + 1));
  for (size_t at = 1; at < bytes; ++at) {
    if ((byte_at(at) & 0xc0) != 0x80) return kNotUtf8;
    code = code << 6 | (byte_at(at) & 0x3f);
  }
  *length = bytes;
  return code;
}

bool steers(uint32_t code) {
  const auto within = [code](uint32_t first, uint32_t last) { return first <= code && code <= last; };
  return code < 0x20 || within(0x7f, 0x9f) || code == 0x61c || within(0x200e, 0x200f) || within(0x2028, 0x202e) ||
         within(0x2066, 0x2069) || within(0xd800, 0xdfff);
}

}  // namespace

std::string plain(std::string_view text, bool on_one_line) {
  std::string out;
  while (!text.empty()) {
    size_t length = 0;
    const uint32_t code = first_character(text, &length);
    char escape[8];
    if (code == kNotUtf8) {
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      out += escape;
    } else if (code == '\n' && on_one_line) {
      out += "\\n";
    } else if (steers(code) && (on_one_line || (code != '\n' && code != '\t'))) {
      std::snprintf(escape, sizeof escape, code < 0x100 ? "\\x%02x" : "\\u%04x", code);
      out += escape;
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return out;
}

void warn(const std::string& text, bool with_time) {
  char shown[64] = "";
  if (with_time) {
    timespec now{};
    tm local{};
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    const size_t length = std::strftime(shown, sizeof shown, "[%Y-%m-%d %H:%M:%S", &local);
    std::snprintf(shown + length, sizeof shown - length, ".%06ld] ", now.tv_nsec / 1000);
  }
  std::fprintf(stderr, "%shorovod: warning: %s\n", shown, plain(text).c_str());
}

}  // namespace hvd
