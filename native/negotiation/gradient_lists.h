// SPDX-License-Identifier: Apache-2.0
// Frameworks that have all gradients in a list name them by what the whole list is (gradients/lists.py), so that
// two models of one program do not take each other's place. Ranks whose models differ then meet under no name, and wait
// for each other.
#pragma once

#include <string>
#include <vector>

#include "negotiation/coordinator/coordinator.h"

namespace hvd {

// `allreduce.DistributedGradientTape/list-1a2b3c4d.7`: the mark before the list's checksum of dtypes and shapes. After
// the checksum comes a gradient's place; eagerly a whole list is one operation.
constexpr std::string_view kListMark = "/list-";

// Describes the disagreement if each rank waits in a list of gradients that others have not begun, and nothing has been
// added to any of these lists since `quiet_since`; empty otherwise. A rank that still adds to a list will come to the
// rest of it.
std::string disagreement_about_gradients(const std::vector<Undecided>& waiting, double quiet_since, int* culprit);

}  // namespace hvd
