// SPDX-License-Identifier: Apache-2.0
// The handler for tensors in host memory. It submits, drives the engine for a moment, and returns, if need be before
// the operation is done: XLA hears of the end through a future then. So no number of XLA's threads is too small, and
// what does not depend on the result goes on.
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>

#include "shims/jax/requests.h"
#include "shims/watch.h"

namespace hvd::jax {

namespace {

// How long the handler drives the engine itself, as that is the fastest way; a thread of XLA is blocked meanwhile.
constexpr int kMomentMs = 1;

// A collective from its submission until its end, and XLA's side of it.
struct Call {
  enum State : int { kUnderWay, kDone, kLeft };  // kLeft: the handler has returned, so finished() tells XLA

  Collective collective;
  hvd_context* context = nullptr;
  hvd_handle handle = 0;
  const Api* api = nullptr;
  Future* future = nullptr;
  hvd_status outcome{};
  std::atomic<int> state{kUnderWay};
};

void finished(void* call, const hvd_status* outcome);

// Copies the results of an operation whose size the engine knows only when it is done.
void take_results(Call* call) {
  const Collective& collective = call->collective;
  hvd_status* const status = &call->outcome;
  for (size_t i = 0; i < collective.tensors.size(); ++i) {
    const hvd_tensor& tensor = collective.tensors[i];
    hvd_result result{};
    result.size = sizeof result;
    if (hvd_get_result(call->context, call->handle, static_cast<uint32_t>(i), &result, status) != HVD_OK) return;
    if (!rows_are_equal(collective, i, result, status)) return;
    auto bytes = static_cast<size_t>(hvd_dtype_bytes(tensor.dtype));
    for (int32_t d = 0; d < result.ndim; ++d) bytes *= static_cast<size_t>(result.shape[d]);
    if (bytes > 0) std::memcpy(tensor.output, result.data, bytes);
  }
}

void tell_xla(const Call& call) {
  if (call.outcome.code == HVD_OK) {
    FutureSetAvailable arguments{sizeof arguments, nullptr, call.future};
    call.api->future_set_available(&arguments);
  } else {
    FutureSetError arguments{sizeof arguments, nullptr, call.future,
                             error_of(call.api, call.outcome, call.collective.tree)};
    call.api->future_set_error(&arguments);
  }
}

// A thread that tells XLA of the ends. Who tells it runs the rest of XLA's program then, as far as it goes, which may
// take long: the engine's thread has other things to do. Never destroyed, as it has a thread that waits.
class Teller {
 public:
  static Teller& one() {
    static auto* const teller = new Teller;
    return *teller;
  }

  void add(std::unique_ptr<Call> call) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(call));
    }
    changed_.notify_one();
  }

 private:
  Teller() {
    std::thread([this] { run(); }).detach();
  }

  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty(); });
      const std::unique_ptr<Call> call = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      tell_xla(*call);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Call>> queue_;
};

// On the driving thread, which may be the handler's: the engine is done with the memory.
void finished(void* user, const hvd_status* outcome) {
  auto* const call = static_cast<Call*>(user);
  call->outcome = *outcome;
  if (outcome->code == HVD_OK && shims::is_ragged(call->collective.kind)) take_results(call);
  shims::watch_end(call->collective.name.c_str(), outcome->code == HVD_OK);
  hvd_release(call->context, call->handle);
  if (call->state.exchange(Call::kDone) == Call::kLeft) Teller::one().add(std::unique_ptr<Call>(call));
}

// Submits it in the running generation, and drives the engine for a moment.
int start(Call* call, hvd_status* status) {
  const std::shared_lock held(generation().mutex);
  call->context = generation().context;
  const int code = submit(call->collective, {finished, call}, &call->handle, status);
  if (code == HVD_OK) hvd_wait(call->context, call->handle, kMomentMs, nullptr);
  return code;
}

// Null if all went well so far.
Error* run(CallFrame* frame) {
  hvd_status status = shims::new_status();
  auto call = std::make_unique<Call>();
  call->api = frame->api;
  const std::string problem = read_frame(*frame, &call->collective);
  if (!problem.empty()) shims::set_failure(&status, HVD_INVALID_ARGUMENT, problem);
  if (!problem.empty() || start(call.get(), &status) != HVD_OK) {
    return error_of(frame->api, status, call->collective.tree);
  }
  if (call->state.load() == Call::kDone) {
    return call->outcome.code == HVD_OK ? nullptr : error_of(frame->api, call->outcome, call->collective.tree);
  }
  FutureCreate made{sizeof made, nullptr, nullptr};
  if (Error* const error = frame->api->future_create(&made); error != nullptr) {
    call.release();  // the engine will still write into it, so it is never freed
    return error;
  }
  call->future = frame->future = made.future;
  int under_way = Call::kUnderWay;
  if (call->state.compare_exchange_strong(under_way, Call::kLeft)) {
    call.release();  // finished() has it
  } else {
    tell_xla(*call);
  }
  return nullptr;
}

}  // namespace

}  // namespace hvd::jax

extern "C" {

// The handler that XLA calls. Null if all went well.
HVD_EXPORT void* hvd_jax_collective(hvd::jax::CallFrame* frame) {
  using namespace hvd::jax;
  return answer_question(*frame) ? nullptr : run(frame);
}

}  // extern "C"
