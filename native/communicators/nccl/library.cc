// SPDX-License-Identifier: Apache-2.0
// Finding the NCCL of this process (step 7).
#include "communicators/nccl/library.h"

#include <dlfcn.h>

#include <string>

namespace hvd::nccl {

namespace {

constexpr char kLibrary[] = "libnccl.so.2";
constexpr int kOldest = 21400;  // it has configurations of communicators

Status unavailable(const std::string& why) { return {HVD_UNAVAILABLE, "NCCL cannot be used: " + why}; }

// Null with `why` set if there is none.
void* find_library(const LibraryPlaces& places, std::string* why) {
  if (!places.named.empty()) {
    void* const named = dlopen(places.named.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (named == nullptr) *why = dlerror();
    return named;
  }
  if (void* const loaded = dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  if (dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) return dlopen(nullptr, RTLD_NOW);
  if (void* const found = places.found.empty() ? nullptr : dlopen(places.found.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    return found;
  }
  void* const plain = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (plain == nullptr) *why = dlerror();
  return plain;
}

template <class Pointer>
bool find(void* library, const char* name, Pointer* out) {
  *out = reinterpret_cast<Pointer>(dlsym(library, name));
  return *out != nullptr;
}

}  // namespace

std::string version_in_words(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

Status Library::open(const LibraryPlaces& places, std::shared_ptr<const Library>* out) {
  std::string why;
  void* const handle = find_library(places, &why);
  if (handle == nullptr) return unavailable(why);
  auto library = std::make_shared<Library>();
  Functions& call = library->call_;
  if (!find(handle, "ncclGetVersion", &call.get_version) || call.get_version(&library->version_) != kSuccess) {
    return unavailable("it does not tell its version");
  }
  Dl_info where{};
  if (dladdr(reinterpret_cast<void*>(call.get_version), &where) != 0) library->path_ = where.dli_fname;
  if (library->version_ < kOldest) {  // before 2.9 they were counted in another way, below this in any case
    return unavailable(library->path_ + " is version " + version_in_words(library->version_) + ", and " +
                       version_in_words(kOldest) + " is the oldest that works\nhint: install a newer nvidia-nccl");
  }
  const char* missing = nullptr;
#define HVD_NCCL_FIND(member, name, parameters) \
  if (!find(handle, name, &call.member)) missing = name;
  HVD_NCCL_FUNCTIONS(HVD_NCCL_FIND)
#undef HVD_NCCL_FIND
  if (!find(handle, "ncclGetErrorString", &call.error_text)) missing = "ncclGetErrorString";
  if (!find(handle, "ncclGetLastError", &call.last_error)) missing = "ncclGetLastError";
  if (missing != nullptr) return unavailable(library->path_ + " has no " + missing);
  *out = std::move(library);
  return {};
}

Status Library::checked(Result code, const char* doing, Comm comm) const {
  if (code == kSuccess || code == kInProgress) return {};
  std::string text =
      std::string(doing) + " failed: NCCL error " + std::to_string(code) + " (" + call_.error_text(code) + ")";
  if (const char* const last = call_.last_error(comm); last != nullptr && *last != '\0') {
    text += std::string(": ") + last;
  }
  return {code == kRemoteError ? HVD_RANK_LOST : HVD_INTERNAL, text};
}

std::span<const char* const> names_of_functions() {
#define HVD_NCCL_NAME(member, name, parameters) name,
  static constexpr const char* kNames[] = {HVD_NCCL_FUNCTIONS(HVD_NCCL_NAME) "ncclGetErrorString", "ncclGetLastError"};
#undef HVD_NCCL_NAME
  return kNames;
}

}  // namespace hvd::nccl
