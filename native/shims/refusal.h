// SPDX-License-Identifier: Apache-2.0
// A request that the engine has refused on this rank, in a shim that submits without Python: the peers, who may be
// waiting, are told.
#pragma once

#include <cstring>
#include <string>

#include "horovod/horovod.h"

namespace hvd::shims {

// `name`: as the peers know it; empty: matched by order. Nothing if `status` is no error of this rank's call alone.
inline void tell_refusal(hvd_context* context, const std::string& name, int32_t process_set, const hvd_status& status) {
  if (status.code != HVD_INVALID_ARGUMENT && status.code != HVD_UNAVAILABLE) return;
  // The text for the peers begins with rank and operation, too.
  const std::string shown = name.empty() ? ": " : ", `" + name + "`: ";
  const char* const found = std::strstr(status.text, shown.c_str());
  hvd_refuse(context, name.empty() ? nullptr : name.c_str(), process_set,
             found == nullptr ? status.text : found + shown.size(), nullptr);
}

}  // namespace hvd::shims
