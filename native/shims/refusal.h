// SPDX-License-Identifier: Apache-2.0
// A call that this rank cannot submit, in a shim that submits without Python: the peers, who may be waiting, are told.
#pragma once

#include <cstring>
#include <string>

#include "horovod/horovod.h"

namespace hvd::shims {

// `name`: as the peers know it; empty: matched by order. Does nothing in a job that has ended.
inline void refuse(hvd_context* context, const std::string& name, int32_t process_set, const char* why) {
  hvd_refuse(context, name.empty() ? nullptr : name.c_str(), process_set, why, nullptr);
}

// True if the call was wrong, or if this rank or its GPU could not prepare it: the peers do not know of that yet.
inline bool is_of_this_rank(int code) {
  return code == HVD_INVALID_ARGUMENT || code == HVD_UNAVAILABLE || code == HVD_OUT_OF_MEMORY || code == HVD_INTERNAL ||
         code == HVD_DEVICE_LOST;
}

// Tells the peers that the engine did not take a request. Does nothing unless this rank's call alone has failed.
inline void tell_refusal(hvd_context* context, const std::string& name, int32_t process_set, const hvd_status& status) {
  if (!is_of_this_rank(status.code)) return;
  // The text for the peers begins with rank and operation, too.
  const std::string shown = name.empty() ? ", unnamed " : ", `" + name + "`";
  const char* const found = std::strstr(status.text, shown.c_str());
  const char* const end = found == nullptr ? nullptr : std::strstr(found + shown.size(), ": ");
  refuse(context, name, process_set, end == nullptr ? status.text : end + 2);
}

}  // namespace hvd::shims
