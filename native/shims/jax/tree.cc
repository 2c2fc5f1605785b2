// SPDX-License-Identifier: Apache-2.0
#include "shims/jax/tree.h"

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>

namespace hvd::jax {
namespace {

constexpr size_t kShownKeys = 24;
constexpr const char* kHint = "\nhint: all ranks must build the same model and give the same pytree of gradients";

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// "on this rank, tensor 2 is ['b'], tensor 3 is ['c'], and 7 more"
std::string listed(const std::set<size_t>& places, const std::vector<std::string>& keys) {
  std::string text;
  size_t shown = 0;
  for (const size_t place : places) {
    if (shown++ == kShownKeys) break;
    text += (text.empty() ? "on this rank, tensor " : ", tensor ") + std::to_string(place + 1) + " is " + keys[place];
  }
  return places.size() > kShownKeys ? text + ", and " + std::to_string(places.size() - kShownKeys) + " more" : text;
}

}  // namespace

void read_checksums(std::string_view text, Tree* tree) {
  std::istringstream stream{std::string(text)};
  stream >> tree->keys_in_part;
  tree->keys_in_part = std::max<size_t>(tree->keys_in_part, 1);
  for (int64_t checksum = 0; stream >> checksum;) tree->shapes.push_back({0, checksum});
}

std::string in_words(const std::string& text, const Tree& tree) {
  // The words of negotiation/wire.cc.
  static const std::regex kAbout(
      R"(shape of tensor (\d+) of the group \[0, \d+\], got \[0, \d+\]|of tensor (\d+) of the group|)"
      R"(number of tensors (\d+), got (\d+))");
  const std::vector<std::string> keys = lines_of(tree.keys);
  if (keys.empty()) return text;
  std::set<size_t> places;
  std::string told;
  auto rest = text.cbegin();
  for (std::sregex_iterator found(text.begin(), text.end(), kAbout), end; found != end; ++found) {
    const std::smatch& match = *found;
    told.append(rest, match[0].first);
    rest = match[0].second;
    if (match[3].matched) {
      const auto gradients = [&](const std::string& tensors) {
        return std::to_string(std::stoul(tensors) - std::min<size_t>(std::stoul(tensors), tree.shapes.size()));
      };
      told += gradients(match[3]) + " gradients, got " + gradients(match[4]);
      for (size_t place = 0; place < keys.size(); ++place) places.insert(place);
      continue;
    }
    const size_t number = std::stoul(match[1].matched ? match[1] : match[2]);
    const bool is_part = match[1].matched && number > keys.size();
    told += is_part ? "equal keys in the pytree, got others" : match.str();
    const size_t first = is_part ? (number - keys.size() - 1) * tree.keys_in_part : number - 1;
    for (size_t place = first; place < std::min(first + (is_part ? tree.keys_in_part : 1), keys.size()); ++place) {
      places.insert(place);
    }
  }
  if (places.empty()) return text;
  told.append(rest, text.cend());
  return told.substr(0, told.find("\nhint:")) + "\n" + listed(places, keys) + kHint;
}

}  // namespace hvd::jax
