// SPDX-License-Identifier: Apache-2.0
#include "platform/warning.h"

#include <cstdio>
#include <ctime>

namespace hvd {

void warn(const std::string& text, bool with_time) {
  char shown[64] = "";
  if (with_time) {
    timespec now{};
    tm local{};
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    const size_t length = std::strftime(shown, sizeof shown, "[%Y-%m-%d %H:%M:%S", &local);
    std::snprintf(shown + length, sizeof shown - length, ".%06ld] ", now.tv_nsec / 1000);
  }
  std::fprintf(stderr, "%shorovod: warning: %s\n", shown, text.c_str());
}

}  // namespace hvd
