// SPDX-License-Identifier: Apache-2.0
#include "platform/memory_limit.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace hvd {
namespace {

// A file that holds one number; false for "max" and for what is not there.
bool read_number(const std::string& path, uint64_t* out) {
  std::ifstream file(path);
  return static_cast<bool>(file >> *out);
}

// The sum of a file's "name value" lines of these names.
uint64_t sum_of(const std::string& path, std::initializer_list<const char*> names) {
  std::ifstream file(path);
  uint64_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (!(words >> name >> value)) continue;
    if (std::find(names.begin(), names.end(), name) != names.end()) sum += value;
  }
  return sum;
}

struct Version {
  const char* folder;
  const char* limit;
  const char* used;
  std::initializer_list<const char*> reclaimable;
};
const Version kVersion1 = {"/sys/fs/cgroup/memory",
                           "/memory.limit_in_bytes",
                           "/memory.usage_in_bytes",
                           {"total_inactive_file", "total_active_file"}};
const Version kVersion2 = {"/sys/fs/cgroup", "/memory.max", "/memory.current", {"inactive_file", "active_file"}};

// The group and all that it is inside of. A container may see its own group as the root, whatever its path.
void look_at_groups(const std::string& root, const Version& version, std::string path, MemoryLeft* left) {
  for (;;) {
    const std::string folder = root + version.folder + (path == "/" ? "" : path);
    uint64_t limit = 0, used = 0;
    if (read_number(folder + version.limit, &limit) && read_number(folder + version.used, &used)) {
      used -= std::min(used, sum_of(folder + "/memory.stat", version.reclaimable));
      const uint64_t bytes = limit - std::min(limit, used);
      if (bytes < left->bytes) *left = {bytes, folder};
    }
    if (path.size() <= 1) return;
    path.resize(std::max<size_t>(path.rfind('/'), 1));
  }
}

}  // namespace

MemoryLeft memory_left(const std::string& root) {
  MemoryLeft left;
  if (const uint64_t kib = sum_of(root + "/proc/meminfo", {"MemAvailable:", "SwapFree:"}); kib != 0) {
    left = {kib << 10, "this machine"};
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") look_at_groups(root, kVersion2, path, &left);
    if (controllers.find(",memory,") != std::string::npos) look_at_groups(root, kVersion1, path, &left);
  }
  return left;
}

}  // namespace hvd
