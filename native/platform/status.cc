// SPDX-License-Identifier: Apache-2.0
#include "platform/status.h"

namespace hvd {

const char* Status::name_of(int code) {
  switch (code) {
    case HVD_DUPLICATE_NAME:
      return "duplicate-name";
    case HVD_MISMATCH:
      return "mismatch";
    case HVD_REFUSED:
      return "refused";
    case HVD_JOINED:
      return "joined";
    case HVD_RANK_LOST:
      return "rank-lost";
    case HVD_RANK_LEFT:
      return "rank-left";
    case HVD_DEVICE_LOST:
      return "device-lost";
    case HVD_DEADLOCK:
      return "deadlock";
    case HVD_ABORTED:
      return "aborted";
    case HVD_NOT_RUNNING:
      return "not-running";
    case HVD_UNAVAILABLE:
      return "unavailable";
    case HVD_OUT_OF_MEMORY:
      return "out-of-memory";
    case HVD_FORKED:
      return "forked";
    case HVD_WOULD_DEADLOCK:
    case HVD_INTERNAL:
      return "internal";
    default:
      return nullptr;
  }
}

}  // namespace hvd
