// SPDX-License-Identifier: Apache-2.0
// After an interrupt MPI may still write into the memory of what was under way: nothing of it is freed, on any way.
#include "platform/kept_memory.h"

#include <malloc.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "members.h"

namespace {

using hvd::Communicator;
using hvd::Slice;
using hvd::Status;
using members::Wire;
using members::World;

std::atomic<stand_in_mpi::Mpi*> watched = nullptr;
std::atomic<int> freed = 0;

bool on_this_stack(stand_in_mpi::Mpi* mpi) {
  pthread_attr_t attributes;
  void* begin = nullptr;
  size_t bytes = 0;
  members::require(pthread_getattr_np(pthread_self(), &attributes) == 0, "pthread_getattr_np");
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  return mpi->receives_into(begin, bytes);
}

void release(void* memory) {
  stand_in_mpi::Mpi* const mpi = watched;
  if (memory != nullptr && mpi != nullptr && mpi->receives_into(memory, malloc_usable_size(memory))) ++freed;
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete[](void* memory, size_t) noexcept { release(memory); }

namespace {

constexpr int64_t kSmall = 100, kLarge = 300'000;  // floats; large ones go in pieces over hosts

// What a caller gives and gets, which stays until the end.
struct Buffers {
  std::vector<float> mine = std::vector<float>(4 * kLarge), all = std::vector<float>(4 * kLarge);
  Slice slice(int64_t begin, int64_t count) {
    return {reinterpret_cast<std::byte*>(mine.data() + begin), reinterpret_cast<std::byte*>(all.data()), count};
  }
};

using Operation = std::function<Status(Communicator&, Buffers&)>;

Status allreduce(Communicator& communicator, Buffers& buffers, int64_t count, int pieces) {
  std::vector<Slice> slices;  // a fused batch
  for (int i = 0; i < pieces; ++i) slices.push_back(buffers.slice(i * count / pieces, count / pieces));
  for (int i = 0; i < pieces; ++i) slices[static_cast<size_t>(i)].output += i * count / pieces * 4;
  return communicator.allreduce(slices, {HVD_FLOAT32, HVD_SUM});
}

// Each of them needs member 0.
std::vector<Operation> operations() {
  const auto reducescatter = [](Communicator& communicator, Buffers& buffers) {
    std::vector<std::vector<Slice>> parts;
    for (int m = 0; m < communicator.size(); ++m) {
      parts.push_back({buffers.slice(m * kSmall, kSmall)});
      if (m != communicator.member()) parts.back()[0].output = nullptr;
    }
    return communicator.reducescatter(parts, {HVD_FLOAT32, HVD_SUM});
  };
  const auto average_of_integers = [](Communicator& communicator, Buffers& buffers) {
    hvd::Reduction reduction{HVD_INT32, HVD_SUM};
    reduction.divisor = 4;
    const Slice slice = buffers.slice(0, kSmall);
    return communicator.allreduce({&slice, 1}, reduction);
  };
  const auto alltoall = [](Communicator& communicator, Buffers& buffers) {
    const std::vector<int64_t> bytes(static_cast<size_t>(communicator.size() * communicator.size()), kSmall);
    return communicator.alltoall(buffers.mine.data(), bytes, buffers.all.data());
  };
  return {[](Communicator& c, Buffers& buffers) { return allreduce(c, buffers, kSmall, 1); },
          [](Communicator& c, Buffers& buffers) { return allreduce(c, buffers, kLarge, 1); },
          [](Communicator& c, Buffers& buffers) { return allreduce(c, buffers, kLarge, 7); },
          average_of_integers,
          reducescatter,
          alltoall,
          [](Communicator& c, Buffers&) { return c.barrier(); }};
}

void interrupt_one(Wire wire, const Operation& operation) {
  World world(wire, members::Hosts{0, 0, 1, 1});
  std::vector<Buffers> buffers(4);
  watched = &world.mpi();
  freed = 0;
  std::atomic<int> inside{0}, on_stacks{0};
  members::run_threads(world, {}, [&](Communicator& communicator) {
    if (communicator.member() == 0) {
      while (inside < 3 || world.mpi().open_receives() == 0) std::this_thread::yield();
      world.raise();
      return;
    }
    ++inside;
    const Status status = operation(communicator, buffers[static_cast<size_t>(communicator.member())]);
    EXPECT(status.code() == HVD_ABORTED || status.code() == HVD_RANK_LOST);
    on_stacks += on_this_stack(&world.mpi());
  });
  EXPECT(world.mpi().open_receives() > 0);
  EXPECT(on_stacks == 0);
  EXPECT(freed == 0);
  watched = nullptr;
}

}  // namespace

TEST(what_mpi_may_still_write_into_is_not_freed) {
  for (const Wire wire : {Wire::kMpi, Wire::kHierarchicalMpi}) {
    for (const Operation& operation : operations()) interrupt_one(wire, operation);
  }
}

TEST_MAIN
