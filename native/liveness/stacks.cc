// SPDX-License-Identifier: Apache-2.0
#include "liveness/stacks.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "platform/stack_source.h"
#include "platform/warning.h"

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

void answer_stack_question(Segment& segment, uint32_t local_rank, Waker& waker) {
  StackPage& page = segment.stack_page(local_rank);
  const uint32_t asked = page.asked.load();
  if (asked == page.answered.load(std::memory_order_relaxed)) return;
  const std::optional<std::string> stack = take_stack();
  if (!stack) return;  // the next look asks again
  const std::string text = telling_calls(*stack);
  page.length.store(static_cast<uint32_t>(text.copy(page.text, sizeof page.text)), std::memory_order_relaxed);
  page.answered.store(asked);
  waker.ring(0);
}

std::string stacks_in_words(const std::map<int, std::string>& stacks, const std::vector<int>& ranks) {
  constexpr size_t kShownCalls = 8;
  std::string words;
  for (const int rank : ranks) {
    const auto found = stacks.find(rank);
    const std::string text = found == stacks.end() ? "" : found->second;
    size_t calls = 0;
    std::string shown;
    for (size_t begin = text.find("  File "); begin < text.size() && calls < kShownCalls; ++calls) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      shown += "\n    " + plain(std::string_view(text).substr(begin + 2, end - begin - 2), true);
      begin = end + 1;
    }
    const std::string unknown = found != stacks.end()
                                    ? " does not say where it stands"
                                    : " has not said where it stands within " + std::to_string(kStackPatienceS) + " s";
    words += "\n  rank " + std::to_string(rank) + (shown.empty() ? unknown : " stands at") + shown;
  }
  return words;
}

}  // namespace hvd
