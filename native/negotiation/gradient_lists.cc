// SPDX-License-Identifier: Apache-2.0
#include "negotiation/gradient_lists.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>

#include "negotiation/names.h"

namespace hvd {
namespace {

struct List {
  std::set<int> ranks, missing;
  std::map<std::pair<unsigned long, std::string>, const Undecided*> gradients;  // by place
  double last = 0;                                                              // when the latest of them came
};
using Lists = std::map<std::string, List>;

Lists lists_in(const std::vector<Undecided>& waiting) {
  Lists lists;
  for (const Undecided& item : waiting) {
    const size_t mark = item.plain_name.find(kListMark);
    if (mark == std::string::npos) continue;
    const size_t end = std::min(item.plain_name.find('.', mark), item.plain_name.size());
    const std::string place = item.plain_name.substr(std::min(end + 1, item.plain_name.size()));
    List& list = lists[item.plain_name.substr(0, end)];
    list.ranks.insert(item.arrived.begin(), item.arrived.end());
    list.missing.insert(item.missing.begin(), item.missing.end());
    list.gradients.emplace(std::pair(std::strtoul(place.c_str(), nullptr, 10), place), &item);
    list.last = std::max(list.last, item.since);
  }
  return lists;
}

// True if every rank that is missing in one list waits in another, and has not begun this one.
bool are_crossed(const Lists& lists) {
  return std::ranges::all_of(lists, [&](const auto& entry) {
    const List& list = entry.second;
    return std::ranges::all_of(list.missing, [&](int rank) {
      return !list.ranks.contains(rank) &&
             std::ranges::any_of(lists, [rank](const auto& other) { return other.second.ranks.contains(rank); });
    });
  });
}

std::string first_difference(const List& expected, const List& seen) {
  for (const auto& [place, gradient] : seen.gradients) {
    const auto found = expected.gradients.find(place);
    if (found == expected.gradients.end()) continue;
    Descriptor want, got;
    Descriptor::decode(found->second->descriptor, &want);
    Descriptor::decode(gradient->descriptor, &got);
    if (const std::string text = difference(want, got).text; !text.empty()) return gradient->name + ": " + text;
  }
  if (expected.gradients.size() != seen.gradients.size()) {
    const auto count = [](const List& list) { return std::to_string(list.gradients.size()); };
    return "expected " + count(expected) + " gradients, the first of them " + expected.gradients.begin()->second->name +
           "; got " + count(seen) + ", the first of them " + seen.gradients.begin()->second->name;
  }
  return "expected " + expected.gradients.begin()->second->name + ", got " + seen.gradients.begin()->second->name;
}

}  // namespace

std::string disagreement_about_gradients(const std::vector<Undecided>& waiting, double quiet_since, int* culprit) {
  Lists lists = lists_in(waiting);
  std::erase_if(lists, [quiet_since](const auto& entry) { return entry.second.last > quiet_since; });
  if (lists.size() < 2 || !are_crossed(lists)) return "";
  // The value of most ranks is the expected one; of equally many, that of the lowest rank.
  const auto expected = std::ranges::min_element(lists, {}, [](const auto& entry) {
    return std::pair(-static_cast<int64_t>(entry.second.ranks.size()), *entry.second.ranks.begin());
  });
  const auto in_words = [](const List& list) {
    return list_ranks({list.ranks.begin(), list.ranks.end()}, kShownRanks);
  };
  std::string text = "the ranks disagree about their gradients";
  *culprit = -1;
  for (auto list = lists.begin(); list != lists.end(); ++list) {
    if (list == expected) continue;
    if (*culprit < 0) *culprit = *list->second.ranks.begin();
    text += "; " + in_words(list->second) + ": " + first_difference(expected->second, list->second) +
            " (expected as on " + in_words(expected->second) + ")";
  }
  return text +
         "\nhint: all ranks must build the same model and reduce the same gradients; look for a branch on the rank";
}

}  // namespace hvd
