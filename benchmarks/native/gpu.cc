// SPDX-License-Identifier: Apache-2.0
// Allreduce on GPUs beside direct calls of NCCL: bench_gpu LIBRARY NCCL RESULT [ranks] [rounds] [MiB at most].
// HOROVOD_CUDA_LIBRARY names another driver.
//
// One process for each rank; rank r uses GPU r modulo their number. Ranks on one GPU need NCCL_MULTI_RANK_GPU_ENABLE=1.
// Without CUDA's Multi-Process Service their kernels do not overlap. Each round times Horovod, then NCCL, on the same
// buffers, until the last rank's GPU has finished. LIBRARY is a libhorovod.so; to compare two, run it with each.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "communicators/nccl/library.h"
#include "device/device.h"
#include "horovod/horovod.h"
#include "platform/clock.h"

namespace {

namespace cuda = hvd::cuda;
namespace nccl = hvd::nccl;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(1);  // not by destructors, which may wait in NCCL
}
void must(const hvd::Status& status) {
  if (!status.ok()) give_up(status.text());
}

// The library's functions.
struct Functions {
  explicit Functions(const std::string& library) {
    void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) give_up(dlerror());
    const auto find = [&](auto*& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(opened, name));
      if (function == nullptr) give_up(std::string("the library has no ") + name);
    };
    find(start, "hvd_start");
    find(stop, "hvd_stop");
    find(prepare, "hvd_prepare");
    find(submit, "hvd_submit_entry_on");
    find(wait_on_stream, "hvd_wait_on_stream");
    find(release, "hvd_release");
    find(settle, "hvd_settle");
    find(statistics, "hvd_statistics");
  }
  decltype(&hvd_start) start;
  decltype(&hvd_stop) stop;
  decltype(&hvd_prepare) prepare;
  decltype(&hvd_submit_entry_on) submit;
  decltype(&hvd_wait_on_stream) wait_on_stream;
  decltype(&hvd_release) release;
  decltype(&hvd_settle) settle;
  decltype(&hvd_statistics) statistics;
};

struct Setup {
  std::string library, nccl, result, cuda;
  int ranks, rounds;
  int64_t most_bytes;
};

// What the ranks share: memory that a fork leaves shared.
struct Shared {
  static Shared* make(int ranks) {
    void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) give_up("there is no memory to share");
    auto* const shared = new (memory) Shared;
    pthread_barrierattr_t across_processes;
    pthread_barrierattr_init(&across_processes);
    pthread_barrierattr_setpshared(&across_processes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &across_processes, static_cast<unsigned>(ranks));
    return shared;
  }
  void meet() { pthread_barrier_wait(&barrier); }

  static constexpr int kMostRanks = 64;
  pthread_barrier_t barrier;
  double us[kMostRanks];
  nccl::UniqueId id;
};

struct Tensor {
  void *input, *output;
  int64_t count;
  hvd_entry* entry;
};

class Rank {
 public:
  Rank(const Setup& setup, Shared* shared, int rank, std::vector<hvd_link> links)
      : setup_(setup), shared_(*shared), rank_(rank), call_(setup.library) {
    must(cuda::Device::get(setup.cuda, rank % devices(), &device_));
    const cuda::Current current(device_->driver(), device_->context());
    must(device_->stream(0, &stream_));
    must(nccl::Library::open({setup.nccl, ""}, &nccl_));
    if (rank == 0) checked(nccl_->call().get_unique_id(&shared_.id), "ncclGetUniqueId");
    shared_.meet();
    nccl::Config config;
    checked(nccl_->call().init(&comm_, setup.ranks, shared_.id, rank, &config), "ncclCommInitRankConfig");
    begin(std::move(links));
  }

  // One case: tensors of these lengths, all in flight together, `calls` times in a row.
  void measure(const std::string& name, const std::vector<int64_t>& lengths, hvd_dtype dtype, int calls) {
    const size_t bytes = dtype == HVD_FLOAT32 ? 4 : 2;
    std::vector<Tensor> tensors = make(name, lengths, dtype, bytes);
    const auto ours = [&] {
      for (int call = 0; call < calls; ++call) reduce(tensors);
    };
    const auto direct = [&] {
      for (int call = 0; call < calls; ++call) reduce_directly(tensors, dtype);
    };
    Figures mine, theirs;
    std::vector<double> ratios;
    for (int round = -2; round < setup_.rounds; ++round) {
      const double a = timed(ours, calls, &mine), b = timed(direct, calls, &theirs);
      ratios.push_back(b / a);
    }
    const bool right = holds_the_sum(tensors, dtype);
    is_right_ = is_right_ && right;
    if (rank_ == 0) tell(name, mine, theirs, median(ratios), right);
    memories_.clear();
  }

  // Whether every sum was right here.
  bool end() {
    hvd_status status = fresh();
    if (call_.settle(context_, 20000, &status) != HVD_OK) give_up(status.text);
    std::vector<char> text(1 << 16);
    call_.statistics(context_, text.data(), static_cast<int64_t>(text.size()));
    if (rank_ == 0) told_.push_back("\"statistics\": " + std::string(text.data()));
    shared_.meet();
    if (call_.stop(context_, 10000, &status) != HVD_OK) give_up(status.text);
    if (rank_ == 0) write();
    return is_right_;
  }

 private:
  using memory = cuda::DeviceMemory;

  static hvd_status fresh() {
    hvd_status status{};
    status.size = sizeof status;
    return status;
  }
  // Microseconds of a call in each round; the first two warm up.
  struct Figures {
    std::vector<double> whole, host;  // until the GPU has done it; until this rank's host has enqueued it
  };
  static double median(std::vector<double> values) {
    values.erase(values.begin(), values.begin() + 2);
    std::ranges::sort(values);
    return values[values.size() / 2];
  }
  int devices() const {
    std::shared_ptr<const cuda::Driver> driver;
    int count = 0;
    must(cuda::Driver::open(setup_.cuda, &driver));
    must(driver->count_devices(&count));
    return count;
  }
  void write() const {
    std::FILE* const file = std::fopen(setup_.result.c_str(), "w");
    if (file == nullptr) give_up("cannot write " + setup_.result);
    std::fprintf(file, "{\"nccl\": %d, \"ranks\": %d, \"rounds\": %d", nccl_->version(), setup_.ranks, setup_.rounds);
    for (const std::string& line : told_) std::fprintf(file, ",\n %s", line.c_str());
    std::fprintf(file, "}\n");
    std::fclose(file);
  }
  void checked(nccl::Result code, const char* doing) { must(nccl_->checked(code, doing, comm_)); }

  void begin(std::vector<hvd_link> links) {
    const std::vector<int32_t> hosts(static_cast<size_t>(setup_.ranks), 0);
    const hvd_setting settings[] = {
        {"gpu_allreduce", "nccl"}, {"nccl_library", setup_.nccl.c_str()}, {"cuda_library", setup_.cuda.c_str()}};
    hvd_options options{};
    options.size = sizeof options;
    options.rank = rank_;
    options.world_size = setup_.ranks;
    options.generation = 1;
    options.host_of_rank = hosts.data();
    options.settings = settings;
    options.nsettings = 3;
    options.setting_size = sizeof(hvd_setting);
    options.links = links.data();
    options.nlinks = static_cast<uint32_t>(links.size());
    options.link_size = sizeof(hvd_link);
    hvd_status status = fresh();
    if (call_.start(&options, &context_, &status) != HVD_OK) give_up(status.text);
  }

  std::vector<Tensor> make(const std::string& name, const std::vector<int64_t>& lengths, hvd_dtype dtype,
                           size_t bytes) {
    std::vector<Tensor> tensors;
    for (const int64_t length : lengths) {
      void* at[2];
      for (void*& one : at) {
        memory& made = memories_.emplace_back();
        must(device_->allocate(static_cast<size_t>(length) * bytes, stream_, &made));
        one = made.data();
      }
      // 1.0 in the upper half of each element, which is a whole bfloat16; the value of rank r is 2 to the power of r
      const std::vector<std::byte> values = filled(length, dtype, 1 << rank_);
      must(device_->copy(at[0], values.data(), values.size(), stream_));
      drain();
      const std::string tensor_name = name + "." + std::to_string(tensors.size());
      tensors.push_back({at[0], at[1], length, prepared(tensor_name, length, dtype)});
    }
    return tensors;
  }

  static std::vector<std::byte> filled(int64_t length, hvd_dtype dtype, int value) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    const size_t bytes = dtype == HVD_FLOAT32 ? 4 : 2;
    const uint16_t upper = static_cast<uint16_t>(bits >> 16);
    std::vector<std::byte> values(static_cast<size_t>(length) * bytes);
    for (size_t i = 0; i < values.size(); i += bytes) {
      std::memcpy(&values[i], bytes == 4 ? static_cast<const void*>(&bits) : &upper, bytes);
    }
    return values;
  }

  hvd_entry* prepared(const std::string& name, int64_t length, hvd_dtype dtype) {
    hvd_tensor tensor{};
    tensor.shape = &length;
    tensor.ndim = 1;
    tensor.dtype = dtype;
    hvd_request request{};
    request.size = sizeof request;
    request.kind = HVD_ALLREDUCE;
    request.op = HVD_SUM;
    request.name = name.c_str();
    request.tensors = &tensor;
    request.ntensors = 1;
    request.tensor_size = sizeof tensor;
    request.prescale = request.postscale = 1.0;
    request.place = HVD_ON_CUDA;
    request.device = device_->ordinal();
    hvd_entry* entry = nullptr;
    hvd_status status = fresh();
    if (call_.prepare(context_, &request, &entry, &status) != HVD_OK) give_up(status.text);
    return entry;
  }

  void reduce(const std::vector<Tensor>& tensors) {
    std::vector<hvd_handle> handles(tensors.size());
    hvd_status status = fresh();
    const uint32_t flags = tensors.size() == 1 ? HVD_SYNC : 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const void* const inputs[] = {tensors[i].input};
      void* const outputs[] = {tensors[i].output};
      if (call_.submit(context_, tensors[i].entry, inputs, outputs, flags, nullptr, stream_, &handles[i], &status) !=
          HVD_OK) {
        give_up(status.text);
      }
    }
    for (const hvd_handle handle : handles) {
      int code = HVD_PENDING;
      while (code == HVD_PENDING) code = call_.wait_on_stream(context_, handle, stream_, 20000, &status);  // a signal
      if (code != HVD_OK) give_up(status.text);
      call_.release(context_, handle);
    }
  }

  void reduce_directly(const std::vector<Tensor>& tensors, hvd_dtype dtype) {
    const cuda::Current current(device_->driver(), device_->context());
    const nccl::Type type = dtype == HVD_FLOAT32 ? nccl::kFloat32 : nccl::kBfloat16;
    checked(nccl_->call().begin_group(), "ncclGroupStart");
    for (const Tensor& tensor : tensors) {
      checked(nccl_->call().allreduce(tensor.input, tensor.output, static_cast<size_t>(tensor.count), type, nccl::kSum,
                                      comm_, stream_),
              "ncclAllReduce");
    }
    checked(nccl_->call().end_group(), "ncclGroupEnd");
  }

  void drain() {
    cuda::Event ended;
    must(device_->record(stream_, &ended));
    for (bool done = false; !done;) must(device_->is_done(ended, &done));
  }

  // Until the last rank's stream has done all of it; the same on all ranks.
  double timed(const std::function<void()>& run, int calls, Figures* figures) {
    drain();
    shared_.meet();
    const uint64_t began = hvd::now_ns();
    const auto us_of_a_call = [&] { return static_cast<double>(hvd::now_ns() - began) / calls / 1e3; };
    run();
    figures->host.push_back(us_of_a_call());
    drain();
    shared_.us[static_cast<size_t>(rank_)] = us_of_a_call();
    shared_.meet();
    figures->whole.push_back(*std::max_element(shared_.us, shared_.us + setup_.ranks));
    return figures->whole.back();
  }

  bool holds_the_sum(const std::vector<Tensor>& tensors, hvd_dtype dtype) {
    // By us alone: the last round's direct calls have written there, too.
    for (const Tensor& tensor : tensors) {
      const size_t bytes = static_cast<size_t>(tensor.count) * (dtype == HVD_FLOAT32 ? 4 : 2);
      must(device_->zero(tensor.output, bytes, stream_));
    }
    reduce(tensors);
    bool right = true;
    for (const Tensor& tensor : tensors) {
      const std::vector<std::byte> wanted = filled(tensor.count, dtype, (1 << setup_.ranks) - 1);
      std::vector<std::byte> seen(wanted.size());
      must(device_->copy(seen.data(), tensor.output, seen.size(), stream_));
      drain();
      right = right && seen == wanted;
    }
    shared_.meet();
    return right;
  }

  void tell(const std::string& name, const Figures& ours, const Figures& direct, double ratio, bool right) {
    char line[256];
    std::snprintf(line, sizeof line,
                  "\"%s\": {\"ours_us\": %.1f, \"direct_us\": %.1f, \"ratio\": %.3f, \"ours_host_us\": %.1f, "
                  "\"direct_host_us\": %.1f, \"right\": %s}",
                  name.c_str(), median(ours.whole), median(direct.whole), ratio, median(ours.host), median(direct.host),
                  right ? "true" : "false");
    std::printf("%s\n", line);
    std::fflush(stdout);
    told_.push_back(line);
  }

  const Setup& setup_;
  Shared& shared_;
  const int rank_;
  const Functions call_;
  cuda::Device* device_ = nullptr;
  cuda::Stream stream_ = nullptr;
  std::shared_ptr<const nccl::Library> nccl_;
  nccl::Comm comm_ = nullptr;
  hvd_context* context_ = nullptr;
  std::vector<memory> memories_;
  bool is_right_ = true;
  std::vector<std::string> told_;  // rank 0: members of the result
};

// The gradients of ResNet-50 (torchvision's), in its order.
std::vector<int64_t> resnet50() {
  std::vector<int64_t> lengths;
  const auto convolution = [&](int64_t in, int64_t out, int64_t side) {
    for (const int64_t length : {in * out * side * side, out, out}) lengths.push_back(length);  // and its norm's two
  };
  convolution(3, 64, 7);
  int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; ++stage) {
    const int64_t width = int64_t{64} << stage;
    for (int block = 0; block < blocks[stage]; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(in, 4 * width, 1);
      in = 4 * width;
    }
  }
  lengths.push_back(2048 * 1000);
  lengths.push_back(1000);
  return lengths;
}

void run(Rank& rank, int64_t most_bytes) {
  for (const int64_t size : {4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30}) {
    if (size > most_bytes) break;
    const int calls = size < (16 << 20) ? 20 : 5;
    rank.measure(std::to_string(size) + " B float32", {size / 4}, HVD_FLOAT32, calls);
    rank.measure(std::to_string(size) + " B bfloat16", {size / 2}, HVD_BFLOAT16, calls);
  }
  if (most_bytes >= 128 << 20) rank.measure("161 gradients of ResNet-50", resnet50(), HVD_FLOAT32, 5);
  for (const int64_t size : {4 << 10, 64 << 10, 1 << 20}) {
    if (64 * size > most_bytes) break;
    rank.measure("64 tensors of " + std::to_string(size) + " B", std::vector<int64_t>(64, size / 4), HVD_FLOAT32, 5);
  }
}

// Links of a host's leader with the others, for each rank.
std::vector<std::vector<hvd_link>> links_of(int ranks) {
  std::vector<std::vector<hvd_link>> links(static_cast<size_t>(ranks));
  for (int rank = 1; rank < ranks; ++rank) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) give_up("socketpair failed");
    links[0].push_back({rank, HVD_LINK_LOCAL, fds[0], 0});
    links[static_cast<size_t>(rank)].push_back({0, HVD_LINK_LOCAL, fds[1], 0});
  }
  return links;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) give_up("bench_gpu LIBRARY NCCL RESULT [ranks] [rounds] [MiB at most]");
  const char* const cuda = std::getenv("HOROVOD_CUDA_LIBRARY");
  const auto number = [&](int at, int otherwise) { return argc > at ? std::atoi(argv[at]) : otherwise; };
  const Setup setup{argv[1],
                    argv[2],
                    argv[3],
                    cuda == nullptr ? "" : cuda,
                    number(4, 2),
                    number(5, 15),
                    int64_t{number(6, 1024)} << 20};
  if (setup.ranks > Shared::kMostRanks) give_up("so many ranks?");
  Shared* const shared = Shared::make(setup.ranks);
  const auto links = links_of(setup.ranks);
  std::vector<pid_t> children;
  for (int r = 0; r < setup.ranks; ++r) {
    const pid_t child = fork();
    if (child < 0) give_up("fork failed");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    Rank rank(setup, shared, r, links[static_cast<size_t>(r)]);
    run(rank, setup.most_bytes);
    std::_Exit(rank.end() ? 0 : 1);  // the driver has no good end
  }
  bool good = true;
  for (int outcome = 0; wait(&outcome) > 0;) {
    if (outcome != 0 && std::exchange(good, false)) {
      for (const pid_t child : children) kill(child, SIGTERM);  // they wait for it
    }
  }
  return good ? 0 : 1;
}
