// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// JSON's string, of UTF-8 that may have been cut anywhere. What would steer a terminal that shows the file, or
// turn text around, is an escape; a byte that is not UTF-8 is U+FFFD.
std::string json_string(std::string_view text);

}  // namespace hvd
