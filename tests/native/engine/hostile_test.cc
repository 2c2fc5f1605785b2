// SPDX-License-Identifier: Apache-2.0
// A peer that has proved the secret and then sends nonsense: the engine names it and ends the generation; it never
// crashes, hangs, or believes it.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "engine_world.h"
#include "negotiation/frames.h"
#include "negotiation/point_to_point.h"
#include "platform/clock.h"
#include "platform/descriptor_passing.h"
#include "platform/memory_limit.h"

using namespace hvd;

namespace {

// One engine of a world of two, each on a host of its own; the test itself is the other rank.
class Victim {
 public:
  explicit Victim(int rank) {
    std::vector<EngineOptions> world = make_world(2, Wiring::kSockets);
    for (const EngineOptions::Link& link : world[static_cast<size_t>(1 - rank)].links) {
      (link.purpose == HVD_LINK_CONTROL ? control_ : data_[link.index]) = link.fd;
    }
    EXPECT(Engine::start(std::move(world[static_cast<size_t>(rank)]), &engine_).ok());
  }
  ~Victim() {
    const uint64_t start_ns = now_ns();
    EXPECT(engine_->stop(60000).ok());
    EXPECT(now_ns() - start_ns < 40'000'000'000);
    for (const int fd : {control_, data_[0], data_[1]}) close(fd);
  }

  Engine& engine() { return *engine_; }
  void send(const std::string& bytes) { write_all(control_, bytes); }
  void send(FrameKind kind, std::string payload) { send(make_frame(kind, payload)); }
  void send_data(int index, const std::string& bytes) { write_all(data_[index], bytes); }

  void hang_up() { shutdown(control_, SHUT_RDWR); }

  // What an operation that waits for the other rank ends with.
  Status outcome() {
    std::vector<float> values(4, 1);
    return Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).run(*engine_);
  }

 private:
  static void write_all(int fd, const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t now = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (now <= 0) return;  // the victim has hung up already
      sent += static_cast<size_t>(now);
    }
  }

  int control_ = -1;
  int data_[2] = {-1, -1};
  std::unique_ptr<Engine> engine_;
};

std::string descriptor_of(std::vector<int64_t> shape, hvd_kind kind = HVD_ALLREDUCE, int32_t set = 0) {
  Descriptor descriptor;
  descriptor.kind = kind;
  descriptor.process_set = set;
  descriptor.tensors = {{HVD_FLOAT32, std::move(shape)}};
  return descriptor.encode();
}

std::string request(int rank, const std::string& name, const std::string& descriptor) {
  return request_payload({{{rank, true}}, 0, name, descriptor});
}

std::string refusal(int rank, int32_t set, const std::string& name, const std::string& why) {
  return refuse_payload({rank, set, name, why});
}

template <class... Numbers>
std::string numbers(Numbers... values) {
  Writer payload;
  (payload.put(values), ...);
  return payload.take();
}

std::string record(RecordKind kind, uint32_t id, const std::string& payload, uint8_t kind_override = 0,
                   int32_t last_rank = -1) {
  Writer writer;
  writer.put(uint32_t{1}).put(kind_override != 0 ? kind_override : static_cast<uint8_t>(kind)).put(uint8_t{0}).put(id);
  writer.put_string(payload);
  if (kind == RecordKind::kReady) writer.put(last_rank);
  return writer.take();
}

std::string failure(const std::string& name, int culprit, const std::string& text, std::vector<int> ranks = {},
                    int32_t code = HVD_MISMATCH) {
  Writer payload;
  payload.put(int32_t{0}).put_string(name).put(code).put(culprit).put_string(text);
  payload.put(static_cast<uint32_t>(ranks.size()));
  for (const int rank : ranks) payload.put(rank);
  return payload.take();
}

std::string abort_frame(int32_t code, int32_t rank, const std::string& text) {
  Writer payload;
  payload.put(code).put(rank).put_string(text);
  return payload.take();
}

struct Nonsense {
  const char* what;
  FrameKind kind;
  std::string payload;
};

const int kFarRanks[] = {-1, 2, INT32_MAX, INT32_MIN};

// A shape of many dimensions whose number says otherwise, and the like.
std::vector<std::string> bad_descriptors() {
  std::string many = descriptor_of({1});
  many.replace(26, 4, numbers(UINT32_MAX));  // the number of tensors
  std::string deep = descriptor_of({1});
  deep[31] = '\xff';  // ndim
  std::string no_dtype = descriptor_of({1});
  no_dtype[30] = 13;
  std::string no_kind = descriptor_of({1});
  no_kind[0] = '\xc8';
  std::string no_op = descriptor_of({1});
  no_op[1] = 9;
  return {"",
          "x",
          many,
          deep,
          no_dtype,
          no_kind,
          no_op,
          descriptor_of({-1}),
          descriptor_of({INT64_MIN}),
          descriptor_of({INT64_MAX, INT64_MAX}),
          descriptor_of({0, INT64_MAX, INT64_MAX}),
          descriptor_of({1}) + "x",
          descriptor_of({1, 2}).substr(0, 40)};
}

std::vector<Nonsense> for_the_coordinator() {
  const std::string good = descriptor_of({4});
  std::vector<Nonsense> all = {
      {"an unknown kind", static_cast<FrameKind>(77), ""},
      {"a frame for the other direction", FrameKind::kRecords, record(RecordKind::kClose, 0, "")},
      {"a question for the other direction", FrameKind::kWhoWaits, ""},
      {"an empty request", FrameKind::kRequest, ""},
      {"a request of the other host's rank", FrameKind::kRequest, request(0, "x", good)},
      {"a request of no rank", FrameKind::kRequest, request_payload({{}, 0, "x", good})},
      {"a request of both hosts' ranks", FrameKind::kRequest, request_payload({{{0, true}, {1, true}}, 0, "x", good})},
      {"what a rank tells its own leader", FrameKind::kComplete, complete_payload({0, 4, true})},
      {"the other host's waiting ranks", FrameKind::kWaiting, waiting_payload({{{0, 500, {0}}}, {}})},
      {"the other host's blocked rank", FrameKind::kWaiting, waiting_payload({{}, {0}})},
      {"half of what waits", FrameKind::kWaiting, numbers(uint32_t{1}, uint32_t{0})},
      {"no name", FrameKind::kRequest, request(1, "", good)},
      {"a name without end", FrameKind::kRequest, request(1, std::string(kMaxNameBytes + 1, 'n'), good)},
      {"a name that ends behind its frame", FrameKind::kRequest, numbers(int32_t{1}, uint32_t{4000})},
      {"bytes after the request", FrameKind::kRequest, request(1, "x", good) + "x"},
      {"a reason without end", FrameKind::kRefuse, refusal(1, 0, "x", std::string(1u << 20, 'y'))},
      {"a request in a set that is none", FrameKind::kRequest, request(1, "x", descriptor_of({4}, HVD_ALLREDUCE, 7))},
      {"a refusal in a set that is none", FrameKind::kRefuse, refusal(1, 7, "x", "why")},
      {"a refusal in a pair that is no message's", FrameKind::kRefuse, refusal(1, -1, "x", "why")},
      {"a message in another pair", FrameKind::kRequest,
       request(1, "send from rank 1 to rank 2, tag 0", descriptor_of({4}, HVD_SEND, -1))},
      {"a message of ranks that are none", FrameKind::kRequest,
       request(1, "send from rank 1 to rank 7, tag 0", descriptor_of({4}, HVD_SEND, pair_of(1, 7)))},
      {"a receive from any rank of a pair", FrameKind::kRequest,
       request(1, "receive on rank 1 from any rank, tag 0", descriptor_of({4}, HVD_RECEIVE, -1))},
      {"a receive from any rank of a set that is none", FrameKind::kRequest,
       request(1, "receive on rank 1 from any rank, tag 0", descriptor_of({4}, HVD_RECEIVE, 7))},
      {"more ranks than bytes", FrameKind::kRequest,
       request(1, "x", good.substr(0, good.size() - 4) + "\xff\xff\xff\xff")},
      {"an entry that is none", FrameKind::kHostReady, host_ready_payload({{5, 1}})},
      {"an entry beyond all", FrameKind::kHostReady, host_ready_payload({{UINT32_MAX, 1}})},
      {"an entry without a rank", FrameKind::kHostReady, numbers(uint32_t{1}, uint32_t{0})},
      {"more entries than bytes", FrameKind::kHostReady, numbers(UINT32_MAX, uint32_t{0})},
      {"no entries", FrameKind::kHostReady, ""},
      {"a recalled entry that is none", FrameKind::kRecalled, numbers(uint32_t{0}, uint32_t{0})},
      {"half an answer to a recall", FrameKind::kRecalled, numbers(uint32_t{0})},
      {"the other host's leave", FrameKind::kLeave, numbers(int32_t{0})},
      {"nobody's leave", FrameKind::kLeave, ""},
      {"more than a leave", FrameKind::kLeave, numbers(int32_t{1}, int32_t{0})},
      {"a cause that is cut", FrameKind::kAbort, numbers(int32_t{5})},
      {"the cause that all is well", FrameKind::kAbort, abort_frame(HVD_OK, -1, "")},
      {"the cause that it is not yet done", FrameKind::kAbort, abort_frame(HVD_PENDING, 0, "")},
      {"an unknown cause", FrameKind::kAbort, abort_frame(INT32_MIN, 0, "")},
      {"a cause without end", FrameKind::kAbort, abort_frame(HVD_RANK_LOST, 0, std::string(7u << 20, 'z'))},
  };
  for (const std::string& bad : bad_descriptors()) {
    all.push_back({"a bad descriptor", FrameKind::kRequest, request(1, "x", bad)});
  }
  for (const int rank : kFarRanks) {
    all.push_back({"a request of a far rank", FrameKind::kRequest, request(rank, "x", good)});
    all.push_back({"a far rank's leave", FrameKind::kLeave, numbers(rank)});
    if (rank != -1) all.push_back({"a far culprit", FrameKind::kAbort, abort_frame(HVD_RANK_LOST, rank, "")});
  }
  return all;
}

std::vector<Nonsense> for_another_leader() {
  Writer definition;
  definition.put_string("y").put_string(descriptor_of({-4}));
  const std::string bad_definition = definition.take();
  std::vector<Nonsense> all = {
      {"an unknown kind", static_cast<FrameKind>(0), ""},
      {"a frame for the other direction", FrameKind::kRequest, request(1, "x", descriptor_of({4}))},
      {"a question who waits, with an answer", FrameKind::kWhoWaits, "x"},
      {"half a recall", FrameKind::kRecall, "ab"},
      {"a recall of nothing", FrameKind::kRecall, numbers(kMaxEntries)},
      {"no records", FrameKind::kRecords, ""},
      {"more records than bytes", FrameKind::kRecords, numbers(UINT32_MAX)},
      {"an unknown record", FrameKind::kRecords, record(RecordKind::kNone, 0, "", 99)},
      {"the record that is none", FrameKind::kRecords, record(RecordKind::kNone, 0, "")},
      {"an entry beyond all", FrameKind::kRecords, record(RecordKind::kReady, UINT32_MAX, "")},
      {"a last rank beyond all", FrameKind::kRecords, record(RecordKind::kReady, 0, "", 0, 2)},
      {"a last rank that is none", FrameKind::kRecords, record(RecordKind::kReady, 0, "", 0, -2)},
      {"an entry just beyond all", FrameKind::kRecords, record(RecordKind::kReady, kMaxEntries, "")},
      {"a definition that is none", FrameKind::kRecords, record(RecordKind::kDefine, 0, "")},
      {"a definition that ends behind its frame", FrameKind::kRecords,
       record(RecordKind::kDefine, 0, numbers(uint32_t{4000}))},
      {"a definition of a bad shape", FrameKind::kRecords, record(RecordKind::kDefine, 0, bad_definition)},
      {"an error without a text", FrameKind::kRecords, record(RecordKind::kError, 0, "")},
      {"an error of no operation", FrameKind::kRecords,
       record(RecordKind::kError, 0, failure("x", 0, "t", {}, HVD_RANK_LOST))},
      {"an error with an unknown code", FrameKind::kRecords,
       record(RecordKind::kError, 0, failure("x", 0, "t", {}, 99))},
      {"an error whose text has no end", FrameKind::kRecords,
       record(RecordKind::kError, 0, failure("x", 0, std::string(4u << 20, 't')))},
      {"a far rank's leave", FrameKind::kRecords, record(RecordKind::kLeave, 2, "")},
      {"a cause that is cut", FrameKind::kAbort, ""},
  };
  for (const int rank : kFarRanks) {
    if (rank != -1) {
      all.push_back({"a far culprit", FrameKind::kRecords, record(RecordKind::kError, 0, failure("x", rank, "t"))});
    }
    all.push_back(
        {"an error for a far rank", FrameKind::kRecords, record(RecordKind::kError, 0, failure("x", 0, "t", {rank}))});
  }
  return all;
}

void expect_named(int victim, const Nonsense& nonsense) {
  Victim world(victim);
  world.send(nonsense.kind, nonsense.payload);
  const Status status = world.outcome();
  const std::string sender = "rank " + std::to_string(1 - victim) + " sent rank " + std::to_string(victim);
  if (!has(status, HVD_RANK_LOST, {sender.c_str(), "cannot be read", "hint:"}) || status.failed_rank() != 1 - victim) {
    std::printf("victim %d: %s\n", victim, nonsense.what);
    ++check::failures();
  }
}

}  // namespace

TEST(rank_0_names_a_leader_that_sends_nonsense) {
  for (const Nonsense& nonsense : for_the_coordinator()) expect_named(0, nonsense);
}

TEST(a_leader_names_rank_0_when_it_sends_nonsense) {
  for (const Nonsense& nonsense : for_another_leader()) expect_named(1, nonsense);
}

TEST(what_is_no_frame_is_named) {
  for (const int victim : {0, 1}) {
    for (const std::string& bytes : {std::string("\0\0\0\0", 4), std::string("\xff\xff\xff\xff\x01", 5),
                                     std::string("\x01\x00\x80\x00", 4), std::string("GET / HTTP/1.1\r\n\r\n")}) {
      Victim world(victim);
      world.send(bytes);
      EXPECT(has(world.outcome(), HVD_RANK_LOST, {"sent rank", "data that cannot be read"}));
    }
  }
}

// Ready twice, or recalled for nothing: no rank does that in order, and it changes nothing.
TEST(a_record_of_what_was_never_submitted_is_named) {
  Victim world(1);
  world.send(FrameKind::kRecords, record(RecordKind::kReady, 7, ""));
  EXPECT(has(world.outcome(), HVD_INTERNAL, {"was told to run an operation that it never called"}));
}

TEST(a_stream_without_end_does_not_fill_the_memory) {
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  Victim world(0);
  [[maybe_unused]] const auto before_kib = peak_kib();
  std::thread flood([&] {
    const std::string piece(1u << 20, 'f');
    world.send(numbers(kMaxFrameBytes));
    for (int i = 0; i < 256; ++i) world.send(piece);
  });
  EXPECT(has(world.outcome(), HVD_RANK_LOST, {"rank 1 sent rank 0"}));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose own memory would be counted
  EXPECT(peak_kib() - before_kib < 64 * 1024);
#endif
  world.hang_up();
  flood.join();
}

// The shape of a result comes from the other ranks: the only sizes that the data plane takes from a peer.
TEST(rows_that_no_memory_holds_are_named) {
  for (const int64_t rows : {int64_t{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 8, int64_t{1} << 61}) {
    Victim world(0);
    world.send(FrameKind::kRequest, request(1, "rows", descriptor_of({0, 3}, HVD_ALLGATHER)));
    world.send_data(0, numbers(rows));
    std::vector<float> values(6, 1);
    const Status status = Call(HVD_ALLGATHER, "rows").tensor(values, HVD_FLOAT32, {2, 3}).run(world.engine());
    EXPECT(has(status, HVD_RANK_LOST, {"rank 1 says that it gives", std::to_string(rows).c_str(), "rows"}));
    EXPECT(status.failed_rank() == 1);
  }
}

TEST(splits_that_no_memory_holds_are_named) {
  for (const int64_t rows : {int64_t{-1}, INT64_MIN, INT64_MAX, INT64_MAX / 8, int64_t{1} << 61}) {
    for (const bool to_the_victim : {true, false}) {
      Victim world(0);
      world.send(FrameKind::kRequest, request(1, "rows", descriptor_of({0, 3}, HVD_ALLTOALL)));
      world.send_data(0, to_the_victim ? numbers(rows, int64_t{0}) : numbers(int64_t{0}, rows));
      std::vector<float> values(6, 1);
      const Status status = Call(HVD_ALLTOALL, "rows").tensor(values, HVD_FLOAT32, {2, 3}).run(world.engine());
      EXPECT(has(status, HVD_RANK_LOST, {"rank 1 says that it gives", std::to_string(rows).c_str(), "rows"}));
      EXPECT(status.failed_rank() == 1);
    }
  }
}

TEST(an_area_beyond_the_shared_memory_is_not_mapped) {
  std::unique_ptr<Segment> segment;
  EXPECT(Segment::create(1, 2, 8192, &segment).ok());
  uint64_t offset = 0;
  EXPECT(segment->take_area(8192, &offset).ok());
  std::shared_ptr<std::byte> area;
  EXPECT(segment->map_area(offset, 8192, &area).ok() && area.get()[8191] == std::byte{0});
  for (const uint64_t wrong : {offset + 4096, offset + 1, uint64_t{1} << 40, UINT64_MAX - 4095}) {
    EXPECT(has(segment->map_area(wrong, 8192, &area), HVD_UNAVAILABLE, {"area"}));
  }
}

TEST(shared_memory_that_could_shrink_or_has_another_size_is_refused) {
  std::unique_ptr<Segment> made, attached;
  EXPECT(Segment::create(1, 2, 8192, &made).ok());
  EXPECT(Segment::attach(dup(made->memfd()), 1, 2, 8192, &attached).ok());
  const Status other_size = Segment::attach(dup(made->memfd()), 1, 2, 4096, &attached);
  EXPECT(has(other_size, HVD_UNAVAILABLE, {"bytes of shared memory", "hint:"}));
  struct stat facts{};
  EXPECT(fstat(made->memfd(), &facts) == 0);
  const int open_ended = memfd_create("open-ended", MFD_CLOEXEC);
  EXPECT(ftruncate(open_ended, facts.st_size) == 0);
  EXPECT(has(Segment::attach(open_ended, 1, 2, 8192, &attached), HVD_UNAVAILABLE, {"not sealed"}));
  int ends[2];
  EXPECT(pipe(ends) == 0);
  EXPECT(!Segment::attach(ends[0], 1, 2, 8192, &attached).ok());
  close(ends[1]);
}

TEST(a_second_descriptor_is_not_kept) {
  int sockets[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
  const int two[2] = {memfd_create("first", MFD_CLOEXEC), memfd_create("second", MFD_CLOEXEC)};
  char byte = 'm';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof two)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof two);
  std::memcpy(CMSG_DATA(header), two, sizeof two);
  EXPECT(sendmsg(sockets[0], &message, 0) == 1);
  const int next = dup(sockets[0]);  // the lowest free number: what leaks would take it
  close(next);
  int received = -1;
  EXPECT(!receive_descriptor(sockets[1], 0, now_ns() + 1'000'000'000, &received).ok());
  const int again = dup(sockets[0]);
  EXPECT(again == next && received == -1);
  for (const int fd : {again, sockets[0], sockets[1], two[0], two[1]}) close(fd);
}

TEST(a_ring_that_says_it_holds_more_than_it_can_is_named) {
  std::vector<EngineOptions> world = make_world(2, Wiring::kSharedMemory);
  const std::shared_ptr<Segment> segment = world[0].segment;
  std::vector<std::thread> ranks;
  for (EngineOptions& options : world) {
    ranks.emplace_back([&, options = std::move(options)]() mutable {
      const int rank = options.rank;
      std::unique_ptr<Engine> engine;
      EXPECT(Engine::start(std::move(options), &engine).ok());
      if (rank == 1) segment->ring(1).written.store(segment->ring(1).read.load() + kRingBytes + 1);
      std::vector<float> values(4, 1);
      const Status status = Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).run(*engine);
      EXPECT(has(status, HVD_RANK_LOST, {"rank 1 sent rank 0 data that cannot be read"}));
      EXPECT(engine->stop(5000).ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// A start that one rank cannot make

TEST(a_rank_that_cannot_start_tells_the_other_host_why) {
  std::vector<EngineOptions> world = make_world(2, Wiring::kSockets);
  std::erase_if(world[1].links, [](const EngineOptions::Link& link) {
    if (link.purpose == HVD_LINK_DATA) close(link.fd);
    return link.purpose == HVD_LINK_DATA;
  });
  std::unique_ptr<Engine> engine, other;
  EXPECT(Engine::start(std::move(world[0]), &engine).ok());
  EXPECT(!Engine::start(std::move(world[1]), &other).ok());
  std::vector<float> values(4, 1);
  const Status status = Call(HVD_ALLREDUCE, "x").tensor(values, HVD_FLOAT32).run(*engine);
  EXPECT(has(status, HVD_INVALID_ARGUMENT, {"rank 1 could not start: 0 data links with rank 0"}));
  EXPECT(engine->stop(5000).ok());
}

TEST(the_memory_that_is_left_is_that_of_the_tightest_group) {
  const std::filesystem::path root = std::filesystem::temp_directory_path() / ("left." + std::to_string(getpid()));
  const auto write = [&](const char* path, const std::string& content) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << content;
  };
  EXPECT(memory_left(root).bytes == UINT64_MAX);
  write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    2000 kB\nSwapFree: 48 kB\n");
  EXPECT(memory_left(root).bytes == 2048 << 10 && memory_left(root).where == "this machine");
  write("proc/self/cgroup", "12:cpu,memory:/job/step\n0::/new/job\nnonsense\n");
  write("sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "1000");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900000");
  write("sys/fs/cgroup/memory/job/memory.stat", "cache 5\ntotal_inactive_file 20000\ntotal_active_file 30000\n");
  EXPECT(memory_left(root).bytes == 150000);
  EXPECT(memory_left(root).where.ends_with("/sys/fs/cgroup/memory/job"));
  write("sys/fs/cgroup/new/job/memory.max", "max\n");
  write("sys/fs/cgroup/new/job/memory.current", "5");
  EXPECT(memory_left(root).bytes == 150000);
  write("sys/fs/cgroup/new/memory.max", "1000\n");
  write("sys/fs/cgroup/new/memory.current", "1200\n");
  write("sys/fs/cgroup/new/memory.stat", "inactive_file 100\nactive_file 100\nshmem 700\n");
  EXPECT(memory_left(root).bytes == 0);
  // A container that is its own root.
  write("sys/fs/cgroup/new/memory.max", "max");
  write("sys/fs/cgroup/memory.max", "70");
  write("sys/fs/cgroup/memory.current", "7");
  EXPECT(memory_left(root).bytes == 63);
  std::filesystem::remove_all(root);
}

TEST_MAIN
