// SPDX-License-Identifier: Apache-2.0
#include "host/segment.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/clock.h"
#include "platform/memory_limit.h"

namespace hvd {

constexpr uint64_t kMagic = 0x32746e656d676573;  // "segment2"
constexpr size_t kPage = 4096;

struct Segment::Layout {
  explicit Layout(uint32_t local_size) {
    header = take(sizeof(SegmentHeader));
    ranks = take(sizeof(RankBlock) * local_size);
    rows = take(sizeof(uint64_t) * kMaxEntries * local_size);
    cells = take(sizeof(Cell) * kMaxEntries);
    log = take(sizeof(uint64_t) * kLogSlots);
    definitions = take(sizeof(SharedText) * kMaxEntries);
    errors = take(sizeof(SharedText) * kMaxEntries);
    rings = take(sizeof(RequestRing) * local_size);
    stacks = take(sizeof(StackPage) * local_size);
    pairs = take(sizeof(uint64_t) * local_size * (local_size - 1) / 2);
    arena = take(kArenaBytes);
    transport = take(0);
  }

  // Two builds that lay the memory out differently must not share it.
  static uint64_t fingerprint() {
    return HVD_ABI_VERSION * 1000003ull + sizeof(SegmentHeader) * 31 + sizeof(RankBlock) * 131 +
           sizeof(StackPage) * 257 + kMaxEntries * 7 + kLogSlots * 17 + kRingBytes + kArenaBytes;
  }

  size_t header, ranks, rows, cells, log, definitions, errors, rings, stacks, pairs, arena, transport;

 private:
  size_t take(size_t bytes) {
    const size_t offset = end_;
    end_ = (end_ + bytes + kPage - 1) / kPage * kPage;
    return offset;
  }
  size_t end_ = 0;
};

static Status no_memory(const std::string& text) {
  return {HVD_OUT_OF_MEMORY, text + "\nhint: give the job more memory, or place fewer ranks on this host"};
}

static Status system_error(const std::string& what) {
  const int error = errno;
  const std::string text = what + ": " + std::strerror(error);
  if (error == ENOSPC || error == ENOMEM) return no_memory(text);
  if (error == EFBIG)
    return {HVD_UNAVAILABLE, text + "\nhint: the limit of file sizes holds for shared memory too: ulimit -f unlimited"};
  if (error == EMFILE || error == ENFILE)
    return {HVD_UNAVAILABLE, text + "\nhint: raise the limit of open files: ulimit -n"};
  return {HVD_UNAVAILABLE, text};
}

// Where memfd_create is refused, by a container's seccomp profile for example. Nothing can open it: it takes no seal,
// but needs none against strangers.
static int nameless_file() {
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    const int file = open(folder, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file >= 0) return file;
  }
  return -1;
}

static bool is_nameless_file(const struct stat& facts) {
  return S_ISREG(facts.st_mode) && facts.st_nlink == 0 && (facts.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

// By its manual, fallocate may fail if a signal comes, such as a profiler's a thousand times a second.
static int allocate(int fd, uint64_t offset, size_t bytes) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = posix_fallocate(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

size_t Segment::whole_bytes(uint32_t local_size, size_t transport_bytes) {
  return Layout(local_size).transport + (transport_bytes + kPage - 1) / kPage * kPage;
}

Status Segment::create(uint64_t generation, uint32_t local_size, size_t transport_bytes,
                       std::unique_ptr<Segment>* out) {
  const size_t bytes = whole_bytes(local_size, transport_bytes);
  const std::string memory = std::to_string(bytes) + " bytes of shared memory";
  if (const MemoryLeft left = memory_left(); left.bytes < bytes) {
    return no_memory("cannot allocate " + memory + ": " + left.where + " has " + std::to_string(left.bytes) + " left");
  }
  int memfd = memfd_create("horovod", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool is_sealable = memfd >= 0;
  if (!is_sealable && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
    return system_error("cannot create shared memory");
  }
  if (!is_sealable) memfd = nameless_file();
  if (memfd < 0) {
    return {HVD_UNAVAILABLE, std::string("cannot create shared memory: memfd_create, /dev/shm and /tmp are refused (") +
                                 std::strerror(errno) +
                                 ")\nhint: let the container's seccomp profile allow memfd_create, or mount /dev/shm"};
  }
  // Allocated now: a full machine is an error here, not a SIGBUS in the middle of training.
  if (ftruncate(memfd, static_cast<off_t>(bytes)) != 0) {
    Status status = system_error("cannot create " + memory);
    close(memfd);
    return status;
  }
  if (const int error = allocate(memfd, 0, bytes); error != 0) {
    errno = error;
    Status status = system_error("cannot allocate " + memory);
    close(memfd);
    return status;
  }
  if (is_sealable && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
    Status status = system_error("cannot seal shared memory");
    close(memfd);
    return status;
  }
  HVD_RETURN_IF_ERROR(map(memfd, bytes, local_size, out));
  SegmentHeader& header = (*out)->header();
  header.magic = kMagic;
  header.layout = Layout::fingerprint();
  header.generation = generation;
  header.local_size = local_size;
  header.areas_end.store(bytes);
  return {};
}

Status Segment::attach(int memfd, uint64_t generation, uint32_t local_size, size_t transport_bytes,
                       std::unique_ptr<Segment>* out) {
  struct stat facts{};
  if (fstat(memfd, &facts) != 0) {
    Status status = system_error("cannot look at the shared memory");
    close(memfd);
    return status;
  }
  const size_t bytes = whole_bytes(local_size, transport_bytes);
  if (static_cast<size_t>(facts.st_size) != bytes) {
    close(memfd);
    return {HVD_UNAVAILABLE, "expects " + std::to_string(bytes) + " bytes of shared memory, got " +
                                 std::to_string(facts.st_size) +
                                 "\nhint: install the same version of Horovod for all ranks"};
  }
  // If the file could be truncated under the mapping, an access would end this process by SIGBUS.
  const int seals = fcntl(memfd, F_GET_SEALS);
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  if (!is_sealed && !is_nameless_file(facts)) {
    close(memfd);
    return {HVD_UNAVAILABLE, "sees shared memory that is not sealed"};
  }
  HVD_RETURN_IF_ERROR(map(memfd, bytes, local_size, out));
  const SegmentHeader& header = (*out)->header();
  if (header.magic != kMagic || header.layout != Layout::fingerprint()) {
    return {HVD_UNAVAILABLE, "sees shared memory that another version of this library laid out"};
  }
  if (header.generation != generation || header.local_size != local_size) {
    return {HVD_UNAVAILABLE, "sees shared memory of another job or another start"};
  }
  return {};
}

Status Segment::map(int memfd, size_t bytes, uint32_t local_size, std::unique_ptr<Segment>* out) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  if (base == MAP_FAILED) {
    Status status = system_error("cannot map " + std::to_string(bytes) + " bytes of shared memory");
    close(memfd);
    return status;
  }
  // A forked child is not a rank: without the mapping it cannot write into its parent's job, and it forks faster.
  madvise(base, bytes, MADV_DONTFORK);
  out->reset(new Segment(memfd, static_cast<std::byte*>(base), bytes, local_size));
  return {};
}

Segment::Segment(int memfd, std::byte* base, size_t bytes, uint32_t local_size)
    : memfd_(memfd), base_(base), bytes_(bytes) {
  const Layout layout(local_size);
  header_ = reinterpret_cast<SegmentHeader*>(base + layout.header);
  ranks_ = reinterpret_cast<RankBlock*>(base + layout.ranks);
  rows_ = reinterpret_cast<std::atomic<uint64_t>*>(base + layout.rows);
  cells_ = reinterpret_cast<Cell*>(base + layout.cells);
  log_ = reinterpret_cast<std::atomic<uint64_t>*>(base + layout.log);
  definitions_ = reinterpret_cast<SharedText*>(base + layout.definitions);
  errors_ = reinterpret_cast<SharedText*>(base + layout.errors);
  rings_ = reinterpret_cast<RequestRing*>(base + layout.rings);
  stacks_ = reinterpret_cast<StackPage*>(base + layout.stacks);
  pairs_ = reinterpret_cast<std::atomic<uint64_t>*>(base + layout.pairs);
  arena_ = base + layout.arena;
  transport_area_ = base + layout.transport;
}

Segment::~Segment() {
  munmap(base_, bytes_);
  close(memfd_);
}

Status Segment::take_area(size_t bytes, uint64_t* offset) {
  bytes = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(areas_mutex_);
  const auto fits = [&](const Area& area) { return !area.taken && area.bytes == bytes; };
  auto area = std::find_if(areas_.begin(), areas_.end(), fits);
  if (area == areas_.end()) area = areas_.insert(areas_.end(), {header_->areas_end.fetch_add(bytes), bytes, false});
  // Makes the file longer where the area is new, and fills the hole where it was given back.
  if (const int error = allocate(memfd_, area->offset, area->bytes); error != 0) {
    errno = error;
    return system_error("cannot allocate " + std::to_string(bytes >> 20) + " MiB of shared memory for a process set");
  }
  area->taken = true;
  *offset = area->offset;
  return {};
}

void Segment::release_area(uint64_t offset) {
  const std::lock_guard lock(areas_mutex_);
  for (Area& area : areas_) {
    if (area.offset != offset || !area.taken) continue;
    // If the hole cannot be punched, the area would not be zeros when it is taken again. It then stays taken for good.
    const auto begin = static_cast<off_t>(area.offset), length = static_cast<off_t>(area.bytes);
    area.taken = fallocate(memfd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, length) != 0;
  }
}

Status Segment::map_area(uint64_t offset, size_t bytes, std::shared_ptr<std::byte>* out) {
  // The leader's word; an access beyond the end would be a SIGBUS.
  struct stat facts{};
  if (fstat(memfd_, &facts) != 0) return system_error("cannot look at the shared memory");
  const auto end = static_cast<uint64_t>(facts.st_size);
  if (offset % kPage != 0 || offset > end || bytes > end - offset) {
    return {HVD_UNAVAILABLE, "the area of a process set does not lie in the shared memory"};
  }
  const std::lock_guard lock(mapped_mutex_);
  std::weak_ptr<std::byte>& known = mapped_[offset];
  if (*out = known.lock(); *out != nullptr) return {};
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_, static_cast<off_t>(offset));
  if (base == MAP_FAILED) return system_error("cannot map the shared memory of a process set");
  madvise(base, bytes, MADV_DONTFORK);
  out->reset(static_cast<std::byte*>(base), [bytes](std::byte* mapped) { munmap(mapped, bytes); });
  known = *out;
  return {};
}

uint64_t Segment::slowest_cursor(bool of_joined) const {
  uint64_t slowest = UINT64_MAX;
  for (uint32_t r = 0; r < local_size(); ++r) {
    const RankBlock& rank = ranks_[r];
    if (rank.left.load(std::memory_order_acquire) == 0 && (!of_joined || rank.joined.load() != 0)) {
      slowest = std::min(slowest, rank.cursor.load(std::memory_order_acquire));
    }
  }
  return slowest;
}

bool Segment::log_has_room() {
  const uint64_t slowest = slowest_cursor(false);
  // The tail is a hint that trails behind the slots: readers may be beyond it. The margin is for the appenders that
  // pass this check at the same time.
  const uint64_t tail = header_->tail.load(std::memory_order_acquire);
  return tail <= slowest || tail - slowest < kLogSlots - 512;
}

bool Segment::write(SharedText* where, std::string_view text) {
  uint64_t offset = where->offset_and_length.load(std::memory_order_relaxed) >> 24;
  uint64_t& capacity = capacity_[where];
  if (text.size() > capacity) {
    const uint64_t wanted = Arena::piece_bytes(text.size());
    if (text.size() > 0xffffff) return false;
    if (capacity > 0) free_.give_back(offset, std::exchange(capacity, 0));
    const std::optional<uint64_t> found = free_.take(wanted);
    if (!found) return false;
    offset = *found;
    capacity = wanted;
  }
  std::memcpy(arena_ + offset, text.data(), text.size());
  where->offset_and_length.store(offset << 24 | text.size(), std::memory_order_release);
  return true;
}

void Segment::release_texts(uint32_t id) {
  for (SharedText* text : {&definitions_[id], &errors_[id]}) {
    const auto piece = capacity_.find(text);
    if (piece == capacity_.end()) continue;
    if (piece->second > 0) free_.give_back(text->offset_and_length.load() >> 24, piece->second);
    text->offset_and_length.store(0);
    capacity_.erase(piece);
  }
}

std::string_view Segment::read(const SharedText& where) const {
  const uint64_t place = where.offset_and_length.load(std::memory_order_acquire);
  const uint64_t offset = place >> 24;
  const uint64_t length = place & 0xffffff;
  if (offset > kArenaBytes || length > kArenaBytes - offset) return {};
  return {reinterpret_cast<const char*>(arena_ + offset), length};
}

bool Segment::poison(hvd_code code, int failed_rank, std::string_view text) {
  const uint64_t value = uint64_t(code) << 32 | static_cast<uint32_t>(failed_rank + 1);
  if (header_->abort_claimed.exchange(1, std::memory_order_acq_rel) != 0) {
    // The winner writes its text now. Should it die right here, the generation must end all the same.
    for (int i = 0; i < 100 && header_->abort.load(std::memory_order_acquire) == 0; ++i) sleep_ms(1);
    uint64_t none = 0;
    header_->abort.compare_exchange_strong(none, value, std::memory_order_acq_rel);
    return false;
  }
  const size_t length = std::min(text.size(), sizeof header_->abort_text - 1);
  std::memcpy(header_->abort_text, text.data(), length);
  header_->abort_text[length] = '\0';
  uint64_t none = 0;
  return header_->abort.compare_exchange_strong(none, value, std::memory_order_acq_rel);
}

Status Segment::cause() const {
  const uint64_t value = header_->abort.load(std::memory_order_acquire);
  if (value == 0) return {};
  const char* text = header_->abort_text;
  return {static_cast<hvd_code>(value >> 32), std::string(text, strnlen(text, sizeof header_->abort_text)),
          static_cast<int>(static_cast<uint32_t>(value)) - 1};
}

}  // namespace hvd
