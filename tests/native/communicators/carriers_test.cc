// SPDX-License-Identifier: Apache-2.0
// How many members carry: the trial, what it leads to, and the next one. Times are made up.
#include "communicators/hierarchical/carriers.h"

#include "check.h"

namespace {

using hvd::CarrierChoice;

constexpr size_t kBytes = size_t{16} << 20;

// As many operations as a trial has, which take so long; then the members decide.
void try_both(CarrierChoice* choice, uint64_t alone_ns, uint64_t shared_ns) {
  int ways[2] = {0, 0};
  for (;;) {
    const bool shares = choice->shares(kBytes);
    ++ways[shares];
    if (choice->add(kBytes, shares ? shared_ns : alone_ns)) break;
  }
  EXPECT(ways[0] == ways[1] && ways[0] > 1);
  EXPECT(choice->best(kBytes).alone == alone_ns / 16 && choice->best(kBytes).shared == shared_ns / 16);
  choice->decide(kBytes, choice->best(kBytes));
}

TEST(the_faster_way_is_taken_until_both_are_tried_again) {
  CarrierChoice choice;
  for (const bool is_shared_faster : {true, false, true}) {
    try_both(&choice, is_shared_faster ? 2000 : 1000, is_shared_faster ? 1000 : 2000);
    for (uint32_t i = CarrierChoice::kTrial; i < CarrierChoice::kPeriod; ++i) {
      EXPECT(choice.shares(kBytes) == is_shared_faster);
      EXPECT(!choice.add(kBytes, 1));
    }
  }
}

TEST(sizes_of_another_magnitude_are_tried_by_themselves) {
  CarrierChoice choice;
  try_both(&choice, 1000, 2000);
  EXPECT(!choice.shares(kBytes));
  EXPECT(choice.shares(kBytes * 4));
  EXPECT(choice.best(kBytes * 4).alone == UINT64_MAX);
}

TEST(the_members_decide_by_the_slowest_of_them) {
  CarrierChoice choice;
  EXPECT(choice.describe() == "{}");
  choice.decide(kBytes, {100, 200});
  EXPECT(choice.describe() == "{\"33554431\": {\"shared\": false, \"alone_ns\": 100, \"shared_ns\": 200}}");
}

}  // namespace

TEST_MAIN
