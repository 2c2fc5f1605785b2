// SPDX-License-Identifier: Apache-2.0
// The timeline: what happened to each tensor and when, as a file that Chrome and Perfetto show (steps 4 to 8).
//
// All ranks of a machine write into one file, on one clock (CLOCK_MONOTONIC): a process of the picture is a rank, a row
// of it a tensor. Threads that record an event put it into a buffer without locks; one thread, which lives while the
// timeline is on, takes it from there every few milliseconds. The file is a JSON array at every moment: a writer locks
// the file, overwrites the closing bracket with its events and closes the array again, in one call. If a kill in the
// middle of that has torn the file, the next writer cuts it back to the last whole line.
//
// While it is off, recording costs a load of a word that never changes and a branch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "platform/status.h"

namespace hvd {

class Timeline {
 public:
  enum class Phase : char { kBegin = 'B', kEnd = 'E', kMark = 'i' };

  ~Timeline();

  // Until the file is open; a timeline that was on goes on in the new file. `session` tells the ranks of one job, and
  // its starts, from what the file held before, which is overwritten. Fails where the file cannot be written.
  // `descriptor`: of the open file; it is duplicated. `path`: for warnings. `log_time`: of warnings.
  Status start(int descriptor, const std::string& path, const std::string& session, int rank, bool mark_cycles,
               bool log_time);
  void stop();  // what has been recorded by now is in the file then

  bool is_on() const { return on_.load(std::memory_order_acquire); }
  bool marks_cycles() const { return is_on() && mark_cycles_.load(std::memory_order_relaxed); }

  // Any thread, never blocks; an event that finds the buffer full is lost, and counted. `label` and `operation` are
  // literals; what is shown is their concatenation. `tensor` and `detail` are copied, and cut.
  void record(Phase phase, const char* label, const char* operation, std::string_view tensor,
              std::string_view detail = {});

 private:
  struct Event {
    std::atomic<uint64_t> turn;  // of the slot: whose it is to write or to read
    uint64_t ns;
    const char* label;
    const char* operation;
    Phase phase;
    uint8_t tensor_length, detail_length;
    char tensor[96];
    char detail[64];
  };
  static constexpr uint64_t kSlots = 16384;

  void write_events();             // the thread
  void drain(std::string* lines);  // as lines of JSON, with a comma behind each
  int row_of(const std::string& tensor, std::string* lines);
  bool put(const std::string& lines);  // false where the file could not be written
  void describe_rank(std::string* lines) const;

  std::atomic<bool> on_{false};
  std::atomic<bool> mark_cycles_{false};
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> lost_{0};
  std::unique_ptr<std::array<Event, kSlots>> events_;

  std::mutex mutex_;  // start and stop
  std::thread thread_;
  std::atomic<bool> ending_{false};
  bool log_time_ = false;
  // The thread's, while there is one.
  int fd_ = -1;
  std::string path_;
  int rank_ = 0;
  uint64_t read_ = 0;
  std::unordered_map<std::string, int> rows_;
};

}  // namespace hvd
