// SPDX-License-Identifier: Apache-2.0
// The parts of negotiation one by one: bytes, the log under many appenders, verdicts in words, fusion plans.
#include <unistd.h>

#include <deque>
#include <random>
#include <thread>

#include "check.h"
#include "fusion/batch.h"
#include "host/segment.h"
#include "negotiation/coordinator/coordinator.h"
#include "negotiation/frames.h"
#include "negotiation/gradient_lists.h"
#include "negotiation/wire.h"

using namespace hvd;

namespace {

Descriptor descriptor(std::vector<int64_t> shape, DataType dtype = HVD_FLOAT32, ReduceOp op = HVD_SUM) {
  Descriptor made;
  made.op = op;
  made.tensors = {{dtype, std::move(shape)}};
  return made;
}

std::string error_text(const Effects& effects) {
  for (const Decision& decision : effects.decisions) {
    if (decision.kind != RecordKind::kError) continue;
    Failure failure;
    if (parse_failure(decision.payload, 64, &failure)) return failure.why.text();
  }
  return "";
}

}  // namespace

TEST(a_descriptor_survives_its_encoding) {
  Descriptor original = descriptor({2, 0, 1 << 20}, HVD_BFLOAT16, HVD_MAX);
  original.kind = HVD_BROADCAST;
  original.root_rank = 3;
  original.prescale = 0.1;
  original.tensors.push_back({HVD_BOOL, {}});
  Descriptor copy;
  EXPECT(Descriptor::decode(original.encode(), &copy));
  EXPECT(copy.encode() == original.encode());
  EXPECT(copy.tensors == original.tensors && copy.prescale == 0.1 && copy.root_rank == 3);
}

TEST(a_cut_or_corrupted_descriptor_is_refused_or_harmless) {
  const std::string bytes = descriptor({5, 6}).encode();
  Descriptor copy;
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT(!Descriptor::decode(bytes.substr(0, length), &copy));
  EXPECT(!Descriptor::decode(bytes + "x", &copy));
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string broken = bytes;
    broken[random() % broken.size()] = static_cast<char>(random());
    Descriptor::decode(broken, &copy);  // under the sanitizers: no read beyond the bytes, no giant allocation
  }
}

TEST(frames_are_cut_from_a_stream_of_any_pieces) {
  std::string stream;
  for (int i = 0; i < 50; ++i) stream += make_frame(FrameKind::kRequest, std::string(static_cast<size_t>(i * 7), 'a'));
  FrameParser parser;
  FrameKind kind;
  std::string payload;
  int seen = 0;
  for (const char byte : stream) {
    parser.feed(&byte, 1);
    while (parser.next(&kind, &payload)) EXPECT(payload.size() == static_cast<size_t>(seen++ * 7));
  }
  EXPECT(seen == 50 && !parser.broken());
  FrameParser oversized;
  oversized.feed("\xff\xff\xff\xff\x01", 5);
  EXPECT(!oversized.next(&kind, &payload) && oversized.broken());
}

TEST(every_rank_reads_one_order_from_a_log_with_many_appenders) {
  constexpr int kThreads = 4;
  constexpr uint32_t kRecords = 30000;  // several laps
  std::unique_ptr<Segment> segment;
  EXPECT(Segment::create(1, kThreads, 0, &segment).ok());
  std::vector<std::vector<uint32_t>> read(kThreads);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      uint32_t written = 0;
      Record record;
      while (read[t].size() < kThreads * kRecords) {
        if (written < kRecords && segment->log_has_room()) {
          segment->append({RecordKind::kReady, t << 20 | written});
          ++written;
        }
        while (segment->peek(read[t].size(), &record)) {
          read[t].push_back(record.id);
          segment->rank(t).cursor.store(read[t].size());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 1; t < kThreads; ++t) EXPECT(read[t] == read[0]);
  std::vector<uint32_t> next(kThreads, 0);
  for (const uint32_t id : read[0]) EXPECT((id & 0xfffff) == next[id >> 20]++);
}

TEST(a_log_has_room_while_its_tail_trails_behind_its_readers) {
  std::unique_ptr<Segment> segment;
  EXPECT(Segment::create(1, 2, 0, &segment).ok());
  segment->header().tail.store(5);
  segment->rank(0).cursor.store(6);  // read what was appended at 5 before the appender moved the tail
  segment->rank(1).cursor.store(6);
  EXPECT(segment->log_has_room());
  segment->header().tail.store(kLogSlots);
  EXPECT(!segment->log_has_room());
}

TEST(texts_in_the_arena_are_replaced_in_place) {
  std::unique_ptr<Segment> segment;
  EXPECT(Segment::create(1, 1, 0, &segment).ok());
  for (int round = 0; round < 100000; ++round) {  // would fill the arena 60 times over
    EXPECT(segment->write_definition(3, std::string(static_cast<size_t>(100 + round % 400), 'x')));
  }
  EXPECT(segment->definition(3).size() == 100 + 99999 % 400);
  EXPECT(!segment->write_definition(4, std::string(9u << 20, 'x')));
}

TEST(free_pieces_of_the_arena_become_whole_again) {
  constexpr uint64_t kBytes = 1 << 16;
  Arena arena(kBytes);
  uint32_t random = 1;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (bool full = false; !full;) {
      random = random * 1664525 + 1013904223;
      const uint64_t piece = Arena::piece_bytes(random >> 20);  // up to 4096
      const std::optional<uint64_t> offset = arena.take(piece);
      full = !offset.has_value();
      if (full) continue;
      EXPECT(*offset % piece == 0 && *offset + piece <= kBytes);
      for (const auto& [other, bytes] : taken) EXPECT(*offset + piece <= other || other + bytes <= *offset);
      taken.emplace_back(*offset, piece);
    }
    for (; !taken.empty(); taken.pop_back()) {
      random = random * 1664525 + 1013904223;
      std::swap(taken[(random >> 8) % taken.size()], taken.back());
      arena.give_back(taken.back().first, taken.back().second);
    }
    EXPECT(arena.take(kBytes) == 0u);
    arena.give_back(0, kBytes);
  }
}

// Groups of thousands of tensors under ever new names. The host answers `late` steps later.
TEST(long_definitions_go_before_they_fill_the_arena) {
  struct Case {
    size_t bytes, late;
    int steps;
  };
  for (const auto& [bytes, late, steps] :
       {Case{5000, 1, 4000}, {130000, 1, 200}, {1500000, 1, 200}, {130000, 40, 200}}) {
    std::unique_ptr<Segment> segment;
    EXPECT(Segment::create(1, 1, 0, &segment).ok());
    Coordinator coordinator({0});
    std::deque<Effects> unanswered;
    int defined = 0, readies = 0;
    for (int step = 0; step < steps || !unanswered.empty(); ++step) {
      Effects effects;
      if (step < steps) {
        coordinator.request({{0, true}}, 0, "group." + std::to_string(step), std::string(bytes, 'd'), 0, &effects);
      }
      if (unanswered.size() >= late || step >= steps) {
        for (const uint32_t id : unanswered.front().retires) coordinator.may_retire(0, id, true, &effects);
        for (const Decision& decision : unanswered.front().decisions) {
          if (decision.kind != RecordKind::kRetire) continue;
          segment->release_texts(decision.id);
          EXPECT(coordinator.retired(0, decision.id, &effects));
        }
        unanswered.pop_front();
      }
      for (const Decision& decision : effects.decisions) {
        if (decision.kind == RecordKind::kReady) ++readies;
        if (decision.kind != RecordKind::kDefine) continue;
        ++defined;
        EXPECT(segment->write_definition(decision.id, decision.payload));
      }
      if (step < steps || !effects.decisions.empty() || !effects.retires.empty()) {
        unanswered.push_back(std::move(effects));
      }
    }
    EXPECT(defined == steps && readies == steps);
    EXPECT(coordinator.evicted() > 0 || bytes > 1000000);
  }
}

TEST(only_the_first_cause_poisons) {
  std::unique_ptr<Segment> segment;
  EXPECT(Segment::create(1, 1, 0, &segment).ok());
  EXPECT(segment->cause().ok());
  EXPECT(segment->poison(HVD_RANK_LOST, 2, "first"));
  EXPECT(!segment->poison(HVD_ABORTED, 1, "second"));
  EXPECT(segment->cause().code() == HVD_RANK_LOST && segment->cause().failed_rank() == 2 &&
         segment->cause().text() == "first");
}

TEST(a_segment_of_another_start_is_refused) {
  std::unique_ptr<Segment> segment, other;
  EXPECT(Segment::create(1, 2, 0, &segment).ok());
  EXPECT(!Segment::attach(dup(segment->memfd()), 2, 2, 0, &other).ok());
  EXPECT(!Segment::attach(dup(segment->memfd()), 1, 3, 0, &other).ok());
  EXPECT(Segment::attach(dup(segment->memfd()), 1, 2, 0, &other).ok());
}

TEST(the_majority_is_the_expected) {
  Coordinator coordinator({0, 0, 0});
  Effects effects;
  coordinator.request({{0, true}}, 0, "x", descriptor({4}).encode(), 0, &effects);
  coordinator.request({{1, true}}, 0, "x", descriptor({3}).encode(), 0, &effects);
  EXPECT(effects.decisions.empty());
  coordinator.request({{2, true}}, 0, "x", descriptor({3}).encode(), 0, &effects);
  const std::string text = error_text(effects);
  EXPECT(text.find("rank 0: expected shape [3], got [4]") != std::string::npos);
  EXPECT(text.find("ranks 1, 2") != std::string::npos);
}

// Of as many on both sides the lowest rank's is the expected, whichever way its request has come.
TEST(a_rank_that_repeats_its_last_call_is_named_where_the_ranks_disagree) {
  for (const int slow : {0, 1}) {
    Coordinator coordinator({0, 0});
    Effects effects;
    for (const int rank : {0, 1}) coordinator.request({{rank, true}}, 0, "x", descriptor({3}).encode(), 0, &effects);
    const uint32_t id = effects.decisions[0].id;
    effects = {};
    coordinator.request({{slow, true}}, 0, "x", descriptor({4}).encode(), 0, &effects);
    EXPECT(effects.recalls == std::vector<uint32_t>{id});
    EXPECT(coordinator.recalled(0, id, {1, 1, false}, &effects));
    const std::string seen = slow == 0 ? "rank 1: expected shape [4], got [3]" : "rank 1: expected shape [3], got [4]";
    EXPECT(error_text(effects).find(seen + " (expected as on rank 0)") != std::string::npos);
  }
}

// Else a stall report would count from the first step of a training, and a stall limit end it.
TEST(each_round_of_an_entry_is_waited_for_since_its_own_first_arrival) {
  Coordinator coordinator({0, 1});
  Effects effects;
  const auto request = [&](int rank, int64_t rows, double now) {
    coordinator.request({{rank, true}}, 0, "x", descriptor({rows}).encode(), now, &effects);
  };
  const auto since = [&coordinator] {  // -1 if nobody waits
    const std::vector<Undecided> open = coordinator.undecided();
    return open.size() == 1 && open[0].arrived == std::vector<int>{0} ? open[0].since : -1;
  };
  request(0, 4, 100);
  EXPECT(since() == 100);
  request(1, 4, 101);
  EXPECT(effects.decisions.size() == 2 && since() == -1);
  const uint32_t id = effects.decisions[0].id;
  for (const double start : {200.0, 300.0}) {  // the fast way
    EXPECT(coordinator.host_ready(0, id, start, &effects));
    EXPECT(since() == start);
    EXPECT(coordinator.host_ready(1, id, start + 1, &effects));
    EXPECT(since() == -1);
  }
  request(0, 5, 400);
  EXPECT(since() == 400);
}

// Ranks whose models differ meet under no name. `waiting`: rank, list, place, rows, since.
TEST(ranks_that_wait_for_each_other_in_different_lists_of_gradients_disagree) {
  struct Arrival {
    int rank;
    std::string list, place;
    int64_t rows;
    double since = 0;
  };
  int culprit = -1;
  const auto disagreement = [&culprit](const std::vector<Arrival>& arrivals) {
    Coordinator coordinator({0, 0, 0});
    Effects effects;
    for (const auto& [rank, list, place, rows, since] : arrivals) {
      const std::string name = "allreduce.tape" + (list.empty() ? "" : "/list-" + list) + place;
      coordinator.request({{rank, false}}, 0, name, descriptor({rows}).encode(), since, &effects);
    }
    return disagreement_about_gradients(coordinator.undecided(), 100, &culprit);
  };
  const auto has = [&](const std::vector<Arrival>& arrivals, const std::string& expected) {
    return disagreement(arrivals).find(expected) != std::string::npos;
  };
  // What most ranks have is expected; a place is a number.
  const std::vector<Arrival> shapes = {{0, "aa", ".2", 4},  {0, "aa", ".10", 5}, {1, "bb", ".2", 4},
                                       {1, "bb", ".10", 6}, {2, "aa", ".2", 4},  {2, "aa", ".10", 5}};
  EXPECT(has(shapes, "rank 1: `allreduce.tape/list-bb.10`: expected shape [5], got [6] (expected as on ranks 0, 2)"));
  EXPECT(culprit == 1);
  EXPECT(has({{0, "aa", ".0", 4}, {0, "aa", ".1", 4}, {1, "bb", ".0", 4}, {2, "bb", ".0", 4}},
             "rank 0: expected 1 gradients, the first of them `allreduce.tape/list-bb.0`; got 2, the first of them "
             "`allreduce.tape/list-aa.0`"));
  EXPECT(has({{0, "aa", "", 4}, {1, "bb", "", 5}, {2, "bb", "", 5}}, "expected shape [5], got [4]"));
  EXPECT(has({{0, "aa", ".0", 4}, {1, "aa_1", ".0", 4}, {2, "aa_1", ".0", 4}}, "got `allreduce.tape/list-aa.0`"));
  // Somebody may still come, be it to the rest of a list that he is in; or these are no lists.
  EXPECT(disagreement({{0, "aa", ".0", 4}, {1, "bb", ".0", 5}}).empty());
  EXPECT(disagreement({{0, "aa", ".0", 4}, {1, "bb", ".0", 5}, {2, "bb", ".1", 5, 101}}).empty());
  EXPECT(disagreement({{0, "aa", ".0", 4}, {1, "aa", ".1", 4}, {2, "aa", ".2", 4}}).empty());
  EXPECT(disagreement({{0, "aa", ".0", 4}, {1, "aa", ".1", 4}, {2, "aa", ".0", 4}, {2, "bb", ".0", 4}}).empty());
  EXPECT(disagreement({{0, "", ".0", 4}, {1, "", ".1", 4}, {2, "", ".1", 4}}).empty());
}

// A join recalls what nobody waits for; the other host's answer may come when the set is gone, and its number then.
TEST(an_answer_about_a_name_of_a_removed_set_gives_its_number_back) {
  Coordinator coordinator({0, 1}, {2, 2});
  coordinator.add_set(1, {0, 1});
  Descriptor of_set = descriptor({3});
  of_set.process_set = 1;
  Effects effects;
  for (const int rank : {0, 1}) coordinator.request({{rank, true}}, 1, "x", of_set.encode(), 0, &effects);
  EXPECT(effects.decisions.size() == 2 && effects.decisions[0].id == 0);
  effects = {};
  EXPECT(coordinator.join(0, {}, 0, &effects) && coordinator.join(1, {}, 0, &effects));
  EXPECT(effects.recalls.size() == 1 && effects.decisions.empty());
  EXPECT(coordinator.recalled(0, 0, {}, &effects));
  coordinator.remove_set(1);
  EXPECT(effects.decisions.empty());
  EXPECT(coordinator.recalled(1, 0, {}, &effects));
  EXPECT(effects.decisions.size() == 1 && effects.decisions[0].kind == RecordKind::kJoin);
  EXPECT(!coordinator.recalled(1, 0, {}, &effects));
  effects = {};
  for (const int rank : {0, 1}) coordinator.request({{rank, true}}, 0, "y", descriptor({3}).encode(), 0, &effects);
  EXPECT(effects.decisions.size() == 2 && effects.decisions[0].id == 0);
}

// With one number for names that run once, the second is decided, but can be said only when the first has been read.
TEST(what_waits_for_a_number_is_said_before_the_join_ends) {
  Coordinator coordinator({0, 0}, {0, 1});
  Effects effects;
  for (const char* name : {"x", "y"}) {
    for (const int rank : {0, 1}) coordinator.request({{rank, false}}, 0, name, descriptor({3}).encode(), 0, &effects);
  }
  EXPECT(effects.decisions.size() == 3 && coordinator.waits_for_ids());
  effects = {};
  EXPECT(coordinator.join(0, {}, 0, &effects) && coordinator.join(1, {}, 0, &effects));
  EXPECT(effects.decisions.empty());
  EXPECT(coordinator.retired(0, 0, &effects));
  EXPECT(effects.decisions.size() == 4 && effects.decisions.front().kind == RecordKind::kDefine);
  EXPECT(effects.decisions.back().kind == RecordKind::kJoin);
}

TEST(dtype_is_named_before_shape_and_shape_before_the_operation) {
  Descriptor a = descriptor({4});
  Descriptor b = descriptor({5}, HVD_FLOAT64, HVD_MAX);
  EXPECT(difference(a, b).text.find("dtype float32, got float64") != std::string::npos);
  b.tensors[0].dtype = HVD_FLOAT32;
  EXPECT(difference(a, b).text.find("shape [4], got [5]") != std::string::npos);
  b.tensors[0].shape = {4};
  EXPECT(difference(a, b).text.find("reduce operation Sum, got Max") != std::string::npos);
  EXPECT(difference(a, a).text.empty());
}

TEST(equal_things_fuse_up_to_the_threshold_and_nothing_else) {
  const Descriptor f32 = descriptor({1000}), f64 = descriptor({1000}, HVD_FLOAT64),
                   max = descriptor({1000}, HVD_FLOAT32, HVD_MAX);
  Descriptor broadcast = f32;
  broadcast.kind = HVD_BROADCAST;
  Descriptor scaled = f32;
  scaled.postscale = 0.5;
  const Descriptor* entries[] = {&f32, &f64, &f32, &max, &broadcast, &scaled, &f32, &f64};
  const std::vector<Batch> batches = plan_batches(entries, 8000);
  std::vector<std::vector<uint32_t>> cut;
  for (const Batch& batch : batches) {
    cut.emplace_back();
    for (const BatchTensor& tensor : batch.tensors) cut.back().push_back(tensor.entry);
  }
  EXPECT(cut == (std::vector<std::vector<uint32_t>>{{0, 2}, {1}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT(plan_batches(entries, 0).size() == 8);
  const Descriptor group = [&] {
    Descriptor made = f32;
    made.tensors.push_back(made.tensors.front());
    return made;
  }();
  const Descriptor* grouped[] = {&f32, &group, &f32, &group};
  EXPECT(plan_batches(grouped, 1 << 20).size() == 1);
  EXPECT(plan_batches(grouped, 1 << 20, true).size() == 3);  // the two single ones, and each group for itself
  Descriptor scatter = f32, gather = f32;
  scatter.kind = HVD_REDUCESCATTER;
  gather.kind = HVD_ALLTOALL;
  const Descriptor* mixed[] = {&scatter, &f32, &scatter, &gather, &gather, &f32};
  EXPECT(plan_batches(mixed, 8000).size() == 4);  // the reducescatters, the allreduces, and each alltoall alone
}

TEST_MAIN
