// SPDX-License-Identifier: Apache-2.0
#include "platform/fault_point.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "platform/clock.h"

namespace hvd {

std::atomic<bool> fault_points_armed{false};

namespace {

struct Fault {
  std::string specification;
  std::string point;
  std::string action;
  int pid = 0;  // 0: this process
  unsigned long passes_left = 1;
};

std::mutex mutex;
Fault fault;

bool parse_number(const std::string& text, unsigned long* out) {
  char* end = nullptr;
  *out = std::strtoul(text.c_str(), &end, 10);
  return !text.empty() && text[0] != '-' && *end == '\0';
}

// The number behind `name` in an action such as exit3.
bool has_number(const std::string& action, const char* name, unsigned long* number) {
  return action.starts_with(name) && parse_number(action.substr(std::strlen(name)), number);
}

bool known(const std::string& action) {
  unsigned long number = 0;
  return action == "kill" || action == "stop" || has_number(action, "exit", &number) ||
         has_number(action, "pause", &number);
}

}  // namespace

bool arm_fault_point(const std::string& specification) {
  const std::lock_guard lock(mutex);
  // Passes are counted through all generations of the process.
  if (specification == fault.specification && fault.passes_left > 0) return true;
  Fault next;
  next.specification = specification;
  if (!specification.empty()) {
    const size_t colon = specification.find(':');
    if (colon == std::string::npos) return false;
    next.point = specification.substr(0, colon);
    next.action = specification.substr(colon + 1);
    if (const size_t at = next.point.find('@'); at != std::string::npos) {
      if (!parse_number(next.point.substr(at + 1), &next.passes_left) || next.passes_left == 0) return false;
      next.point.resize(at);
    }
    if (const size_t equals = next.action.find('='); equals != std::string::npos) {
      unsigned long pid = 0;
      if (!parse_number(next.action.substr(equals + 1), &pid) || pid == 0) return false;
      next.pid = static_cast<int>(pid);
      next.action.resize(equals);
    }
    if (!known(next.action)) return false;
  }
  fault = next;
  fault_points_armed.store(!next.point.empty());
  return true;
}

void reach_fault_point(const char* name) {
  std::unique_lock lock(mutex);
  if (fault.point != name || fault.passes_left == 0 || --fault.passes_left > 0) return;
  const int victim = fault.pid != 0 ? fault.pid : static_cast<int>(getpid());
  char text[160];
  const int length = std::snprintf(text, sizeof text, "horovod: fault point %s: %s of process %d at %.6f\n", name,
                                   fault.action.c_str(), victim, now_seconds());
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text, static_cast<size_t>(length));
  unsigned long number = 0;
  if (fault.action == "kill") {
    kill(victim, SIGKILL);
  } else if (fault.action == "stop") {
    kill(victim, SIGSTOP);
  } else if (has_number(fault.action, "exit", &number)) {
    _exit(static_cast<int>(number));
  } else if (has_number(fault.action, "pause", &number)) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(number));
  }
}

}  // namespace hvd
