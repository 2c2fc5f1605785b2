// SPDX-License-Identifier: Apache-2.0
// The stacks of missing ranks: rank 0 asks for them for a stall report. The question is a number in the asked rank's
// page of the host's segment, the answer a text beside it, written by that rank's monitor: its engine may be in a
// collective, its main thread anywhere. Leaders of other hosts pass both on (negotiation/waiting.cc).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/segment.h"
#include "negotiation/ports.h"

namespace hvd {

// How long a report waits for the answers: ten ticks of a monitor, for a machine on which its thread gets no time.
inline constexpr int kStackPatienceS = 5;

// By the monitor's thread of the asked rank, at each tick. Rings the leader when the answer is written.
void answer_stack_question(Segment& segment, uint32_t local_rank, Waker& waker);

// The innermost calls of each rank, for people.
std::string stacks_in_words(const std::map<int, std::string>& stacks, const std::vector<int>& ranks);

}  // namespace hvd
