// SPDX-License-Identifier: Apache-2.0
// Where the ranks stand that others miss: rank 0 asks for a stall report. The question is a number in the asked rank's
// page of the host's segment, the answer a text beside it, written by that rank's monitor: its engine may be in a
// collective, its main thread anywhere. Leaders of other hosts pass both on.
#include <algorithm>
#include <string_view>

#include "engine/engine.h"
#include "negotiation/frames.h"
#include "platform/clock.h"
#include "platform/stack_source.h"

namespace hvd {

static bool is_of_a_package(std::string_view call) {
  return call.find("/site-packages/") != call.npos || call.find("/dist-packages/") != call.npos;
}

// The innermost call, and those of the script: between them there may be dozens of installed packages. All calls where
// none is the script's.
static std::string telling_calls(const std::string& text) {
  std::string told;
  bool innermost = true, any_of_script = false;
  for (size_t begin = text.find("  File "); begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view call(text.data() + begin, end - begin);
    const bool of_script = !is_of_a_package(call);
    if (innermost || of_script) told += call;
    any_of_script |= of_script;
    innermost = false;
    begin = end;
  }
  return any_of_script ? told : text;
}

// The monitor's thread.
void Engine::answer_stack_question() {
  StackPage& page = segment_->stack_page(local_rank_);
  const uint32_t asked = page.asked.load();
  if (asked == page.answered.load(std::memory_order_relaxed)) return;
  const std::string text = telling_calls(take_stack());
  page.length.store(static_cast<uint32_t>(text.copy(page.text, sizeof page.text)), std::memory_order_relaxed);
  page.answered.store(asked);
  bells_->ring(0);
}

void Engine::ask_here(int rank) {
  const auto found = std::find(ranks_of_host_.begin(), ranks_of_host_.end(), rank);
  if (found == ranks_of_host_.end()) return;
  segment_->stack_page(static_cast<uint32_t>(found - ranks_of_host_.begin())).asked.fetch_add(1);
  stacks_asked_here_.push_back(rank);
}

void Engine::ask_for_stacks(const std::vector<int>& ranks) {
  stacks_.clear();
  for (const int rank : ranks) {
    if (options_.host_of_rank[rank] == host_) {
      ask_here(rank);
      continue;
    }
    for (SocketLink& link : control_) {
      Writer payload;
      payload.put(static_cast<int32_t>(rank));
      if (options_.host_of_rank[link.peer()] == options_.host_of_rank[rank]) {
        link.send(FrameKind::kStackWanted, payload.take());
      }
    }
  }
}

// A leader: passes on what ranks of this host have answered.
void Engine::collect_stacks() {
  std::erase_if(stacks_asked_here_, [this](int rank) {
    const auto local = std::find(ranks_of_host_.begin(), ranks_of_host_.end(), rank) - ranks_of_host_.begin();
    const StackPage& page = segment_->stack_page(static_cast<uint32_t>(local));
    if (page.answered.load() != page.asked.load()) return false;
    const std::string text(page.text, std::min<size_t>(page.length.load(), sizeof page.text));
    if (coordinates()) {
      stacks_[rank] = text;
    } else {
      Writer payload;
      payload.put(static_cast<int32_t>(rank)).put_string(text);
      send_upward(FrameKind::kStack, payload.take());
    }
    return true;
  });
}

// The innermost calls of each, for people.
std::string Engine::stacks_in_words(const std::vector<int>& ranks) const {
  constexpr size_t kShownCalls = 8;
  std::string words;
  for (const int rank : ranks) {
    const auto found = stacks_.find(rank);
    const std::string text = found == stacks_.end() ? "" : found->second;
    size_t calls = 0;
    std::string shown;
    for (size_t begin = text.find("  File "); begin < text.size() && calls < kShownCalls; ++calls) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      shown += "\n    " + text.substr(begin + 2, end - begin - 2);
      begin = end + 1;
    }
    for (char& letter : shown) {
      if (letter != '\n' && (letter < ' ' || letter == '\x7f')) letter = '?';
    }
    words +=
        "\n  rank " + std::to_string(rank) + (shown.empty() ? " does not say where it stands" : " stands at") + shown;
  }
  return words;
}

}  // namespace hvd
