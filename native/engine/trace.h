// SPDX-License-Identifier: Apache-2.0
// The timeline's events of a submission: NEGOTIATE_<OP> until it is ready, then <OP>, which contains QUEUE and the
// communicator's event. One thread at a time records a submission's events, in order: the submitter, then the driver.
// And WAIT, while a thread of the script is blocked until a submission is done: a row for each such thread.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "execution/submission.h"
#include "timeline/timeline.h"

namespace hvd {

class Trace {
 public:
  // The prefix of the name of an operation that runs.
  void set_label(const char* label) { label_ = label; }
  Status start(int descriptor, const std::string& path, const std::string& session, int rank, bool mark_cycles,
               bool log_time) {
    return timeline_.start(descriptor, path, session, rank, mark_cycles, log_time);
  }
  void stop() { timeline_.stop(); }

  void enter(Submission* submission, Submission::Stage next) {
    if (timeline_.is_on()) record(submission, next);
  }
  // True: leave_wait() is due.
  bool enter_wait(const Submission& submission) {
    if (!timeline_.is_on() || submission.prepared == nullptr) return false;
    timeline_.record(Timeline::Phase::kBegin, "WAIT", "", row_of_thread(), *submission.name);
    return true;
  }
  void leave_wait() { timeline_.record(Timeline::Phase::kEnd, "WAIT", "", row_of_thread()); }
  void mark_cycle() {
    if (timeline_.marks_cycles()) timeline_.record(Timeline::Phase::kMark, "CYCLE_START", "", "");
  }

 private:
  void record(Submission* submission, Submission::Stage next);
  std::string row_of_thread();

  Timeline timeline_;
  const char* label_ = "";
  std::mutex mutex_;
  std::map<std::thread::id, size_t> threads_;  // that have waited; under the mutex
};

}  // namespace hvd
