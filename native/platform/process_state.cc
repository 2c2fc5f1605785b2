// SPDX-License-Identifier: Apache-2.0
#include "platform/process_state.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace hvd {

static char state_in(const char* path) {
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

char process_state(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  const char state = state_in((folder + "/stat").c_str());
  if (state != 'S') return state;
  std::error_code gone;
  for (std::filesystem::directory_iterator thread(folder + "/task", gone), end; !gone && thread != end;
       thread.increment(gone)) {
    if (state_in((thread->path() / "stat").c_str()) == 'R') return 'R';
  }
  return state;
}

uint64_t pid_namespace() {
  struct stat facts{};
  return stat("/proc/self/ns/pid", &facts) == 0 ? facts.st_ino : 0;
}

}  // namespace hvd
