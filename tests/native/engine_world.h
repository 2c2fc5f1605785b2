// SPDX-License-Identifier: Apache-2.0
// Several ranks in one test program: engines as threads over one mapping (so that TSan sees both sides), joined by
// shared memory or by socket pairs.
#pragma once

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "communicators/registry.h"
#include "engine/engine.h"

namespace hvd {

// All ranks on one host; each on a host of its own; half of them, rounded up, on one host and the rest on another.
enum class Wiring { kSharedMemory, kSockets, kTwoHosts };
constexpr Wiring kWirings[] = {Wiring::kSharedMemory, Wiring::kSockets, Wiring::kTwoHosts};

// One entry for each rank: its host.
inline std::vector<EngineOptions> make_world_on(const std::vector<int>& host_of_rank, EngineSettings settings = {}) {
  const int size = static_cast<int>(host_of_rank.size());
  const Topology topology(host_of_rank);
  std::vector<EngineOptions> world(static_cast<size_t>(size));
  const CommunicatorRow* row = nullptr;
  EXPECT(choose_communicator(settings.communicator, topology, true, &row).ok());
  for (int host = 0; host < topology.hosts(); ++host) {
    const std::vector<int>& ranks = topology.ranks_of(host);
    std::unique_ptr<Segment> made;
    const Status status =
        Segment::create(1, static_cast<uint32_t>(ranks.size()), row->shared_bytes(topology, ranks[0]), &made);
    if (!status.ok()) std::printf("%s\n", status.text().c_str());
    EXPECT(status.ok());
    const std::shared_ptr<Segment> segment = std::move(made);
    std::shared_ptr<const PollBell> poll_bell;
    if (topology.hosts() > 1) EXPECT(PollBell::make(&poll_bell).ok());
    for (const int rank : ranks) {
      EngineOptions& options = world[static_cast<size_t>(rank)];
      options.rank = rank;
      options.generation = 1;
      options.settings = settings;
      options.segment = segment;
      options.poll_bell = poll_bell;
      options.host_of_rank = host_of_rank;
    }
  }
  const auto join = [&](int a, int b, hvd_purpose purpose, int index) {
    int fds[2];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    world[static_cast<size_t>(a)].links.push_back({b, purpose, fds[0], index});
    world[static_cast<size_t>(b)].links.push_back({a, purpose, fds[1], index});
  };
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      const bool apart = topology.host_of(a) != topology.host_of(b);
      for (int index = 0; index < 2 && (apart || row->needs_link(topology, a, b)); ++index) {
        join(a, b, HVD_LINK_DATA, index);
      }
      if (a == 0 && apart && topology.local_rank_of(b) == 0) join(a, b, HVD_LINK_CONTROL, 0);
    }
  }
  return world;
}

inline std::vector<EngineOptions> make_world(int size, Wiring wiring, EngineSettings settings = {}) {
  std::vector<int> host_of_rank;
  for (int r = 0; r < size; ++r) {
    host_of_rank.push_back(wiring == Wiring::kSharedMemory ? 0 : wiring == Wiring::kSockets ? r : 2 * r / (size + 1));
  }
  return make_world_on(host_of_rank, std::move(settings));
}

// Runs body(engine, rank) on a thread per rank; stops the engines in order afterwards.
inline void run_world(std::vector<EngineOptions> world, const std::function<void(Engine&, int)>& body) {
  std::vector<std::thread> threads;
  for (EngineOptions& options : world) {
    threads.emplace_back([&body, options = std::move(options)]() mutable {
      const int rank = options.rank;
      std::unique_ptr<Engine> engine;
      const Status status = Engine::start(std::move(options), &engine);
      if (!status.ok()) std::printf("rank %d: %s\n", rank, status.text().c_str());
      EXPECT(status.ok());
      if (!status.ok()) return;
      body(*engine, rank);
      EXPECT(engine->stop(5000).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One request built by hand.
class Call {
 public:
  explicit Call(hvd_kind kind, const char* name) {
    request_.size = sizeof request_;
    request_.kind = kind;
    request_.op = HVD_SUM;
    request_.name = name;
    request_.tensor_size = sizeof(hvd_tensor);
    request_.prescale = request_.postscale = 1.0;
  }
  Call& op(hvd_op op) {
    request_.op = op;
    return *this;
  }
  Call& in(int32_t process_set) {
    request_.process_set = process_set;
    return *this;
  }
  Call& root(int rank) {
    request_.root_rank = rank;
    return *this;
  }
  Call& tag(int tag) {
    request_.tag = tag;
    return *this;
  }
  Call& on(int device, cuda::Stream stream) {
    request_.place = HVD_ON_CUDA;
    request_.device = device;
    stream_ = stream;
    return *this;
  }
  Call& scale(double prescale, double postscale) {
    request_.prescale = prescale;
    request_.postscale = postscale;
    return *this;
  }
  Call& done(hvd_done_fn function, void* user) {
    request_.done = function;
    request_.user = user;
    return *this;
  }
  Call& splits(std::vector<int64_t> rows) {
    splits_ = std::move(rows);
    request_.splits = splits_.data();
    request_.nsplits = static_cast<uint32_t>(splits_.size());
    return *this;
  }
  template <class Number>
  Call& tensor(std::vector<Number>& values, hvd_dtype dtype, std::vector<int64_t> shape = {}) {
    if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
    return tensor(values.data(), values.data(), dtype, std::move(shape));
  }
  Call& tensor(const void* input, void* output, hvd_dtype dtype, std::vector<int64_t> shape) {
    shapes_.push_back(std::make_unique<std::vector<int64_t>>(std::move(shape)));
    tensors_.push_back({input, output, shapes_.back()->data(), static_cast<int32_t>(shapes_.back()->size()), dtype, 0});
    return *this;
  }
  // Of the last tensor, where it is not the input itself. `bytes`: of a result whose size depends on the others.
  Call& into(void* output, int64_t bytes = 0) {
    tensors_.back().output = output;
    tensors_.back().output_bytes = bytes;
    return *this;
  }
  Status submit(Engine& engine, hvd_handle* handle, uint32_t flags = 0) {
    request_.tensors = tensors_.data();
    request_.ntensors = static_cast<uint32_t>(tensors_.size());
    std::shared_ptr<const Prepared> prepared;
    HVD_RETURN_IF_ERROR(engine.submitter().prepare(request_, &prepared));
    std::vector<const void*> inputs;
    std::vector<void*> outputs;
    for (const hvd_tensor& tensor : tensors_) {
      inputs.push_back(tensor.input);
      outputs.push_back(tensor.output);
    }
    return engine.submitter().submit(std::move(prepared), inputs.data(), outputs.data(), flags, handle, nullptr,
                                     stream_);
  }
  Status run(Engine& engine, uint32_t flags = HVD_SYNC) {
    hvd_handle handle = 0;
    HVD_RETURN_IF_ERROR(submit(engine, &handle, flags));
    Status status = engine.submitter().wait(handle, 20000);
    engine.submitter().release(handle);
    return status;
  }

 private:
  hvd_request request_{};
  cuda::Stream stream_ = nullptr;
  std::vector<hvd_tensor> tensors_;
  std::vector<int64_t> splits_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> shapes_;
};

// Adds a process set and waits for it; its number, or -1 with the error in `*status`.
inline int32_t add_set(Engine& engine, std::vector<int32_t> ranks, Status* status = nullptr) {
  hvd_handle handle = 0;
  Status outcome = engine.submitter().add_process_set(ranks.data(), static_cast<uint32_t>(ranks.size()), &handle);
  if (outcome.ok()) outcome = engine.submitter().wait(handle, 20000);
  const int32_t number = outcome.ok() ? static_cast<int32_t>(engine.submitter().find(handle)->results[0].rows[0]) : -1;
  engine.submitter().release(handle);
  if (status != nullptr) *status = outcome;
  return number;
}
inline Status remove_set(Engine& engine, int32_t number) {
  hvd_handle handle = 0;
  HVD_RETURN_IF_ERROR(engine.submitter().remove_process_set(number, &handle));
  Status outcome = engine.submitter().wait(handle, 20000);
  engine.submitter().release(handle);
  return outcome;
}

// Runs the body in a process of its own, so that a hang is a failure within the limit and not the end of the program.
inline void in_child(unsigned limit_s, const std::function<void()>& body) {
  std::fflush(stdout);
  limit_s *= kPatience * (thorough() ? 1 : 5);  // a busy machine
  const pid_t child = fork();
  if (child == 0) {
    check::failures() = 0;
    alarm(limit_s);
    body();
    std::fflush(stdout);
    _exit(check::failures() == 0 ? 0 : 1);
  }
  int outcome = -1;
  EXPECT(child > 0 && waitpid(child, &outcome, 0) == child);
  if (WIFSIGNALED(outcome) && WTERMSIG(outcome) == SIGALRM) std::printf("hung: ended after %u s\n", limit_s);
  EXPECT(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0);
}

inline bool has(const Status& status, hvd_code code, std::initializer_list<const char*> words) {
  bool good = status.code() == code;
  for (const char* word : words) good = good && status.text().find(word) != std::string::npos;
  if (!good) std::printf("seen code %d: %s\n", status.code(), status.text().c_str());
  return good;
}

}  // namespace hvd
