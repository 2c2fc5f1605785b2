// SPDX-License-Identifier: Apache-2.0
// Opening the CUDA driver.
#include "device/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <iterator>

namespace hvd::cuda {

namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kOldest = 11030;   // it has cuGetProcAddress
constexpr uint64_t kLegacy = 1;  // a stream handle of 0 means the legacy default stream

std::string in_words(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

constexpr Result kOutOfMemory = 2;

// After these, every call of the process fails: memory that cannot be corrected, a link that is down, a kernel that has
// failed, and what a GPU that is gone answers.
bool is_the_end(Result code) {
  constexpr Result kCodes[] = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

Status unavailable(const std::string& path, const std::string& why) {
  return {HVD_UNAVAILABLE, "the CUDA driver (" + path + ") cannot be used: " + why};
}

// Asks the driver for the function with the signature of a version: its plain name may stand for an older one.
class Finder {
 public:
  Finder(void* library, int driver_version)
      : newer_(driver_version < kNewer ? nullptr : reinterpret_cast<Newer>(dlsym(library, "cuGetProcAddress_v2"))),
        older_(reinterpret_cast<Older>(dlsym(library, "cuGetProcAddress"))) {}

  bool usable() const { return newer_ != nullptr || older_ != nullptr; }
  template <class Pointer>
  bool find(const char* name, int version, Pointer* out) const {
    void* found = nullptr;
    const Result code =
        newer_ != nullptr ? newer_(name, &found, version, kLegacy, nullptr) : older_(name, &found, version, kLegacy);
    *out = reinterpret_cast<Pointer>(found);
    return code == kSuccess && found != nullptr;
  }

 private:
  static constexpr int kNewer = 12000;
  using Newer = Result (*)(const char*, void**, int, uint64_t, int*);
  using Older = Result (*)(const char*, void**, int, uint64_t);
  const Newer newer_;
  const Older older_;
};

}  // namespace

Status Driver::open(const std::string& path, std::shared_ptr<const Driver>* out) {
  const std::string name = path.empty() ? kLibrary : path;
  // Never closed: streams and threads of the driver outlive a generation.
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable(name, dlerror());
  const auto version_of = reinterpret_cast<Result (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  auto driver = std::make_shared<Driver>();
  if (version_of == nullptr || version_of(&driver->version_) != kSuccess) {
    return unavailable(name, "it does not tell its version");
  }
  const Finder finder(library, driver->version_);
  if (driver->version_ < kOldest || !finder.usable()) {
    return unavailable(name, "it is for CUDA " + in_words(driver->version_) + ", and " + in_words(kOldest) +
                                 " is the oldest that works\nhint: install a newer driver of the GPU");
  }
  const char* missing = nullptr;
#define HVD_CUDA_FIND(member, name, version, result, parameters) \
  if (!finder.find(name, version, &driver->call_.member)) missing = name;
  HVD_CUDA_FUNCTIONS(HVD_CUDA_FIND)
#undef HVD_CUDA_FIND
  if (missing != nullptr) return unavailable(name, std::string("it has no ") + missing);
  *out = std::move(driver);
  return {};
}

Status Driver::count_devices(int* count) const {
  Status status = checked(call_.init(0), "cuInit");
  if (status.ok()) status = checked(call_.device_count(count), "cuDeviceGetCount");
  return status.ok() ? status : Status(HVD_UNAVAILABLE, "no GPU can be used: " + status.text());
}

Status Driver::checked(Result code, const char* doing) const {
  if (code == kSuccess) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  if (call_.error_name(code, &name) != kSuccess || name == nullptr) name = "an unknown error";
  if (call_.error_text(code, &text) != kSuccess || text == nullptr) text = "no text";
  const std::string what =
      std::string(doing) + " failed: CUDA error " + std::to_string(code) + " (" + name + ", " + text + ")";
  if (code == kOutOfMemory) return {HVD_OUT_OF_MEMORY, what + ": the GPU's memory is full"};
  if (is_the_end(code)) return {HVD_DEVICE_LOST, what + ": this process cannot use the GPU any more"};
  return {HVD_INTERNAL, what};
}

std::span<const char* const> names_of_functions() {
#define HVD_CUDA_NAME(member, name, version, result, parameters) name,
  static constexpr const char* kNames[] = {"cuDriverGetVersion", HVD_CUDA_FUNCTIONS(HVD_CUDA_NAME)};
#undef HVD_CUDA_NAME
  return kNames;
}

Current::Current(const Driver& driver, Context context) : driver_(driver) {
  status_ = driver.checked(driver.call().push(context), "cuCtxPushCurrent");
  if (status_.ok())
    status_ = driver.checked(driver.call().exchange_capture_mode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

Current::~Current() {
  if (!status_.ok()) return;
  // A destructor cannot report a failure; the next call on this thread meets it again.
  Context popped = nullptr;
  (void)driver_.call().exchange_capture_mode(&mode_);
  (void)driver_.call().pop(&popped);
}

}  // namespace hvd::cuda
