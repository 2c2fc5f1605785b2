// SPDX-License-Identifier: Apache-2.0
// How the names of tensors, which users choose, are shown in messages.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// Unnamed operations are entries too; this is how their names begin.
constexpr std::string_view kUnnamedPrefix = "noname.";

// In backquotes; control characters escaped, the middle of a long name left out. An unnamed operation is called that;
// with its encoded descriptor, what it does as well.
std::string quote_name(std::string_view name, std::string_view descriptor = {});

}  // namespace hvd
