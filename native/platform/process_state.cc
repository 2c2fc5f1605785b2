// SPDX-License-Identifier: Apache-2.0
#include "platform/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace hvd {

char process_state(int pid) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return '\0';
  char text[256];
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return '\0';
  text[length] = '\0';
  // The command's name may hold blanks and parentheses: the fields begin behind its last one.
  const char* end = std::strrchr(text, ')');
  return end == nullptr || end[1] != ' ' ? '\0' : end[2];
}

}  // namespace hvd
