// SPDX-License-Identifier: Apache-2.0
// The code that every Mesh shares (step 7).
#include "transport/mesh.h"

namespace hvd {

Status Mesh::drain() {
  std::vector<Arrival> ignored;
  while (!idle()) {
    ignored.clear();
    HVD_RETURN_IF_ERROR(advance(&ignored));
  }
  at_once_.clear();
  return {};
}

void Mesh::report_empty(std::vector<Arrival>* arrivals) {
  arrivals->insert(arrivals->end(), at_once_.begin(), at_once_.end());
  at_once_.clear();
}

}  // namespace hvd
