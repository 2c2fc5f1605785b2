// SPDX-License-Identifier: Apache-2.0
#include "communicators/device_communicator.h"

#include <thread>

namespace hvd {

static void at_once(std::span<const std::shared_ptr<DeviceCommunicator>> carriers, void (DeviceCommunicator::*end)(),
                    uint64_t patience_ms) {
  const auto left = std::make_shared<std::atomic<size_t>>(carriers.size());
  for (const auto& carrier : carriers) {
    std::thread([carrier, end, left] {
      (carrier.get()->*end)();
      left->fetch_sub(1);
    }).detach();
  }
  const uint64_t deadline_ns = now_ns() + patience_ms * 1000000;
  while (left->load() > 0 && now_ns() < deadline_ns) sleep_ms(1);
}

void abort_all(std::span<const std::shared_ptr<DeviceCommunicator>> carriers, uint64_t patience_ms) {
  at_once(carriers, &DeviceCommunicator::abort, patience_ms);
}

void close_all(std::span<const std::shared_ptr<DeviceCommunicator>> carriers, uint64_t patience_ms) {
  at_once(carriers, &DeviceCommunicator::close, patience_ms);
}

}  // namespace hvd
