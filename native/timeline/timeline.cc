// SPDX-License-Identifier: Apache-2.0
#include "timeline/timeline.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "platform/clock.h"
#include "platform/warning.h"
#include "timeline/json.h"

namespace hvd {
namespace {

constexpr uint64_t kPauseMs = 5;
constexpr size_t kRows = 4096;  // tensors with a row of their own; the rest share one
constexpr std::string_view kEnd = "\n]\n";

std::string microseconds(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%llu.%03llu", static_cast<unsigned long long>(ns / 1000),
                static_cast<unsigned long long>(ns % 1000));
  return text;
}

std::string first_line(const std::string& session) {
  timespec wall{};
  clock_gettime(CLOCK_REALTIME, &wall);
  const uint64_t wall_ns = static_cast<uint64_t>(wall.tv_sec) * 1000000000 + static_cast<uint64_t>(wall.tv_nsec);
  return "[\n{\"name\": \"horovod\", \"ph\": \"M\", \"pid\": 0, \"args\": {\"session\": " + json_string(session) +
         ", \"start_monotonic_us\": " + microseconds(now_ns()) + ", \"start_wall_clock_us\": " + microseconds(wall_ns) +
         "}}";
}

class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

bool write_at(int fd, const std::string& text, off_t offset) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = pwrite(fd, text.data() + done, text.size() - done, offset + static_cast<off_t>(done));
    if (written < 0 && errno != EINTR) return false;
    done += written > 0 ? static_cast<size_t>(written) : 0;
  }
  return true;
}

// The position of the next events: behind the last whole line, over the closing bracket. -1 if there is none.
off_t end_of_events(int fd) {
  struct stat facts{};
  if (fstat(fd, &facts) != 0) return -1;
  char tail[8192];
  const off_t begin = std::max<off_t>(0, facts.st_size - static_cast<off_t>(sizeof tail));
  const ssize_t length = pread(fd, tail, sizeof tail, begin);
  if (length <= 0) return -1;
  const std::string_view text(tail, static_cast<size_t>(length));
  if (text.ends_with(kEnd)) return begin + static_cast<off_t>(text.size() - kEnd.size());
  const size_t whole = text.rfind("},\n");
  return whole == std::string_view::npos ? -1 : begin + static_cast<off_t>(whole) + 1;
}

bool is_of_session(int fd, const std::string& session) {
  char head[512];
  const ssize_t length = pread(fd, head, sizeof head, 0);
  return length > 0 &&
         std::string_view(head, static_cast<size_t>(length)).find(json_string(session)) != std::string::npos;
}

}  // namespace

Timeline::~Timeline() { stop(); }

Status Timeline::start(int descriptor, const std::string& path, const std::string& session, int rank, bool mark_cycles,
                       bool log_time) {
  stop();
  const std::lock_guard lock(mutex_);
  const int fd = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return {HVD_UNAVAILABLE, "cannot open the timeline " + path + ": " + std::strerror(errno)};
  bool fine = true;
  {
    const FileLock locked(fd);
    if (!is_of_session(fd, session) || end_of_events(fd) < 0) {
      fine = ftruncate(fd, 0) == 0 && write_at(fd, first_line(session) + std::string(kEnd), 0);
    }
  }
  fd_ = fd;
  path_ = path;
  rank_ = rank;
  log_time_ = log_time;
  rows_.clear();
  // Kept from then on, and never begun anew: a thread may be recording for the last file still.
  if (events_ == nullptr) {
    events_ = std::make_unique<std::array<Event, kSlots>>();
    for (uint64_t i = 0; i < kSlots; ++i) (*events_)[i].turn.store(i);
  }
  std::string lines;
  describe_rank(&lines);
  if (!fine || !put(lines)) {
    const Status failed(HVD_UNAVAILABLE, "cannot write the timeline " + path + ": " + std::strerror(errno));
    close(std::exchange(fd_, -1));
    return failed;
  }
  ending_.store(false);
  thread_ = std::thread([this] { write_events(); });
  mark_cycles_.store(mark_cycles);
  on_.store(true);
  return {};
}

void Timeline::stop() {
  const std::lock_guard lock(mutex_);
  on_.store(false);
  if (!thread_.joinable()) return;
  ending_.store(true);
  thread_.join();
  close(std::exchange(fd_, -1));
}

void Timeline::record(Phase phase, const char* label, const char* operation, std::string_view tensor,
                      std::string_view detail) {
  uint64_t position = written_.load(std::memory_order_relaxed);
  Event* event = nullptr;
  for (;;) {
    event = &(*events_)[position % kSlots];
    const uint64_t turn = event->turn.load(std::memory_order_acquire);
    if (turn < position) {  // not read yet
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    if (turn == position && written_.compare_exchange_weak(position, position + 1, std::memory_order_relaxed)) break;
    if (turn > position) position = written_.load(std::memory_order_relaxed);
  }
  event->ns = now_ns();
  event->phase = phase;
  event->label = label;
  event->operation = operation;
  event->tensor_length = static_cast<uint8_t>(tensor.copy(event->tensor, sizeof event->tensor));
  event->detail_length = static_cast<uint8_t>(detail.copy(event->detail, sizeof event->detail));
  event->turn.store(position + 1, std::memory_order_release);
}

void Timeline::write_events() {
  bool works = true;
  for (bool last = false; !last;) {
    last = ending_.load();
    std::string lines;
    drain(&lines);
    if (works && !lines.empty() && !put(lines)) {
      works = false;  // a full disk, say: the job is worth more than its picture
      warn("rank " + std::to_string(rank_) + " can write no more of the timeline " + path_ + ": " +
               std::strerror(errno) + "; training goes on",
           log_time_);
    }
    if (!last) sleep_ms(kPauseMs);
  }
}

void Timeline::drain(std::string* lines) {
  for (;; ++read_) {
    Event& event = (*events_)[read_ % kSlots];
    if (event.turn.load(std::memory_order_acquire) != read_ + 1) break;
    const std::string tensor(event.tensor, event.tensor_length);
    const int row = row_of(tensor, lines);
    *lines += "{\"ph\": \"" + std::string(1, static_cast<char>(event.phase)) + "\", \"pid\": " + std::to_string(rank_) +
              ", \"tid\": " + std::to_string(row) + ", \"ts\": " + microseconds(event.ns);
    *lines += ", \"name\": " + json_string(std::string(event.label) + event.operation);
    if (event.phase == Phase::kMark) *lines += ", \"s\": \"p\"";
    if (event.detail_length > 0) {
      *lines += ", \"args\": {\"tensor\": " + json_string({event.detail, event.detail_length}) + "}";
    }
    *lines += "},\n";
    event.turn.store(read_ + kSlots, std::memory_order_release);
  }
  if (const uint64_t lost = lost_.exchange(0); lost > 0) {
    *lines += "{\"ph\": \"i\", \"s\": \"p\", \"pid\": " + std::to_string(rank_) +
              ", \"tid\": 0, \"ts\": " + microseconds(now_ns()) +
              ", \"name\": \"EVENTS_LOST\", \"args\": {\"events\": " + std::to_string(lost) + "}},\n";
  }
}

int Timeline::row_of(const std::string& tensor, std::string* lines) {
  if (tensor.empty()) return 0;
  if (const auto found = rows_.find(tensor); found != rows_.end()) return found->second;
  const bool full = rows_.size() >= kRows;
  const std::string name = full ? "other tensors" : tensor;
  if (full && rows_.contains(name)) return rows_[name];
  const int row = static_cast<int>(rows_.size()) + 1;
  rows_.emplace(name, row);
  *lines += "{\"ph\": \"M\", \"pid\": " + std::to_string(rank_) + ", \"tid\": " + std::to_string(row) +
            ", \"name\": \"thread_name\", \"args\": {\"name\": " + json_string(name) + "}},\n";
  return row;
}

void Timeline::describe_rank(std::string* lines) const {
  const std::string rank = std::to_string(rank_);
  *lines += "{\"ph\": \"M\", \"pid\": " + rank + ", \"name\": \"process_name\", \"args\": {\"name\": \"rank " + rank +
            "\"}},\n{\"ph\": \"M\", \"pid\": " + rank +
            ", \"name\": \"process_sort_index\", \"args\": {\"sort_index\": " + rank + "}},\n";
}

bool Timeline::put(const std::string& lines) {
  // ",\n" joins them to what stands before; that of the last one goes.
  const std::string text = ",\n" + lines.substr(0, lines.size() - 2) + std::string(kEnd);
  const FileLock locked(fd_);
  const off_t end = end_of_events(fd_);
  if (end < 0) {
    errno = EIO;
    return false;
  }
  const bool whole = write_at(fd_, text, end);
  const int error = errno;
  // If the disk had no room for all of it, the end is written back to where it was before.
  if (!whole) write_at(fd_, std::string(kEnd), end);
  // The leftovers of a killed writer must not show behind a shorter text.
  const size_t length = whole ? text.size() : kEnd.size();
  if (ftruncate(fd_, end + static_cast<off_t>(length)) != 0) return false;
  errno = error;
  return whole;
}

}  // namespace hvd
