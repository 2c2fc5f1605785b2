// SPDX-License-Identifier: Apache-2.0
// The driver and the device layer, over the stand-in; and that the stand-in's check finds what it is for.
#include "device/device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "check.h"
#include "random_tensors.h"
#include "reduction/kernels.h"
#include "standin/standin.h"

using namespace hvd;
using cuda::Device;
using cuda::Event;
using cuda::Stream;

namespace {

Device& device(int ordinal = 0) {
  Device* opened = nullptr;
  const Status status = Device::get(HVD_STANDIN, ordinal, &opened);
  if (!status.ok()) std::printf("%s\n", status.text().c_str());
  EXPECT(opened != nullptr);
  return *opened;
}

Stream our_stream(size_t number = 0) {
  Stream stream = nullptr;
  EXPECT(device().stream(number, &stream).ok());
  return stream;
}

Stream framework_stream(int ordinal = 0) { return static_cast<Stream>(standin_stream(ordinal)); }

float* floats(size_t count) { return static_cast<float*>(standin_allocate(0, count * sizeof(float))); }

std::string races() { return standin_races(); }

// What a call was told, and whether it says so in these words.
bool says(const Status& status, hvd_code code, const char* words) {
  const bool as_expected = status.code() == code && status.text().find(words) != std::string::npos;
  if (!as_expected) std::printf("got code %d: %s\n", status.code(), status.text().c_str());
  return as_expected;
}

// A GPU gives NaNs other bits than the CPU's kernels.
bool equal_but_for_nans(DataType dtype, const std::byte* one, const std::byte* other, int64_t count) {
  const size_t size = element_size(dtype);
  const uint64_t infinity = dtype == HVD_FLOAT16    ? 0x7c00
                            : dtype == HVD_BFLOAT16 ? 0x7f80
                            : dtype == HVD_FLOAT32  ? 0x7f800000
                                                    : 0x7ff0000000000000;
  const uint64_t magnitude = (uint64_t{1} << (8 * size - 1)) - 1;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t a = 0, b = 0;
    std::memcpy(&a, one + static_cast<size_t>(i) * size, size);
    std::memcpy(&b, other + static_cast<size_t>(i) * size, size);
    if (a != b && ((a & magnitude) <= infinity || (b & magnitude) <= infinity)) return false;
  }
  return true;
}

}  // namespace

TEST(the_stand_in_has_the_functions_that_are_looked_up_and_no_others) {
  std::set<std::string> wanted, there;
  for (const char* name : cuda::names_of_functions()) wanted.insert(name);
  for (int i = 0; standin_function(i) != nullptr; ++i) there.insert(standin_function(i));
  EXPECT(wanted == there);
}

TEST(a_driver_is_opened_from_11_3_on) {
  for (const int version : {11030, 11080, 12050, 13000}) {
    standin_driver_version(version);
    std::shared_ptr<const cuda::Driver> driver;
    EXPECT(cuda::Driver::open(HVD_STANDIN, &driver).ok());
    EXPECT(driver != nullptr && driver->version() == version);
  }
  standin_driver_version(11020);
  std::shared_ptr<const cuda::Driver> driver;
  EXPECT(says(cuda::Driver::open(HVD_STANDIN, &driver), HVD_UNAVAILABLE, "CUDA 11.2, and 11.3 is the oldest"));
  standin_driver_version(13000);
  EXPECT(says(cuda::Driver::open("/no/such/libcuda.so.1", &driver), HVD_UNAVAILABLE, "/no/such/libcuda.so.1"));
  EXPECT(driver == nullptr);
}

TEST(a_device_that_is_not_there_is_named) {
  Device* opened = nullptr;
  EXPECT(says(Device::get(HVD_STANDIN, STANDIN_DEVICES, &opened), HVD_UNAVAILABLE, "there is no GPU 4"));
  EXPECT(opened == nullptr);
}

TEST(an_address_tells_its_device) {
  int where = 7;
  std::byte on_host{};
  EXPECT(cuda::device_of(HVD_STANDIN, &on_host, &where).ok() && where == -1);
  void* const memory = standin_allocate(2, 16);
  EXPECT(cuda::device_of(HVD_STANDIN, static_cast<std::byte*>(memory) + 8, &where).ok() && where == 2);
  standin_free(memory);
}

TEST(a_stream_tells_its_device) {
  int where = 7;
  EXPECT(cuda::device_of_stream(HVD_STANDIN, framework_stream(2), &where).ok() && where == 2);
  for (const uintptr_t number : {0, 1, 2}) {  // the default streams
    const auto stream = reinterpret_cast<Stream>(number);
    EXPECT(says(cuda::device_of_stream(HVD_STANDIN, stream, &where), HVD_INTERNAL, "cuStreamGetCtx failed"));
    const cuda::Current current(device(1).driver(), device(1).context());
    EXPECT(cuda::device_of_stream(HVD_STANDIN, stream, &where).ok() && where == 1);
    where = 7;
  }
}

TEST(a_wait_stays_one_for_the_record_that_it_saw_whatever_the_event_is_used_for_then) {
  const Stream first = framework_stream(), second = framework_stream(), third = framework_stream();
  float *const values = floats(16), *const copy = floats(16);
  standin_hold(first);
  standin_fill(first, values, 16, 3);
  {
    Event done;
    EXPECT(device().record(first, &done).ok());
    EXPECT(device().wait(second, done).ok());
  }
  standin_copy(second, copy, values, 16 * sizeof(float));
  Event again;  // the pool gives the same one
  EXPECT(device().record(third, &again).ok());
  standin_drain(third);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the second one could go on if it did not wait
  standin_release(first);
  standin_drain(second);
  EXPECT(copy[15] == 3);
  EXPECT(races().empty());
}

TEST(work_goes_in_the_order_of_events_while_the_host_goes_on) {
  const Stream theirs = framework_stream(), ours = our_stream();
  float *const gradient = floats(1000), *const result = floats(1000);
  standin_hold(theirs);
  standin_fill(theirs, gradient, 1000, 3);
  Event ready, done;
  EXPECT(device().record(theirs, &ready).ok());
  EXPECT(device().wait(ours, ready).ok());
  EXPECT(device().copy(result, gradient, 4000, ours).ok());
  EXPECT(device().record(ours, &done).ok());
  bool is_done = true;
  EXPECT(device().is_done(done, &is_done).ok() && !is_done);
  EXPECT(std::isnan(result[999]) || result[999] != 3);
  standin_release(theirs);
  standin_drain(ours);
  EXPECT(device().is_done(done, &is_done).ok() && is_done);
  EXPECT(result[999] == 3);
  EXPECT(races().empty());
}

TEST(a_wait_that_is_missing_is_found_whatever_the_timing) {
  const Stream theirs = framework_stream(), ours = our_stream();
  float *const gradient = floats(8), *const result = floats(8);
  standin_fill(theirs, gradient, 8, 1);
  standin_drain(theirs);  // by luck it has run
  EXPECT(device().copy(result, gradient, 32, ours).ok());
  standin_drain(ours);
  EXPECT(result[7] == 1);
  EXPECT(races().find("copy on stream") == 0);
  // The other side: the result is read without a wait, and its memory used again.
  standin_forget();
  EXPECT(device().copy(result, gradient, 32, ours).ok());
  standin_drain(ours);
  standin_fill(theirs, result, 8, 2);
  EXPECT(races().find("fill on stream") == 0);
  standin_drain(theirs);
  standin_drain(ours);
  standin_forget();
}

TEST(an_event_orders_what_came_before_it_and_nothing_later) {
  const Stream theirs = framework_stream(), ours = our_stream();
  float *const gradient = floats(8), *const result = floats(8);
  Event too_early;
  EXPECT(device().record(theirs, &too_early).ok());
  standin_fill(theirs, gradient, 8, 1);
  standin_drain(theirs);
  EXPECT(device().wait(ours, too_early).ok());
  EXPECT(device().copy(result, gradient, 32, ours).ok());
  EXPECT(!races().empty());
  standin_drain(theirs);
  standin_drain(ours);
  standin_forget();
}

TEST(what_the_host_has_seen_end_comes_before_all_that_follows) {
  const Stream theirs = framework_stream(), ours = our_stream();
  float* const gradient = floats(8);
  standin_fill(theirs, gradient, 8, 1);
  Event end;
  EXPECT(device().record(theirs, &end).ok());
  bool done = false;
  while (!done) EXPECT(device().is_done(end, &done).ok());
  EXPECT(device().zero(gradient, 32, ours).ok());
  EXPECT(races().empty());
  standin_drain(ours);
  EXPECT(gradient[0] == 0);
}

TEST(events_are_used_again) {
  const Stream ours = our_stream();
  {
    Event first;
    EXPECT(device().record(ours, &first).ok());
  }
  const int64_t events = standin_count().events;
  for (int i = 0; i < 1000; ++i) {
    Event one, other;
    EXPECT(device().record(ours, &one).ok() && device().record(ours, &other).ok());
    one = std::move(other);
  }
  EXPECT(standin_count().events <= events + 2);
}

TEST(streams_are_made_once) {
  const Stream first = our_stream(0), second = our_stream(1);
  EXPECT(first != second);
  const int64_t streams = standin_count().streams;
  EXPECT(our_stream(0) == first && our_stream(1) == second);
  EXPECT(standin_count().streams == streams);
}

TEST(device_memory_comes_and_goes_in_the_order_of_its_stream) {
  const Stream ours = our_stream();
  const int64_t before = standin_count().allocations;
  {
    cuda::DeviceMemory scratch;
    EXPECT(device().allocate(1 << 20, ours, &scratch).ok());
    EXPECT(device().zero(scratch.data(), 1 << 20, ours).ok());
    standin_hold(ours);
  }
  EXPECT(standin_count().allocations == before + 1);
  standin_release(ours);
  standin_drain(ours);
  EXPECT(standin_count().allocations == before);
  EXPECT(races().empty());
  standin_fail("cuMemAllocAsync", 0, 2, 1);
  cuda::DeviceMemory none;
  EXPECT(says(device().allocate(64, ours, &none), HVD_OUT_OF_MEMORY, "cuMemAllocAsync failed: CUDA error 2"));
}

TEST(copies_to_pinned_memory_do_not_make_the_host_wait) {
  const Stream ours = our_stream();
  const int64_t before = standin_count().pageable_copies;
  cuda::PinnedMemory slot;
  EXPECT(device().pin(5000, &slot).ok());
  EXPECT(slot.bytes() >= 5000);
  float* const gradient = floats(8);
  standin_hold(ours);
  standin_fill(ours, gradient, 8, 4);
  EXPECT(device().copy(slot.data(), gradient, 32, ours).ok());
  standin_release(ours);
  standin_drain(ours);
  EXPECT(reinterpret_cast<float*>(slot.data())[7] == 4);
  EXPECT(standin_count().pageable_copies == before);
  EXPECT(standin_count().pinned == 1);
  slot = {};
}

// Else a page that the parent writes to would become another one than the GPU's.
TEST(pinned_memory_is_not_shared_with_a_forked_child) {
  if (kEmulated) return;  // no MADV_DONTFORK
  cuda::PinnedMemory slot;
  EXPECT(device().pin(5000, &slot).ok());
  int ends[2];
  EXPECT(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) _exit(write(ends[1], slot.data(), 1) == -1 && errno == EFAULT ? 0 : 1);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(pinned_memory_goes_to_another_stream_once_the_first_is_done_with_it) {
  Stream first = nullptr, second = nullptr;
  EXPECT(device().stream(0, &first).ok() && device().stream(1, &second).ok());
  float *const result = floats(8), *const input = floats(8);
  standin_hold(first);
  {
    cuda::Staging lent;
    EXPECT(device().lend(100, first, &lent).ok());
    EXPECT(device().copy(result, lent.data(), 32, first).ok());
  }
  {
    cuda::Staging lent;
    EXPECT(device().lend(100, second, &lent).ok());
    EXPECT(device().copy(lent.data(), input, 32, second).ok());
  }
  standin_release(first);
  standin_drain(first);
  standin_drain(second);
  EXPECT(std::string(standin_races()).empty());
}

TEST(every_thread_has_a_context_when_it_calls) {
  const Stream ours = our_stream();
  float* const memory = floats(8);
  std::thread([&] {
    Event event;
    EXPECT(device().record(ours, &event).ok());
    EXPECT(device().zero(memory, 32, ours).ok());
  }).join();
  EXPECT(standin_count().allocations > 0);
  standin_drain(ours);
  // The stand-in minds if none is.
  cuda::EventHandle event = nullptr;
  EXPECT(device().driver().call().make_event(&event, cuda::kDisableTiming) == 201);
}

TEST(a_failure_has_the_codes_name) {
  standin_fail("cuEventQuery", 1, 719, 1);
  Event event;
  EXPECT(device().record(our_stream(), &event).ok());
  bool done = false;
  EXPECT(device().is_done(event, &done).ok());
  EXPECT(says(device().is_done(event, &done), HVD_DEVICE_LOST,
              "cuEventQuery failed: CUDA error 719 (CUDA_ERROR_LAUNCH_FAILED"));
  EXPECT(device().is_done(event, &done).ok());
  standin_drain(our_stream());
}

TEST(pieces_of_all_sizes_and_alignments_are_copied_in_few_launches) {
  const Stream ours = our_stream();
  constexpr size_t kPieces = 400;
  auto* const from = static_cast<std::byte*>(standin_allocate(0, 1 << 20));
  auto* const to = static_cast<std::byte*>(standin_allocate(0, 1 << 20));
  for (size_t i = 0; i < 1 << 20; ++i) from[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::vector<cuda::Piece> pieces;
  size_t at = 0;
  for (size_t i = 0; i < kPieces; ++i) {
    const size_t bytes = i % 97 + (i % 5 == 0 ? 1024 : 0);
    pieces.push_back({from + at, to + at + (i % 3), bytes});
    at += (bytes + 18) / 16 * 16 + (i % 7 == 0 ? 1 : 0);
  }
  const int64_t launches = standin_count().launches;
  EXPECT(device().copy_pieces(pieces, ours).ok());
  standin_drain(ours);
  for (const cuda::Piece& piece : pieces) EXPECT(std::memcmp(piece.to, piece.from, piece.count) == 0);
  EXPECT(standin_count().launches - launches <= 6);
  EXPECT(races().empty());
}

TEST(scales_have_the_bits_of_the_cpus_kernels) {
  const Stream ours = our_stream();
  Kernels kernels;
  EXPECT(Kernels::create(InstructionSet::kBest, &kernels).ok());
  for (const DataType dtype : {HVD_FLOAT16, HVD_BFLOAT16, HVD_FLOAT32, HVD_FLOAT64}) {
    for (const double factor : {0.5, 1.0 / 3, 3.0, 1e-3}) {
      constexpr int64_t kCount = 5000;
      const reference::Bytes values = random_tensors::data_of(dtype, kCount, 11, 0);
      auto* const on_device = static_cast<std::byte*>(standin_allocate(0, values.size()));
      std::memcpy(on_device, values.data(), values.size());
      const cuda::Piece piece{on_device, on_device, kCount};
      EXPECT(device().scale_pieces({&piece, 1}, dtype, factor, ours).ok());
      standin_drain(ours);
      reference::Bytes expected(values.size());
      const std::byte* const inputs[] = {values.data()};
      kernels.fold({dtype, HVD_SUM, 1.0, factor, 1}, inputs, kCount, {expected.data()});
      EXPECT(equal_but_for_nans(dtype, on_device, expected.data(), kCount));
      standin_free(on_device);
    }
  }
}

TEST_MAIN
