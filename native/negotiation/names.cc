// SPDX-License-Identifier: Apache-2.0
#include "negotiation/names.h"

#include "negotiation/wire.h"
#include "platform/warning.h"

namespace hvd {
namespace {

constexpr size_t kShownBytes = 120;
constexpr size_t kShownTailBytes = 30;

// Not into the middle of a UTF-8 character.
size_t boundary(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

std::string quote_name(std::string_view name, std::string_view descriptor) {
  if (name.starts_with(kUnnamedPrefix)) {
    Descriptor known;
    const bool decoded = !descriptor.empty() && Descriptor::decode(descriptor, &known);
    return std::string("unnamed ") + (decoded ? name_of(known.kind) : "operation");
  }
  if (name.size() <= kShownBytes) return "`" + plain(name, true) + "`";
  const size_t head = boundary(name, kShownBytes - kShownTailBytes);
  const size_t tail = boundary(name, name.size() - kShownTailBytes);
  return "`" + plain(name.substr(0, head), true) + "..." + plain(name.substr(tail), true) + "` (" +
         std::to_string(name.size()) + " bytes)";
}

std::string list_ranks(const std::vector<int>& ranks, size_t most) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == most) return text + " and " + std::to_string(ranks.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace hvd
