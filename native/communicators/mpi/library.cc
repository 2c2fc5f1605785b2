// SPDX-License-Identifier: Apache-2.0
// Opening the MPI that mpi4py has loaded (step 7).
#include "communicators/mpi/library.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>

namespace hvd::mpi {

namespace {

constexpr size_t kLongestText = 8192;  // beyond every MPI_MAX_ERROR_STRING

std::mutex guard;
std::string why = "nothing has been said of MPI yet";  // guarded
std::optional<Library> opened;                         // guarded while it is being filled

template <class Function>
bool find(void* handle, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(handle, name));
  return *out != nullptr;
}

Status find_all(const char* path, Functions* out) {
  // dlsym goes on to what the module depends on: that is the right MPI, whatever its name and place.
  void* const handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) return {HVD_UNAVAILABLE, std::string(path) + " has not been loaded"};
  const char* missing = nullptr;
#define HVD_FIND(name) \
  if (!find(handle, "MPI_" #name, &out->name)) missing = "MPI_" #name;
  HVD_FIND(Comm_group)
  HVD_FIND(Group_incl)
  HVD_FIND(Group_free)
  HVD_FIND(Comm_create_group)
  HVD_FIND(Comm_free)
  HVD_FIND(Isend)
  HVD_FIND(Irecv)
  HVD_FIND(Iprobe)
  HVD_FIND(Test)
  HVD_FIND(Error_string)
  HVD_FIND(Finalized)
#undef HVD_FIND
  if (missing == nullptr) return {};
  return {HVD_UNAVAILABLE, std::string("the MPI behind ") + path + " has no " + missing};
}

}  // namespace

Status use(const hvd_mpi& given) {
  const std::scoped_lock lock(guard);
  if (given.why != nullptr) {
    why = given.why;
    return {};
  }
  why.clear();
  if (given.path == nullptr) return {};  // MPI is available, but not needed yet
  Library library{};
  HVD_RETURN_IF_ERROR(find_all(given.path, &library.call));
  library.world = static_cast<Handle>(given.world);
  library.byte = static_cast<Handle>(given.byte);
  library.version = given.version == nullptr ? "" : given.version;
  opened = std::move(library);
  return {};
}

std::string why_unavailable() {
  const std::scoped_lock lock(guard);
  return why;
}

const Library* library() {
  const std::scoped_lock lock(guard);
  return opened ? &*opened : nullptr;
}

Status checked(const Library& mpi, int code, const char* function) {
  if (code == kSuccess) return {};
  std::string text(kLongestText, '\0');
  int length = 0;
  mpi.call.Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  return {HVD_INTERNAL, std::string("MPI_") + function + " failed: " + text};
}

}  // namespace hvd::mpi
