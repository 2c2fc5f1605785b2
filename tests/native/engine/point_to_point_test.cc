// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks, and results into memory that the caller gives; engines as threads.
#include <numeric>
#include <set>

#include "engine_world.h"

using namespace hvd;

namespace {

using Values = std::vector<int32_t>;

Status send(Engine& engine, int to, Values& values, int tag, hvd_handle* handle) {
  return Call(HVD_SEND, nullptr).root(to).tag(tag).tensor(values, HVD_INT32).into(nullptr).submit(engine, handle);
}

Status receive(Engine& engine, int from, Values& values, int tag, hvd_handle* handle, int32_t set = 0) {
  return Call(HVD_RECEIVE, nullptr)
      .root(from)
      .tag(tag)
      .in(set)
      .tensor(nullptr, values.data(), HVD_INT32, {static_cast<int64_t>(values.size())})
      .submit(engine, handle);
}

// The outcome, and the rank that sent.
Status end(Engine& engine, hvd_handle handle, int64_t* sender = nullptr) {
  const Status status = engine.submitter().wait(handle, 20000);
  if (status.ok() && sender != nullptr) *sender = engine.submitter().find(handle)->results[0].rows[0];
  engine.submitter().release(handle);
  return status;
}

}  // namespace

TEST(messages_of_a_tag_keep_their_order_and_tags_may_cross) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [](Engine& engine, int rank) {
      constexpr int kMessages = 20;
      std::vector<Values> values(2 * kMessages, Values(3));
      std::vector<hvd_handle> handles(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        // Rank 1 takes the messages of tag 1 first.
        const auto message = static_cast<int>(i < kMessages ? i : i - kMessages);
        const int tag = rank == 0 ? static_cast<int>(i >= kMessages) : static_cast<int>(i < kMessages);
        if (rank == 0) values[i].assign(3, 100 * tag + message);
        const Status begun =
            rank == 0 ? send(engine, 1, values[i], tag, &handles[i]) : receive(engine, 0, values[i], tag, &handles[i]);
        EXPECT(begun.ok());
      }
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT(end(engine, handles[i]).ok());
        if (rank == 0) continue;
        const auto message = static_cast<int>(i < kMessages ? i : i - kMessages);
        EXPECT(values[i] == Values(3, i < kMessages ? 100 + message : message));
      }
    });
  }
}

TEST(a_receive_from_any_rank_gets_each_message_once) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(4, wiring), [](Engine& engine, int rank) {
      constexpr int kEach = 10;
      if (rank != 1) {
        for (int i = 0; i < kEach; ++i) {
          Values mine(2, 100 * rank + i);
          hvd_handle sent = 0;
          EXPECT(send(engine, 1, mine, 0, &sent).ok() && end(engine, sent).ok());
        }
      } else {
        std::set<int32_t> got;
        std::vector<int> next(4, 0);
        for (int i = 0; i < 3 * kEach; ++i) {
          Values theirs(2);
          hvd_handle received = 0;
          int64_t sender = -1;
          // Now and then from one rank, between those from any.
          const int from = i % 5 == 4 && next[3] < kEach ? 3 : -1;
          EXPECT(receive(engine, from, theirs, 0, &received).ok());
          EXPECT(end(engine, received, &sender).ok());
          EXPECT(theirs == Values(2, static_cast<int32_t>(100 * sender + next[static_cast<size_t>(sender)]++)));
          got.insert(theirs[0]);
        }
        EXPECT(got.size() == 3 * kEach);
      }
      EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
    });
  }
}

TEST(several_receives_from_any_rank_wait_at_once) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [](Engine& engine, int rank) {
      std::vector<Values> values(6, Values(1, rank));
      std::vector<hvd_handle> handles(6);
      if (rank == 0) {
        for (size_t i = 0; i < 6; ++i) EXPECT(receive(engine, -1, values[i], 7, &handles[i]).ok());
      }
      EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
      const size_t count = rank == 0 ? 6 : 3;
      for (size_t i = 0; rank > 0 && i < count; ++i) EXPECT(send(engine, 0, values[i], 7, &handles[i]).ok());
      int sum = 0;
      for (size_t i = 0; i < count; ++i) {
        EXPECT(end(engine, handles[i]).ok());
        sum += values[i][0];
      }
      EXPECT(sum == (rank == 0 ? 9 : 3 * rank));
      EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
    });
  }
}

TEST(a_receive_from_any_rank_takes_a_message_of_its_tag) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(2, wiring), [](Engine& engine, int rank) {
      std::vector<Values> values(2);
      std::vector<hvd_handle> handles(2);
      for (int i = 0; i < 2; ++i) {
        // The receive of tag 0 comes first, then the send of tag 1.
        const int tag = rank == 0 ? i : 1 - i;
        Values& mine = values[static_cast<size_t>(tag)] = Values(1, 10 * rank + tag);
        hvd_handle& handle = handles[static_cast<size_t>(tag)];
        EXPECT((rank == 0 ? receive(engine, -1, mine, tag, &handle) : send(engine, 0, mine, tag, &handle)).ok());
        if (i == 0) EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
      }
      for (const hvd_handle handle : handles) EXPECT(end(engine, handle).ok());
      EXPECT(values[0] == Values(1, 10) && values[1] == Values(1, 11));
    });
  }
}

TEST(ends_that_do_not_fit_are_an_error_on_both_and_the_job_goes_on) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [](Engine& engine, int rank) {
      for (const int from : {0, -1}) {
        Values values(rank == 0 ? 4 : 5);
        hvd_handle handle = 0;
        if (rank < 2) {
          EXPECT((rank == 0 ? send(engine, 1, values, 2, &handle) : receive(engine, from, values, 2, &handle)).ok());
          EXPECT(has(end(engine, handle), HVD_MISMATCH, {"send from rank 0 to rank 1, tag 2", "shape", "[4]", "[5]"}));
        }
        Values again(4, rank);
        if (rank < 2) {
          EXPECT((rank == 0 ? send(engine, 1, again, 2, &handle) : receive(engine, from, again, 2, &handle)).ok());
          EXPECT(end(engine, handle).ok() && again == Values(4, 0));
        }
        EXPECT(Call(HVD_BARRIER, "wall").run(engine).ok());
      }
    });
  }
}

TEST(a_rank_that_cannot_be_the_other_end_is_refused) {
  run_world(make_world(2, Wiring::kSharedMemory), [](Engine& engine, int rank) {
    Values values(1);
    hvd_handle handle = 0;
    EXPECT(has(send(engine, rank, values, 0, &handle), HVD_INVALID_ARGUMENT, {"cannot send to itself"}));
    EXPECT(has(receive(engine, 2, values, 0, &handle), HVD_INVALID_ARGUMENT, {"receive from", "[0, 1]", "got 2"}));
    EXPECT(has(send(engine, -1, values, 0, &handle), HVD_INVALID_ARGUMENT, {"send to", "got -1"}));
  });
}

TEST(a_gathered_result_goes_into_the_callers_memory) {
  for (const Wiring wiring : kWirings) {
    run_world(make_world(3, wiring), [](Engine& engine, int rank) {
      Values mine(2 * static_cast<size_t>(rank + 1), rank), all(12, -1);
      const auto gather = [&](int64_t bytes) {
        return Call(HVD_ALLGATHER, "g").tensor(mine, HVD_INT32).into(all.data(), bytes).run(engine);
      };
      EXPECT(gather(48).ok());
      EXPECT(all == (Values{0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}));
      // Another size than all expect is this rank's own error; the others have their results.
      const Status own = gather(rank == 1 ? 44 : 48);
      EXPECT(rank == 1 ? has(own, HVD_INVALID_ARGUMENT, {"rank 1", "an output of 48 bytes, got 44"}) : own.ok());
      Values parts(6), received(6);
      std::iota(parts.begin(), parts.end(), 10 * rank);
      EXPECT(Call(HVD_ALLTOALL, "a").tensor(parts, HVD_INT32).into(received.data(), 24).run(engine).ok());
      EXPECT(received == (Values{2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank, 20 + 2 * rank, 21 + 2 * rank}));
    });
  }
}

TEST_MAIN
