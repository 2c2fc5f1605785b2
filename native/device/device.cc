// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <new>
#include <utility>

#include "device/kernels.ptx.h"
#include "platform/warning.h"

namespace hvd::cuda {

namespace {

constexpr size_t kPiecesOfLaunch = 160;  // as a kernel's parameters, which have at most 4 KiB
constexpr size_t kWide = 16;             // bytes that a thread copies at once
constexpr unsigned kThreads = 256;
constexpr size_t kBlocksOfPiece = 64;  // at most

struct Table {
  Piece pieces[kPiecesOfLaunch];
};
static_assert(sizeof(Piece) == 24 && sizeof(Table) == 24 * kPiecesOfLaunch);

bool is_wide(const void* address) { return reinterpret_cast<uintptr_t>(address) % kWide == 0; }

// Warns of an error in a place that cannot return one.
void report(const Status& status) {
  if (!status.ok()) warn(status.text(), false);
}

}  // namespace

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(order_, other.order_);
  return *this;
}

Event::~Event() {
  if (handle_ != nullptr) device_->keep(handle_);
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(address_, other.address_);
  std::swap(stream_, other.stream_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  const Current current(device_->driver(), device_->context());
  report(current.status());
  report(device_->driver().checked(device_->driver().call().free(address_, stream_), "cuMemFreeAsync"));
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PinnedMemory::~PinnedMemory() {
  if (memory_ == nullptr) return;
  const Current current(device_->driver(), device_->context());
  report(current.status());
  report(device_->driver().checked(device_->driver().call().unpin(memory_), "cuMemHostUnregister"));
  munmap(memory_, bytes_);
}

Staging& Staging::operator=(Staging&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(memory_, other.memory_);
  std::swap(stream_, other.stream_);
  return *this;
}

Staging::~Staging() {
  if (device_ != nullptr) report(device_->take_back(std::move(memory_), stream_));
}

static Status open_once(const std::string& library, std::shared_ptr<const Driver>* out) {
  static std::mutex guard;
  static std::shared_ptr<const Driver> driver;
  const std::lock_guard lock(guard);
  if (driver == nullptr) HVD_RETURN_IF_ERROR(Driver::open(library, &driver));
  *out = driver;
  return {};
}

static Status initialized(const std::string& library, std::shared_ptr<const Driver>* out) {
  int devices = 0;
  HVD_RETURN_IF_ERROR(open_once(library, out));
  return (*out)->count_devices(&devices);  // initializes CUDA
}

Status device_of(const std::string& library, const void* address, int* device) {
  std::shared_ptr<const Driver> driver;
  HVD_RETURN_IF_ERROR(initialized(library, &driver));
  // The plural form: of memory that CUDA does not know, it says so by zeros and not by an error.
  unsigned type = 0;
  int ordinal = -1;
  int which[] = {kMemoryType, kDeviceOrdinal};
  void* values[] = {&type, &ordinal};
  HVD_RETURN_IF_ERROR(driver->checked(driver->call().attributes(2, which, values, reinterpret_cast<Address>(address)),
                                      "cuPointerGetAttributes"));
  *device = type == kDeviceMemory ? ordinal : -1;
  return {};
}

Status device_of_stream(const std::string& library, Stream stream, int* device) {
  std::shared_ptr<const Driver> driver;
  HVD_RETURN_IF_ERROR(initialized(library, &driver));
  Context context = nullptr;
  HVD_RETURN_IF_ERROR(driver->checked(driver->call().context_of(stream, &context), "cuStreamGetCtx"));
  const Current current(*driver, context);
  HVD_RETURN_IF_ERROR(current.status());
  return driver->checked(driver->call().current_device(device), "cuCtxGetDevice");
}

Status Device::get(const std::string& library, Ordinal ordinal, Device** out) {
  static std::mutex guard;
  // To the very end of the process: the driver has no good end.
  static auto& devices = *new std::map<Ordinal, Device*>;
  const std::lock_guard lock(guard);
  Device*& device = devices[ordinal];
  if (device == nullptr) {
    std::shared_ptr<const Driver> driver;
    HVD_RETURN_IF_ERROR(open_once(library, &driver));
    std::unique_ptr<Device> opened(new Device(driver, ordinal));
    HVD_RETURN_IF_ERROR(opened->open());
    device = opened.release();
  }
  *out = device;
  return {};
}

Status Device::open() {
  int count = 0;
  HVD_RETURN_IF_ERROR(driver_->count_devices(&count));
  if (ordinal_ < 0 || ordinal_ >= count) {
    return {HVD_UNAVAILABLE, "there is no GPU " + std::to_string(ordinal_) + ": this process sees " +
                                 std::to_string(count) + "\nhint: look at CUDA_VISIBLE_DEVICES"};
  }
  const Functions& call = driver_->call();
  Ordinal device = 0;
  HVD_RETURN_IF_ERROR(driver_->checked(call.device(&device, ordinal_), "cuDeviceGet"));
  // Never released: it is the context of all frameworks in this process.
  HVD_RETURN_IF_ERROR(driver_->checked(call.retain_context(&context_, device), "cuDevicePrimaryCtxRetain"));
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  int lowest = 0;
  HVD_RETURN_IF_ERROR(driver_->checked(call.priority_range(&lowest, &priority_), "cuCtxGetStreamPriorityRange"));
  // Now, and not at the first use: loading may wait for kernels, and those of NCCL for other ranks.
  Module module = nullptr;
  HVD_RETURN_IF_ERROR(driver_->checked(call.load(&module, kKernelText), "cuModuleLoadData"));
  constexpr const char* kNames[kKernels] = {"hvd_copy_16",    "hvd_copy_1",    "hvd_scale_f16",
                                            "hvd_scale_bf16", "hvd_scale_f32", "hvd_scale_f64"};
  for (size_t k = 0; k < kKernels; ++k) {
    HVD_RETURN_IF_ERROR(driver_->checked(call.function(&kernels_[k], module, kNames[k]), "cuModuleGetFunction"));
  }
  return {};
}

Status Device::uuid(char (&out)[16]) const {
  Ordinal device = 0;
  HVD_RETURN_IF_ERROR(driver_->checked(driver_->call().device(&device, ordinal_), "cuDeviceGet"));
  return driver_->checked(driver_->call().uuid(out, device), "cuDeviceGetUuid");
}

Status Device::stream(size_t number, Stream* out) {
  const std::lock_guard lock(mutex_);
  while (streams_.size() <= number) {
    const Current current(*driver_, context_);
    HVD_RETURN_IF_ERROR(current.status());
    Stream made = nullptr;
    HVD_RETURN_IF_ERROR(
        driver_->checked(driver_->call().make_stream(&made, kNonBlocking, priority_), "cuStreamCreateWithPriority"));
    streams_.push_back(made);
  }
  *out = streams_[number];
  return {};
}

Status Device::record(Stream stream, Event* out) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  EventHandle handle = nullptr;
  Status status;
  uint64_t order = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_events_.empty()) {
      handle = idle_events_.back();
      idle_events_.pop_back();
    } else {
      HVD_RETURN_IF_ERROR(driver_->checked(driver_->call().make_event(&handle, kDisableTiming), "cuEventCreate"));
    }
    status = driver_->checked(driver_->call().record(handle, stream), "cuEventRecord");
    order = ++events_recorded_;
  }
  *out = Event(this, handle, order);  // also if it failed: it goes back to the pool
  return status;
}

void Device::keep(EventHandle event) {
  const std::lock_guard lock(mutex_);
  idle_events_.push_back(event);
}

Status Device::wait(Stream stream, const Event& event) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  return driver_->checked(driver_->call().wait_event(stream, event.handle(), 0), "cuStreamWaitEvent");
}

Status Device::is_done(const Event& event, bool* done) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  const Result code = driver_->call().query(event.handle());
  *done = code == kSuccess;
  return code == kNotReady ? Status() : driver_->checked(code, "cuEventQuery");
}

Status Device::allocate(size_t bytes, Stream stream, DeviceMemory* out) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  Address address = 0;
  HVD_RETURN_IF_ERROR(driver_->checked(driver_->call().allocate(&address, bytes, stream), "cuMemAllocAsync"));
  *out = DeviceMemory(this, address, stream);
  return {};
}

Status Device::pin(size_t bytes, PinnedMemory* out) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  const size_t rounded = (bytes + page - 1) / page * page;
  void* const memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  // Shared with a forked child, a page that this process writes to would become another one than the GPU's.
  madvise(memory, rounded, MADV_DONTFORK);
  if (Status status = driver_->checked(driver_->call().pin(memory, rounded, kPortable), "cuMemHostRegister");
      !status.ok()) {
    munmap(memory, rounded);
    return status;
  }
  *out = PinnedMemory();
  out->device_ = this;
  out->memory_ = static_cast<std::byte*>(memory);
  out->bytes_ = rounded;
  return {};
}

Status Device::lend(size_t bytes, Stream stream, Staging* out) {
  constexpr size_t kLeast = 1 << 20;  // sizes are powers of two from here on, so that few of them come up
  const size_t rounded = std::bit_ceil(std::max(bytes, kLeast));
  std::vector<Lent> outgrown;  // freed without the lock
  PinnedMemory memory;
  {
    const std::lock_guard lock(mutex_);
    for (auto lent = returned_.begin(); lent != returned_.end() && memory.bytes() == 0;) {
      bool idle = false;
      HVD_RETURN_IF_ERROR(is_done(lent->busy_until, &idle));
      if (!idle) {
        ++lent;
        continue;
      }
      if (lent->memory.bytes() >= rounded) {
        memory = std::move(lent->memory);
      }
      outgrown.push_back(std::move(*lent));
      lent = returned_.erase(lent);
    }
  }
  if (memory.bytes() == 0) HVD_RETURN_IF_ERROR(pin(rounded, &memory));
  *out = Staging(this, std::move(memory), stream);
  return {};
}

Status Device::take_back(PinnedMemory memory, Stream stream) {
  Event busy_until;
  if (Status status = record(stream, &busy_until); !status.ok()) {
    new PinnedMemory(std::move(memory));  // the GPU may still use it: it stays
    return status;
  }
  const std::lock_guard lock(mutex_);
  returned_.push_back({std::move(memory), std::move(busy_until)});
  return {};
}

Status Device::copy(void* to, const void* from, size_t bytes, Stream stream) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  return driver_->checked(
      driver_->call().copy(reinterpret_cast<Address>(to), reinterpret_cast<Address>(from), bytes, stream),
      "cuMemcpyAsync");
}

Status Device::zero(void* at, size_t bytes, Stream stream) {
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  return driver_->checked(driver_->call().fill(reinterpret_cast<Address>(at), 0, bytes, stream), "cuMemsetD8Async");
}

Status Device::copy_pieces(std::span<const Piece> pieces, Stream stream) {
  std::vector<Piece> wide, narrow;
  for (const Piece& piece : pieces) {
    const uint64_t bulk = is_wide(piece.from) && is_wide(piece.to) ? piece.count / kWide : 0;
    const uint64_t done = bulk * kWide;
    if (bulk > 0) wide.push_back({piece.from, piece.to, bulk});
    if (piece.count > done) narrow.push_back({piece.from + done, piece.to + done, piece.count - done});
  }
  HVD_RETURN_IF_ERROR(launch(kCopyWide, wide, 1.0, stream));
  return launch(kCopyBytes, narrow, 1.0, stream);
}

Status Device::scale_pieces(std::span<const Piece> pieces, DataType dtype, double factor, Stream stream) {
  switch (dtype) {
    case HVD_FLOAT16:
      return launch(kScaleHalf, pieces, factor, stream);
    case HVD_BFLOAT16:
      return launch(kScaleBfloat16, pieces, factor, stream);
    case HVD_FLOAT32:
      return launch(kScaleFloat, pieces, factor, stream);
    case HVD_FLOAT64:
      return launch(kScaleDouble, pieces, factor, stream);
    default:
      return {HVD_INTERNAL, "no kernel scales this dtype"};
  }
}

Status Device::launch(Kernel kernel, std::span<const Piece> pieces, double factor, Stream stream) {
  if (pieces.empty()) return {};
  const Current current(*driver_, context_);
  HVD_RETURN_IF_ERROR(current.status());
  for (size_t start = 0; start < pieces.size(); start += kPiecesOfLaunch) {
    const std::span<const Piece> some = pieces.subspan(start, std::min(kPiecesOfLaunch, pieces.size() - start));
    Table table{};
    std::copy(some.begin(), some.end(), table.pieces);
    uint64_t longest = 0;
    for (const Piece& piece : some) longest = std::max(longest, piece.count);
    const auto blocks =
        static_cast<unsigned>(std::clamp<uint64_t>((longest + kThreads - 1) / kThreads, 1, kBlocksOfPiece));
    void* parameters[] = {&table, &factor};
    HVD_RETURN_IF_ERROR(
        driver_->checked(driver_->call().launch(kernels_[kernel], blocks, static_cast<unsigned>(some.size()), 1,
                                                kThreads, 1, 1, 0, stream, parameters, nullptr),
                         "cuLaunchKernel"));
  }
  return {};
}

}  // namespace hvd::cuda
