// SPDX-License-Identifier: Apache-2.0
// Device: one GPU as this process uses it, with streams, events, memory and kernels. It lives as long as the process;
// nothing of it belongs to a generation.
//
// All calls may come from any thread, and none waits for the GPU. `Stream` is the driver's own handle: frameworks pass
// theirs. An address is device memory unless it says otherwise.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "device/driver.h"
#include "platform/status.h"
#include "reduction/types.h"

namespace hvd::cuda {

class Device;

// The number of the device in whose memory an address lies; -1: in none's. `library` as for Device::get.
Status device_of(const std::string& library, const void* address, int* device);
// The number of a stream's device. A default stream is the current context's; an error if this thread has none.
Status device_of_stream(const std::string& library, Stream stream, int* device);

// A moment in a stream. Its destructor returns it to the device's pool. That does not disturb streams that still wait
// for it: they wait for the moment that it marked when the wait was enqueued.
class Event {
 public:
  Event() = default;
  Event(Device* device, EventHandle handle, uint64_t order) : device_(device), handle_(handle), order_(order) {}
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event();

  explicit operator bool() const { return handle_ != nullptr; }
  EventHandle handle() const { return handle_; }
  // Of two events of one stream, the later one has the higher number.
  uint64_t order() const { return order_; }

 private:
  Device* device_ = nullptr;
  EventHandle handle_ = nullptr;
  uint64_t order_ = 0;
};

// Device memory that came in the order of a stream, and goes in that order.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Device* device, Address address, Stream stream) : device_(device), address_(address), stream_(stream) {}
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_); }
  // Another stream, which has waited for what was done to it, is the last one to use it.
  void use_on(Stream stream) { stream_ = stream; }

 private:
  Device* device_ = nullptr;
  Address address_ = 0;
  Stream stream_ = nullptr;
};

// Host memory that the GPU reads and writes while the host does other things. Nothing is under way in it in the end.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();

  std::byte* data() const { return memory_; }
  size_t bytes() const { return bytes_; }

 private:
  friend class Device;
  Device* device_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

// Pinned memory that is lent for work on one stream. Others get it once that work is done.
class Staging {
 public:
  Staging() = default;
  Staging(Device* device, PinnedMemory memory, Stream stream)
      : device_(device), memory_(std::move(memory)), stream_(stream) {}
  Staging(Staging&& other) noexcept { *this = std::move(other); }
  Staging& operator=(Staging&& other) noexcept;
  ~Staging();

  std::byte* data() const { return memory_.data(); }
  // Another stream, which has waited for what was done to it, is the last one to use it.
  void use_on(Stream stream) { stream_ = stream; }

 private:
  Device* device_ = nullptr;
  PinnedMemory memory_;
  Stream stream_ = nullptr;
};

// A piece of a launch, which sets to[i] = from[i], or from[i] * factor, for `count` elements.
struct Piece {
  const std::byte* from;
  std::byte* to;
  uint64_t count;
};

class Device {
 public:
  // The device of this number, opened on its first use. `library` as for Driver::open, and the same for all devices.
  static Status get(const std::string& library, Ordinal ordinal, Device** out);

  Ordinal ordinal() const { return ordinal_; }
  Status uuid(char (&out)[16]) const;  // the same number may mean another GPU in another process
  const Driver& driver() const { return *driver_; }
  Context context() const { return context_; }

  // The streams of ours: as many as are asked for, the same ones each time.
  Status stream(size_t number, Stream* out);

  Status record(Stream stream, Event* out);
  Status wait(Stream stream, const Event& event);
  Status is_done(const Event& event, bool* done);

  Status allocate(size_t bytes, Stream stream, DeviceMemory* out);
  Status pin(size_t bytes, PinnedMemory* out);
  Status lend(size_t bytes, Stream stream, Staging* out);
  // Either may be host memory: pinned, or the call waits.
  Status copy(void* to, const void* from, size_t bytes, Stream stream);
  Status zero(void* at, size_t bytes, Stream stream);

  // Many small copies as few launches; pieces count bytes. Their memory is apart.
  Status copy_pieces(std::span<const Piece> pieces, Stream stream);
  // As well, with a factor; float16, bfloat16 (in float32, rounded once), float32 and float64. In place if from == to.
  Status scale_pieces(std::span<const Piece> pieces, DataType dtype, double factor, Stream stream);

 private:
  friend class Event;
  friend class DeviceMemory;
  friend class PinnedMemory;
  friend class Staging;
  enum Kernel { kCopyWide, kCopyBytes, kScaleHalf, kScaleBfloat16, kScaleFloat, kScaleDouble, kKernels };

  Device(std::shared_ptr<const Driver> driver, Ordinal ordinal) : driver_(std::move(driver)), ordinal_(ordinal) {}
  Status open();
  Status launch(Kernel kernel, std::span<const Piece> pieces, double factor, Stream stream);
  void keep(EventHandle event);
  Status take_back(PinnedMemory memory, Stream stream);

  const std::shared_ptr<const Driver> driver_;
  const Ordinal ordinal_;
  Context context_ = nullptr;
  int priority_ = 0;
  std::array<Function, kKernels> kernels_{};

  std::mutex mutex_;
  std::vector<Stream> streams_;
  std::vector<EventHandle> idle_events_;
  uint64_t events_recorded_ = 0;
  struct Lent {
    PinnedMemory memory;
    Event busy_until;
  };
  std::vector<Lent> returned_;
};

}  // namespace hvd::cuda
