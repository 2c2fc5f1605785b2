// SPDX-License-Identifier: Apache-2.0
#include "timeline/json.h"

#include <algorithm>
#include <cstdio>

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
  std::string result = "\"";
  for (const char letter : text.substr(0, length)) {
    char escaped[8];
    if (letter == '"' || letter == '\\') {
      result += {'\\', letter};
    } else if (static_cast<unsigned char>(letter) < ' ') {
      std::snprintf(escaped, sizeof escaped, "\\u%04x", letter);
      result += escaped;
    } else {
      result += letter;
    }
  }
  return result + "\"";
}

}  // namespace hvd
