// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// JSON's string, of UTF-8 that may have been cut anywhere.
std::string json_string(std::string_view text);

}  // namespace hvd
