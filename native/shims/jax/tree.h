// SPDX-License-Identifier: Apache-2.0
// The keys of a pytree of gradients: the ranks must have equal ones, and errors name tensors by them (steps 4 and 5 of
// a gradient's way, for JAX).
//
// With the gradients travel tensors without elements, whose shapes are checksums of the keys, each of a part of them.
// So the core finds trees that differ as it finds shapes that differ. A value; used by one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::jax {

struct Tree {
  std::string keys;                            // of the gradients, one a line; empty: there is no tree
  size_t keys_in_part = 1;                     // but the last parts may have fewer
  std::vector<std::array<int64_t, 2>> shapes;  // of the tensors without elements, one for each part
};

// Reads "4 1234 5678": the number of keys in a part, and the checksum of each part.
void read_checksums(std::string_view text, Tree* tree);

// The text of a mismatch of a group of these gradients, with the keys of the tensors that it is about on this rank.
std::string in_words(const std::string& text, const Tree& tree);

}  // namespace hvd::jax
