// SPDX-License-Identifier: Apache-2.0
// How the names of tensors, which users choose, and lists of ranks are shown in messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// Unnamed operations are entries too; this is how their names begin.
constexpr std::string_view kUnnamedPrefix = "noname.";

// In backquotes; control characters escaped, the middle of a long name left out. An unnamed operation is called that;
// with its encoded descriptor, what it does as well.
std::string quote_name(std::string_view name, std::string_view descriptor = {});

constexpr size_t kShownRanks = 8;  // in most messages

// "rank 3", "ranks 0, 1, 2"; at most `most` of them, and how many more there are.
std::string list_ranks(const std::vector<int>& ranks, size_t most);

}  // namespace hvd
