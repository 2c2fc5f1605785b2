// SPDX-License-Identifier: Apache-2.0
#include "timeline/json.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "platform/warning.h"

namespace hvd {

std::string json_string(std::string_view text) {
  size_t length = text.size();
  for (size_t back = 1; back <= std::min<size_t>(3, length); ++back) {  // of a character that is not all there
    const auto byte = static_cast<unsigned char>(text[length - back]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t wanted = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (wanted > back) length -= back;
    break;
  }
  text = text.substr(0, length);
  std::string result = "\"";
  while (!text.empty()) {
    const uint32_t code = first_character(text, &length);
    char escaped[8];
    if (code == kNotUtf8) {
      result += "\\ufffd";
    } else if (code == '"' || code == '\\') {
      result += {'\\', text[0]};
    } else if (steers(code)) {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
      result += escaped;
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(length);
  }
  return result + "\"";
}

}  // namespace hvd
