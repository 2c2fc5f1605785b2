// SPDX-License-Identifier: Apache-2.0
#include "communicators/nccl/meeting.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "platform/clock.h"

namespace hvd::nccl {

namespace {

// The members' meeting in NCCL, on a thread that stays behind in it if it takes too long.
struct Meeting {
  enum State { kUnderWay, kOver, kGivenUp };
  std::atomic<State> state{kUnderWay};
  Comm comm = nullptr;
  Status status;
};

// NCCL 2.22 and later connects the members in the first operation. So there is one while they can still go through host
// memory instead.
Status first_operation(const DeviceParts& parts, const Library& nccl, const Meeting& meeting) {
  cuda::Device& device = *parts.device;
  cuda::DeviceMemory number;
  HVD_RETURN_IF_ERROR(device.allocate(sizeof(float), parts.stream, &number));
  HVD_RETURN_IF_ERROR(device.zero(number.data(), sizeof(float), parts.stream));
  const auto checked = [&](Result code, const char* doing) { return nccl.checked(code, doing, meeting.comm); };
  HVD_RETURN_IF_ERROR(
      checked(nccl.call().allreduce(number.data(), number.data(), 1, kFloat32, kSum, meeting.comm, parts.stream),
              "ncclAllReduce"));
  cuda::Event ended;
  HVD_RETURN_IF_ERROR(device.record(parts.stream, &ended));
  for (bool done = false; !done && meeting.state.load() != Meeting::kGivenUp;) {
    Result error = kSuccess;
    HVD_RETURN_IF_ERROR(checked(nccl.call().async_error(meeting.comm, &error), "ncclCommGetAsyncError"));
    HVD_RETURN_IF_ERROR(checked(error, "the first operation of NCCL"));
    HVD_RETURN_IF_ERROR(device.is_done(ended, &done));
    if (!done) sleep_ms(1);
  }
  return {};
}

void run(const DeviceParts& parts, const Library& nccl, const Group& group, const UniqueId& id, Meeting* meeting) {
  const cuda::Current current(parts.device->driver(), parts.device->context());
  const Functions& call = nccl.call();
  Status& status = meeting->status;
  status = current.status();
  if (status.ok()) {
    Config config;
    Comm comm = nullptr;
    const Result code = call.init(&comm, group.size, id, group.member, &config);
    status = nccl.checked(code, "ncclCommInitRankConfig", nullptr);
    // The variable wins over our configuration. Calls would return before they have enqueued anything.
    if (code == kInProgress) status = {HVD_INTERNAL, "NCCL_COMM_BLOCKING is 0\nhint: unset it"};
    if (status.ok()) {
      meeting->comm = comm;
      status = first_operation(parts, nccl, *meeting);
    }
  }
  const bool has_failed = !status.ok();
  Meeting::State expected = Meeting::kUnderWay;
  const bool is_awaited = meeting->state.compare_exchange_strong(expected, Meeting::kOver);
  if (meeting->comm != nullptr && (has_failed || !is_awaited)) (void)call.abort(meeting->comm);
}

}  // namespace

Status meet(const DeviceParts& parts, const std::shared_ptr<const Library>& library, const Group& group,
            const UniqueId& id, Comm* out) {
  const auto meeting = std::make_shared<Meeting>();
  std::thread([=] { run(parts, *library, group, id, meeting.get()); }).detach();
  const uint64_t deadline_ns = now_ns() + parts.timeout_ms * 1000000;
  while (meeting->state.load() != Meeting::kOver) {
    const bool is_late = now_ns() > deadline_ns;
    Meeting::State expected = Meeting::kUnderWay;
    if ((is_late || parts.interrupt.raised()) && meeting->state.compare_exchange_strong(expected, Meeting::kGivenUp)) {
      if (!is_late) return {HVD_ABORTED, "interrupted while the ranks met in NCCL"};
      return {HVD_UNAVAILABLE, "the ranks did not meet in NCCL within " + std::to_string(parts.timeout_ms) +
                                   " ms\nhint: NCCL_DEBUG=INFO says what it waits for; NCCL_SOCKET_IFNAME names the "
                                   "network interface"};
    }
    sleep_ms(1);
  }
  *out = meeting->comm;
  return meeting->status;
}

}  // namespace hvd::nccl
