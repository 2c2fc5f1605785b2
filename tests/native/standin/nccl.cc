// SPDX-License-Identifier: Apache-2.0
// The stand-in's NCCL. Ranks are threads or processes of one machine; a unique id names a file in memory that a process
// has open, in which each rank has a part: nothing is left of it whichever of them are killed. What a group holds runs
// as one piece of work on its stream, and waits there for the other ranks, for ever if one never comes, until the
// communicator is aborted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "numbers.h"
#include "room.h"
#include "standin.h"
#include "streams.h"

using namespace standin;

namespace {

std::atomic<int> nccl_version{23203};

// A call, until its group ends.
struct Work {
  CommBody* comm;
  StreamBody* stream;
  std::string what;
  std::vector<standin::Touched> touched;
  std::function<bool()> run;  // false: aborted
};
struct Message {
  CommBody* comm;
  StreamBody* stream;
  std::byte* memory;
  size_t bytes;
  int peer;
  bool is_sent;
  size_t done = 0;
};
struct Group {
  int depth = 0;
  std::vector<Work> works;
  std::vector<Message> messages;
};
thread_local Group group;

std::atomic<int> works_of_device[kMostRanks];  // of all communicators, enqueued and not ended

bool is_alive(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  const char state = line[line.rfind(')') + 2];
  return state != 'Z' && state != 'X';
}

bool others_are_there(const CommBody& comm) {
  for (int rank = 0; rank < comm.size; ++rank) {
    const Room& room = *comm.room;
    if (rank != comm.rank && !room.rank_has_left[rank] && is_alive(room.process_of_rank[rank])) return true;
  }
  return false;
}

// Moves what it can of a message; true: all of it. What is sent in one direction between two ranks arrives in the order
// in which it was sent.
bool move_some(CommBody* comm, Message* message, bool* moved) {
  Mail& mail = message->is_sent ? comm->mail(comm->rank, message->peer) : comm->mail(message->peer, comm->rank);
  std::byte* const paper = comm->paper(mail);
  if (message->is_sent == mail.is_full.load()) return false;
  const size_t left = message->bytes - message->done;
  if (message->is_sent) {
    mail.of_bytes = message->bytes;
    mail.length = std::min(left, kMailBytes);
    std::memcpy(paper, message->memory + message->done, mail.length);
  } else {
    if (mail.of_bytes != message->bytes) comm->error = kInternalError;
    mail.length = std::min(left, mail.length);
    std::memcpy(message->memory + message->done, paper, mail.length);
  }
  message->done += mail.length;
  mail.is_full.store(message->is_sent);
  *moved = true;
  return message->done == message->bytes;
}

// All messages of a group at once. A rank waits for those that it sends to or hears from, and for nobody else.
bool exchange(CommBody* comm, std::vector<Message> messages) {
  while (!messages.empty()) {
    const uint32_t before = comm->room->moved.load();
    bool moved = false;
    std::set<std::pair<int, bool>> busy;  // with which peer, in which direction
    std::erase_if(messages, [&](Message& message) {
      return busy.emplace(message.peer, message.is_sent).second && move_some(comm, &message, &moved);
    });
    if (moved) {
      comm->room->moved.fetch_add(1);
      futex(comm->room->moved, FUTEX_WAKE, INT32_MAX, nullptr);
    } else if (!comm->wait_while(comm->room->moved, before)) {
      return false;
    }
  }
  return true;
}

int end_group() {
  Group ended = std::exchange(group, {});
  std::map<std::pair<CommBody*, StreamBody*>, std::vector<Message>> messages;
  for (const Message& message : ended.messages) messages[{message.comm, message.stream}].push_back(message);
  for (const auto& [where, some] : messages) {
    std::vector<standin::Touched> touched;
    for (const Message& message : some) touched.push_back({message.memory, message.bytes, !message.is_sent});
    ended.works.push_back({where.first, where.second, "NCCL's messages", std::move(touched),
                           [comm = where.first, some] { return exchange(comm, some); }});
  }
  for (Work& work : ended.works) {
    ++works_of_device[work.comm->device];
    ++work.comm->works;
    standin::enqueue(work.stream, work.what, work.touched, [comm = work.comm, run = std::move(work.run)] {
      const bool good = run();
      --works_of_device[comm->device];
      --comm->works;
      return good;
    });
  }
  return kSuccess;
}

int add(CommBody* comm, StreamBody* stream, const char* what, std::vector<standin::Touched> touched,
        std::function<bool()> run) {
  int code = 0;
  StreamBody* const on = standin::resolve(stream, &code);
  if (on == nullptr || on->context->device != comm->device) return kInvalidUsage;
  group.works.push_back({comm, on, what, std::move(touched), std::move(run)});
  return group.depth == 0 ? end_group() : kSuccess;
}

// In pieces: all ranks lay down their inputs, and each makes what it needs of them.
bool in_pieces(CommBody* comm, const std::byte* in, size_t bytes, const std::function<void(size_t, size_t)>& take) {
  for (size_t at = 0; at < bytes; at += kPartBytes) {
    const size_t length = std::min(kPartBytes, bytes - at);
    if (in != nullptr) std::memcpy(comm->part(comm->rank), in + at, length);
    if (!comm->meet()) return false;
    take(at, length);
    if (!comm->meet()) return false;
  }
  return true;
}

// An operation as it is when it is enqueued: it may be gone when it runs.
struct Operation {
  int op = 0;
  double factor = 1;  // for each rank's values
};

Operation operation(CommBody* comm, int op) {
  const auto made = comm->factors.find(op);
  return {op, made == comm->factors.end() ? 1 : made->second};
}

void reduce_parts(CommBody* comm, int type, Operation how, std::byte* to, size_t from, size_t bytes) {
  const size_t each = bytes_of(type);
  const auto [op, factor] = how;
  for (size_t at = 0; at < bytes; at += each) {
    if (type == 4) {  // beyond a double's precision
      int64_t whole = standin::load<int64_t>(comm->part(0) + from + at);
      for (int r = 1; r < comm->size; ++r) {
        const auto next = standin::load<int64_t>(comm->part(r) + from + at);
        whole = op == kSum       ? whole + next
                : op == kProduct ? whole * next
                : op == kMax     ? std::max(whole, next)
                                 : std::min(whole, next);
      }
      standin::store(to + at, whole);
      continue;
    }
    double sum = as_number(type, comm->part(0) + from + at) * factor;
    for (int r = 1; r < comm->size; ++r) {
      const double next = as_number(type, comm->part(r) + from + at) * factor;
      sum = type == 7 ? reduce_two<float>(op, static_cast<float>(sum), static_cast<float>(next))
                      : reduce_two(op, sum, next);
    }
    store_number(type, to + at, op == kAverage ? sum / comm->size : sum);
  }
}

const CommBody* comm_of_group() {
  if (!group.works.empty()) return group.works.front().comm;
  return group.messages.empty() ? nullptr : group.messages.front().comm;
}

bool is_reduction(CommBody* comm, int type, int op) {
  return bytes_of(type) != 0 && (op <= kAverage || comm->factors.contains(op));
}

}  // namespace

#define STANDIN_NCCL(name) \
  if (const int planned = planned_failure(name); planned != 0) return planned;

static bool never() { return false; }

extern "C" {

struct standin_id {
  char bytes[128];
};
struct standin_config {
  size_t size;
  uint32_t magic, version;
  int blocking;
};

int ncclGetVersion(int* version) {
  *version = nccl_version;
  return kSuccess;
}

int ncclGetUniqueId(standin_id* id) {
  STANDIN_NCCL("ncclGetUniqueId")
  // It stays open until rank 0 has met the others, so an id that nobody uses costs something, as with NCCL.
  const int fd = memfd_create("hvd-standin", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kPartsAt + kMostRanks * kPartBytes)) != 0) return kSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->bytes, sizeof id->bytes, "/proc/%d/fd/%d", getpid(), fd);
  ++standin::state().unique_ids;
  return kSuccess;
}

int ncclCommInitRankConfig(CommBody** comm, int size, standin_id id, int rank, standin_config* config) {
  STANDIN_NCCL("ncclCommInitRankConfig")
  standin::block_as_planned("ncclCommInitRankConfig", never);
  if (size > kMostRanks || config->magic != 0xcafebeef || config->size != 40 || config->version != 21700 ||
      (config->blocking != 1 && (config->blocking != INT_MIN || nccl_version < 21700))) {
    return kInvalidArgument;
  }
  int code = 0;
  StreamBody* const current = standin::resolve(nullptr, &code);
  if (current == nullptr) return kInvalidUsage;
  const int fd = open(id.bytes, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kSystemError;
  auto made = std::make_unique<CommBody>();
  made->mapped = kPartsAt + static_cast<size_t>(size) * kPartBytes;
  void* const memory = mmap(nullptr, made->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return kSystemError;
  made->room = static_cast<Room*>(memory);
  made->parts = static_cast<std::byte*>(memory) + kPartsAt;
  made->rank = rank;
  made->size = size;
  made->device = current->context->device;
  made->room->device_of_rank[rank] = static_cast<uint32_t>(made->device) + 1;
  made->room->process_of_rank[rank] = getpid();
  if (!made->meet()) return kInternalError;
  if (rank == 0) close(std::atoi(std::strrchr(id.bytes, '/') + 1));  // which has made the id
  bool shared = false;
  for (int r = 0; r < size; ++r) {
    shared |= r != rank && made->room->device_of_rank[r] == made->room->device_of_rank[rank].load();
  }
  *comm = made.release();
  return shared && nccl_version < 23000 ? kInvalidUsage : kSuccess;  // "Duplicate GPU detected"
}

int ncclCommFinalize(CommBody* comm) {
  STANDIN_NCCL("ncclCommFinalize")
  while (comm->works.load() > 0) usleep(1000);
  return kSuccess;
}

int ncclCommDestroy(CommBody* comm) {
  STANDIN_NCCL("ncclCommDestroy")
  comm->room->rank_has_left[comm->rank] = true;
  while (others_are_there(*comm)) usleep(1000);
  munmap(comm->room, comm->mapped);
  delete comm;
  return kSuccess;
}

// As NCCL's, which waits for the other ranks of the host likewise: it returns when the device has ended what was
// enqueued, also by other communicators, and when the other ranks have aborted, too, or are gone. The body stays, since
// that work may still look at it.
int ncclCommAbort(CommBody* comm) {
  static std::mutex mutex;
  static auto* const kept = new std::set<CommBody*>;
  STANDIN_NCCL("ncclCommAbort")
  standin::block_as_planned("ncclCommAbort", never);
  comm->aborted = true;
  comm->room->rank_has_left[comm->rank] = true;
  {
    const std::lock_guard lock(mutex);
    kept->insert(comm);
  }
  while (works_of_device[comm->device].load() > 0 || others_are_there(*comm)) usleep(1000);
  return kSuccess;
}

int ncclCommGetAsyncError(CommBody* comm, int* error) {
  const int planned = planned_failure("ncclCommGetAsyncError");  // it tells of failures, and seldom fails itself
  *error = planned != 0 ? planned : comm->error.load();
  return kSuccess;
}

int ncclRedOpCreatePreMulSum(int* op, void* factor, int type, int residence, CommBody* comm) {
  STANDIN_NCCL("ncclRedOpCreatePreMulSum")
  if (residence != 1) return kInvalidArgument;
  *op = kFirstMade;
  while (comm->factors.contains(*op)) ++*op;
  comm->factors[*op] = as_number(type, static_cast<const std::byte*>(factor));
  return kSuccess;
}

// What was enqueued with it keeps its meaning.
int ncclRedOpDestroy(int op, CommBody* comm) { return comm->factors.erase(op) == 1 ? kSuccess : kInvalidArgument; }

int ncclAllReduce(const void* in, void* out, size_t count, int type, int op, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclAllReduce")
  standin::block_as_planned("ncclAllReduce", [comm] { return comm->aborted.load(); });
  if (!is_reduction(comm, type, op)) return kInvalidArgument;
  const Operation how = operation(comm, op);
  const size_t bytes = count * bytes_of(type);
  return add(comm, stream, "ncclAllReduce", {{in, bytes, false}, {out, bytes, true}}, [=] {
    return in_pieces(comm, static_cast<const std::byte*>(in), bytes, [&](size_t at, size_t length) {
      reduce_parts(comm, type, how, static_cast<std::byte*>(out) + at, 0, length);
    });
  });
}

int ncclReduce(const void* in, void* out, size_t count, int type, int op, int root, CommBody* comm,
               StreamBody* stream) {
  STANDIN_NCCL("ncclReduce")
  if (!is_reduction(comm, type, op)) return kInvalidArgument;
  const Operation how = operation(comm, op);
  const size_t bytes = count * bytes_of(type);
  std::vector<standin::Touched> touched = {{in, bytes, false}};
  if (comm->rank == root) touched.push_back({out, bytes, true});
  return add(comm, stream, "ncclReduce", std::move(touched), [=] {
    return in_pieces(comm, static_cast<const std::byte*>(in), bytes, [&](size_t at, size_t length) {
      if (comm->rank == root) reduce_parts(comm, type, how, static_cast<std::byte*>(out) + at, 0, length);
    });
  });
}

int ncclReduceScatter(const void* in, void* out, size_t count, int type, int op, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclReduceScatter")
  if (!is_reduction(comm, type, op)) return kInvalidArgument;
  const Operation how = operation(comm, op);
  const size_t bytes = count * bytes_of(type);
  const size_t all = bytes * static_cast<size_t>(comm->size);
  if (all > kPartBytes) return kInternalError;  // the stand-in is too small for it
  return add(comm, stream, "ncclReduceScatter", {{in, all, false}, {out, bytes, true}}, [=] {
    return in_pieces(comm, static_cast<const std::byte*>(in), all, [&](size_t, size_t) {
      reduce_parts(comm, type, how, static_cast<std::byte*>(out), bytes * static_cast<size_t>(comm->rank), bytes);
    });
  });
}

int ncclBroadcast(const void* in, void* out, size_t count, int type, int root, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclBroadcast")
  const size_t bytes = count * bytes_of(type);
  std::vector<standin::Touched> touched = {{out, bytes, true}};
  if (comm->rank == root) touched.push_back({in, bytes, false});
  return add(comm, stream, "ncclBroadcast", std::move(touched), [=] {
    const auto* const mine = comm->rank == root ? static_cast<const std::byte*>(in) : nullptr;
    return in_pieces(comm, mine, bytes, [&](size_t at, size_t length) {
      std::memcpy(static_cast<std::byte*>(out) + at, comm->part(root), length);
    });
  });
}

int ncclAllGather(const void* in, void* out, size_t count, int type, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclAllGather")
  const size_t bytes = count * bytes_of(type);
  const size_t all = bytes * static_cast<size_t>(comm->size);
  return add(comm, stream, "ncclAllGather", {{in, bytes, false}, {out, all, true}}, [=] {
    return in_pieces(comm, static_cast<const std::byte*>(in), bytes, [&](size_t at, size_t length) {
      for (int r = 0; r < comm->size; ++r) {
        std::memcpy(static_cast<std::byte*>(out) + bytes * static_cast<size_t>(r) + at, comm->part(r), length);
      }
    });
  });
}

int ncclSend(const void* in, size_t count, int type, int peer, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclSend")
  int code = 0;
  StreamBody* const on = standin::resolve(stream, &code);
  if (on == nullptr || peer >= comm->size) return kInvalidUsage;
  auto* const memory = const_cast<std::byte*>(static_cast<const std::byte*>(in));
  group.messages.push_back({comm, on, memory, count * bytes_of(type), peer, true});
  return group.depth == 0 ? end_group() : kSuccess;
}

int ncclRecv(void* out, size_t count, int type, int peer, CommBody* comm, StreamBody* stream) {
  STANDIN_NCCL("ncclRecv")
  int code = 0;
  StreamBody* const on = standin::resolve(stream, &code);
  if (on == nullptr || peer >= comm->size) return kInvalidUsage;
  group.messages.push_back({comm, on, static_cast<std::byte*>(out), count * bytes_of(type), peer, false});
  return group.depth == 0 ? end_group() : kSuccess;
}

int ncclGroupStart() {
  STANDIN_NCCL("ncclGroupStart")
  ++group.depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (const int planned = planned_failure("ncclGroupEnd"); planned != 0) {
    group = {};
    return planned;
  }
  if (group.depth == 0) return kInvalidUsage;
  if (const CommBody* const comm = comm_of_group(); comm != nullptr) {
    standin::block_as_planned("ncclGroupEnd", [comm] { return comm->aborted.load(); });
    if (comm->aborted.load()) {
      group = {};
      return kInternalError;
    }
  }
  return --group.depth == 0 ? end_group() : kSuccess;
}

const char* ncclGetErrorString(int code) {
  switch (code) {
    case kSuccess:
      return "no error";
    case kSystemError:
      return "unhandled system error";
    case kInternalError:
      return "internal error";
    case kInvalidArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    case kRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(CommBody*) { return ""; }

void standin_nccl_version(int version) { nccl_version = version; }

const char* standin_nccl_function(int index) {
  static constexpr const char* kNames[] = {"ncclGetVersion",
                                           "ncclGetUniqueId",
                                           "ncclCommInitRankConfig",
                                           "ncclCommFinalize",
                                           "ncclCommDestroy",
                                           "ncclCommAbort",
                                           "ncclCommGetAsyncError",
                                           "ncclRedOpCreatePreMulSum",
                                           "ncclRedOpDestroy",
                                           "ncclAllReduce",
                                           "ncclReduce",
                                           "ncclReduceScatter",
                                           "ncclBroadcast",
                                           "ncclAllGather",
                                           "ncclSend",
                                           "ncclRecv",
                                           "ncclGroupStart",
                                           "ncclGroupEnd",
                                           "ncclGetErrorString",
                                           "ncclGetLastError"};
  return static_cast<size_t>(index) < std::size(kNames) ? kNames[index] : nullptr;
}

}  // extern "C"
