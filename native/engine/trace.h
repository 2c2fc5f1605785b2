// SPDX-License-Identifier: Apache-2.0
// What the timeline shows of submissions: NEGOTIATE_<OP> until it is ready, then <OP>, in it QUEUE and the
// communicator. Of one submission by one thread at a time, in order: the submitter's, then the driver's.
#pragma once

#include <string>

#include "engine/submission.h"
#include "timeline/timeline.h"

namespace hvd {

class Trace {
 public:
  // The prefix of the name of an operation that runs.
  void set_label(const char* label) { label_ = label; }
  Status start(const std::string& path, const std::string& session, int rank, bool mark_cycles, bool log_time) {
    return timeline_.start(path, session, rank, mark_cycles, log_time);
  }
  void stop() { timeline_.stop(); }

  void enter(Submission* submission, Submission::Stage next) {
    if (timeline_.is_on()) record(submission, next);
  }
  void mark_cycle() {
    if (timeline_.marks_cycles()) timeline_.record(Timeline::Phase::kMark, "CYCLE_START", "", "");
  }

 private:
  void record(Submission* submission, Submission::Stage next);

  Timeline timeline_;
  const char* label_ = "";
};

}  // namespace hvd
