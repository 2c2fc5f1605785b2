// SPDX-License-Identifier: Apache-2.0
// What operations of some sizes become: the sizes at which the choice changes, and pieces that cover a batch.
#include "collectives/plan.h"

#include <vector>

#include "check.h"
#include "collectives/grid.h"

using namespace hvd;

namespace {

constexpr size_t kKi = 1024, kMi = kKi * kKi;
constexpr size_t kSlotBytes = 256 * kKi;  // of a chunk in shared memory
constexpr Mesh::MessageBytes kLimits{256 * kKi, 64, 256 * kKi};

}  // namespace

TEST(inside_a_host_few_bytes_are_tiny_then_one_shot_then_two) {
  using plan::Shots;
  EXPECT(plan::shots_of(kTinyBytes, 2, kSlotBytes) == Shots::kTiny);
  EXPECT(plan::shots_of(kTinyBytes + 1, 2, kSlotBytes) == Shots::kOne);
  // All members read 64 KiB of others' at most, or 4 KiB of each.
  struct {
    int members;
    size_t most;
  } const limits[] = {{1, 64 * kKi}, {2, 64 * kKi}, {3, 32 * kKi}, {5, 16 * kKi}, {17, 4 * kKi}, {200, 4 * kKi}};
  for (const auto& [members, most] : limits) {
    EXPECT(plan::one_shot_bytes(members, kSlotBytes) == most);
    EXPECT(plan::shots_of(most, members, kSlotBytes) == Shots::kOne);
    EXPECT(plan::shots_of(most + 1, members, kSlotBytes) == Shots::kTwo);
  }
  EXPECT(plan::one_shot_bytes(2, 1 * kKi) == 1 * kKi);  // it is one chunk
}

TEST(two_shots_have_four_chunks_unless_these_are_too_small_or_too_large) {
  EXPECT(plan::two_shot_chunk_bytes(100 * kKi, kSlotBytes) == 128 * kKi);
  EXPECT(plan::two_shot_chunk_bytes(600 * kKi, kSlotBytes) == 150 * kKi);
  EXPECT(plan::two_shot_chunk_bytes(600 * kKi + 4, kSlotBytes) == 150 * kKi + 64);
  EXPECT(plan::two_shot_chunk_bytes(16 * kMi, kSlotBytes) == kSlotBytes);
  EXPECT(plan::two_shot_chunk_bytes(16 * kMi, 64 * kKi) == 64 * kKi);
}

TEST(over_a_mesh_small_inputs_go_whole_to_all_members) {
  EXPECT(plan::is_gathered(16 * kKi, 2) && !plan::is_gathered(16 * kKi + 1, 2));
  EXPECT(plan::is_gathered(4 * kKi, 5) && !plan::is_gathered(4 * kKi + 1, 5));
  EXPECT(plan::is_gathered(1 * kMi, 1));
  EXPECT(plan::links_for(1 * kMi - 1, 2) == 1);
  EXPECT(plan::links_for(1 * kMi, 2) == 2);
}

TEST(a_direct_allreduce_has_two_chunks_or_more_but_for_small_shares_of_many_members) {
  for (const int members : {2, 3, 4, 16, 1024}) {
    for (const size_t bytes : {20 * kKi, 1 * kMi, 16 * kMi}) {
      const auto count = static_cast<int64_t>(bytes / 4);
      const int64_t elements = plan::direct_chunk_elements(count, 4, members, false, kLimits);
      const int64_t chunks = plan::pieces_of(count, elements), share = elements / members * 4;
      EXPECT(share <= static_cast<int64_t>(kLimits.most_reduced));
      const size_t whole = bytes / static_cast<size_t>(members);
      const bool is_cut = whole > kLimits.least_reduced && (members < 32 || whole >= 32 * kKi);
      EXPECT(is_cut ? chunks >= 2 && share % 64 == 0 : elements == count);
    }
  }
  EXPECT(plan::direct_chunk_elements(262144, 4, 4, false, kLimits) == 131072);   // 1 MiB: two chunks
  EXPECT(plan::direct_chunk_elements(4194304, 4, 4, false, kLimits) == 262144);  // 16 MiB: 16 of 4 shares of 256 KiB
  EXPECT(plan::direct_chunk_elements(100, 4, 64, false, kLimits) == 100);        // too few to be cut
  // 1 MiB among many: one chunk. From shares of 32 KiB on, two again.
  EXPECT(plan::direct_chunk_elements(262144, 4, 31, false, kLimits) < 262144 / 2 + 31 * 16);
  EXPECT(plan::direct_chunk_elements(262144, 4, 33, false, kLimits) == 262144);
  EXPECT(plan::direct_chunk_elements(524288, 4, 64, false, kLimits) == 262144);
  // In groups, few shares are many hosts. From shares of 128 KiB on, two again.
  EXPECT(plan::direct_chunk_elements(262144, 4, 16, true, kLimits) == 262144);
  EXPECT(plan::direct_chunk_elements(524288, 4, 16, true, kLimits) == 262144);
}

TEST(many_hosts_are_groups_of_about_the_square_root) {
  EXPECT(plan::host_groups(2, 0) == 1 && plan::host_groups(16, 0) == 1);
  EXPECT(plan::host_groups(64, 0) == 8 && plan::host_groups(256, 0) == 16 && plan::host_groups(1024, 0) == 32);
  EXPECT(plan::host_groups(1021, 0) == 31 && plan::host_groups(12'500, 0) == 111);
  // As a setting wants it, with few hosts, too; a group of one host is none.
  EXPECT(plan::host_groups(4, 2) == 2 && plan::host_groups(5, 2) == 2 && plan::host_groups(3, 2) == 1);
  EXPECT(plan::host_groups(1024, 1024) == 1 && plan::host_groups(1024, 5000) == 1 && plan::host_groups(9, 1) == 1);
}

TEST(an_allreduce_between_many_hosts_goes_in_groups_unless_its_shares_are_large) {
  struct {
    int hosts;
    size_t bytes;
    bool in_groups;
    int shares;
  } const rows[] = {{16, 1, false, 16},           {17, 17 * 2 * kKi, true, 4}, {17, 1 * kMi, false, 17},
                    {64, 512 * kKi - 1, true, 8}, {64, 512 * kKi, false, 64},  {256, 1 * kMi, true, 16},
                    {256, 8 * kMi, false, 256},   {1024, 16 * kMi, true, 32},  {1024, 32 * kMi, false, 1024}};
  for (const auto& row : rows) {
    const plan::BetweenHosts way = plan::between_hosts(row.bytes, row.hosts, 0);
    EXPECT(way.in_groups == row.in_groups && way.shares == row.shares);
  }
  EXPECT(plan::between_hosts(64 * kMi, 7, 2).in_groups && plan::between_hosts(64 * kMi, 7, 2).shares == 2);
  EXPECT(!plan::between_hosts(64 * kMi, 3, 2).in_groups);
}

TEST(batches_grow_with_many_hosts) {
  EXPECT(plan::close_bytes(1) == 1 * kMi && plan::close_bytes(16) == 1 * kMi && plan::close_bytes(256) == 1 * kMi);
  EXPECT(plan::close_bytes(1024) == 4 * kMi && plan::close_bytes(12'500) == 16 * kMi);
}

TEST(a_grid_has_each_member_once_and_full_columns) {
  for (int members = 1; members <= 130; ++members) {
    for (int groups = 1; groups <= members; ++groups) {
      const Grid grid(members, groups);
      int member = 0, longest = 0;
      for (int group = 0; group < groups; ++group) {
        const int size = grid.row_size(group);
        longest = std::max(longest, size);
        EXPECT(size == grid.columns() || size == grid.columns() + 1);
        for (int place = 0; place < size; ++place, ++member) {
          EXPECT(grid.at(group, place) == member);
          EXPECT(grid.group_of(member) == group && grid.place_of(member) == place);
        }
      }
      EXPECT(member == members && longest == grid.longest_row());
    }
  }
}

TEST(each_member_of_a_grid_hears_of_each_other_group_once) {
  for (const int members : {4, 5, 7, 12, 31, 64, 100}) {
    for (int groups = 1; groups <= members; ++groups) {
      const Grid grid(members, groups);
      std::vector<int> heard(static_cast<size_t>(members), 0);
      for (int member = 0; member < members; ++member) {
        int listeners = 0;
        for (int group = 0; group < groups; ++group) {
          if (group == grid.group_of(member)) continue;
          grid.for_listeners(member, group, [&](int listener) {
            ++listeners;
            ++heard[static_cast<size_t>(listener)];
            EXPECT(grid.group_of(listener) == group && grid.speaker(grid.group_of(member), listener) == member);
          });
        }
        EXPECT(listeners <= 2 * (groups - 1));
      }
      for (const int times : heard) EXPECT(times == groups - 1);
    }
  }
}

TEST(over_hosts_pieces_are_of_whole_shares) {
  EXPECT(!plan::goes_in_pieces(256 * kKi - 1) && plan::goes_in_pieces(256 * kKi));
  EXPECT(plan::piece_elements(65536, 4, 2, 2) == 32768);     // shares of 32 KiB at least
  EXPECT(plan::piece_elements(1048576, 4, 2, 2) == 131072);  // 4 MiB: eight pieces
  EXPECT(plan::piece_elements(1 << 26, 4, 2, 2) == 262144);  // shares of 256 KiB at most
  EXPECT(plan::piece_elements(1 << 20, 8, 3, 1) % (3 * plan::unit_elements(8)) == 0);
  EXPECT(plan::unit_elements(1) == 64 && plan::unit_elements(8) == 8);
}

TEST_MAIN
