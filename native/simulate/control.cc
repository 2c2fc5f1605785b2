// SPDX-License-Identifier: Apache-2.0
#include "simulate/control.h"

#include <algorithm>
#include <cstring>

namespace hvd {

namespace {

constexpr size_t kReadyBytes = 8;   // of an entry in a kHostReady (frames.cc)
constexpr uint64_t kApartNs = 100;  // frames of two hosts

}  // namespace

uint64_t ControlNetwork::wire_ns(const Frame& frame) const {
  const auto bytes = static_cast<double>(frame.payload.size() + kHeaderBytes);
  return static_cast<uint64_t>(std::llround(bytes / model_.bytes_per_ns));
}

uint64_t ControlNetwork::taking_ns(const Frame& frame) const {
  if (frame.kind == FrameKind::kRequest) {
    uint32_t ranks = 0;  // the first field (frames.cc)
    std::memcpy(&ranks, frame.payload.data(), sizeof ranks);
    return model_.receive_ns + model_.request_ns + ranks * model_.request_rank_ns;
  }
  if (frame.kind != FrameKind::kHostReady) return model_.receive_ns;
  return model_.receive_ns + frame.payload.size() / kReadyBytes * model_.entry_ns;
}

void ControlNetwork::work(Host* host, uint64_t from_ns, uint64_t ns) {
  const auto taken_ns = static_cast<uint64_t>(std::llround(static_cast<double>(ns) * host->factor));
  host->busy_until_ns = std::max(host->busy_until_ns, from_ns) + taken_ns;
  host->busy_ns += taken_ns;
}

void ControlNetwork::send(int from, int to, Frame frame) {
  Host& sender = at(from);
  work(&sender, queue_.now_ns(), model_.send_ns);
  sender.out_free_ns = std::max(sender.out_free_ns, sender.busy_until_ns) + wire_ns(frame);
  const uint64_t latency_ns = queue_.draw(model_.least_latency_ns, model_.most_latency_ns);
  uint64_t& last = last_at_[uint64_t{static_cast<uint32_t>(from)} << 32 | static_cast<uint32_t>(to)];
  last = std::max(last + kApartNs, sender.out_free_ns + latency_ns + sender.delay_ns + at(to).delay_ns);
  auto place = static_cast<int>(frames_.size());
  if (gaps_.empty()) {
    frames_.emplace_back();
  } else {
    place = gaps_.back();
    gaps_.pop_back();
  }
  frames_[static_cast<size_t>(place)] = {from, to, 0, std::move(frame)};
  queue_.at(last, EventQueue::What::kReach, place);
}

uint64_t ControlNetwork::longest_delay_ns() const {
  uint64_t longest = 0, second = 0;
  for (const Host& host : hosts_) {
    second = std::max(second, std::min(longest, host.delay_ns));
    longest = std::max(longest, host.delay_ns);
  }
  return longest + second;
}

void ControlNetwork::reach(int frame) {
  Arriving& arriving = frames_[static_cast<size_t>(frame)];
  Host& receiver = at(arriving.to);
  if (receiver.is_cut || at(arriving.from).is_cut) {
    arriving = {};
    gaps_.push_back(frame);
    return;
  }
  receiver.in_free_ns = std::max(receiver.in_free_ns + wire_ns(arriving.frame), queue_.now_ns());
  arriving.here_ns = receiver.in_free_ns;
  receiver.inbox.push_back(frame);
  if (receiver.inbox.size() == 1) begin(arriving.to);
}

void ControlNetwork::begin(int host) {
  Host& receiver = at(host);
  if (receiver.turn == 0) receiver.turn = receiver.inbox.size();
  const Arriving& first = frames_[static_cast<size_t>(receiver.inbox.front())];
  work(&receiver, std::max(first.here_ns, queue_.now_ns()), taking_ns(first.frame));
  queue_.at(receiver.busy_until_ns, EventQueue::What::kTake, host);
}

ControlNetwork::Arriving ControlNetwork::take(int host) {
  const int frame = at(host).inbox.front();
  gaps_.push_back(frame);
  return std::exchange(frames_[static_cast<size_t>(frame)], {});
}

void ControlNetwork::go_on(int host) {
  at(host).inbox.pop_front();
  --at(host).turn;
  if (!at(host).inbox.empty()) begin(host);
}

}  // namespace hvd
