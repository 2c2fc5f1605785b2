// SPDX-License-Identifier: Apache-2.0
// A simulation's counts as JSON. Integers only: the same run has the same bytes.
#pragma once

#include <string>

#include "simulate/simulation.h"

namespace hvd {

std::string report_of(const Simulation& simulation);

}  // namespace hvd
