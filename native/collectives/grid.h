// SPDX-License-Identifier: Apache-2.0
// Grid: the members of a mesh in groups, one after the other, of sizes that differ by one at most (step 7). A group is
// a *row*. The members at one place in their groups are a *column*; there are as many columns as the smallest group has
// members. In a larger group the last member is in no column.
//
// Immutable; use it from any thread.
#pragma once

#include <cstdint>

namespace hvd {

class Grid {
 public:
  Grid(int members, int groups) : members_(members), groups_(groups) {}

  int groups() const { return groups_; }
  int columns() const { return members_ / groups_; }
  int longest_row() const { return (members_ + groups_ - 1) / groups_; }
  int row_begin(int group) const { return static_cast<int>(int64_t{members_} * group / groups_); }
  int row_size(int group) const { return row_begin(group + 1) - row_begin(group); }
  int group_of(int member) const { return static_cast<int>((int64_t{member + 1} * groups_ - 1) / members_); }
  int place_of(int member) const { return member - row_begin(group_of(member)); }
  int at(int group, int place) const { return row_begin(group) + place; }

  // In an allgather: the member of `group` that sends the group's data to `member`. It has the same place there, or
  // some other if the group is smaller.
  int speaker(int group, int member) const {
    const int place = place_of(member);
    return at(group, place < row_size(group) ? place : group_of(member) % row_size(group));
  }
  // Calls visit(listener) for the members of another group for which this one is the speaker.
  template <class Visit>
  void for_listeners(int member, int group, const Visit& visit) const {
    const int own = group_of(member);
    for (const int place : {place_of(member), row_size(own)}) {  // the one that only larger groups have
      if (place < row_size(group) && speaker(own, at(group, place)) == member) visit(at(group, place));
    }
  }

 private:
  int members_, groups_;
};

}  // namespace hvd
