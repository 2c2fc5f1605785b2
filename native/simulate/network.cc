// SPDX-License-Identifier: Apache-2.0
#include "simulate/network.h"

#include <algorithm>
#include <string>
#include <utility>

#include "simulate/mesh.h"

namespace hvd {

Network::Network(int hosts, LinkModel model, bool carries_data)
    : model_(model), carries_data_(carries_data), hosts_(static_cast<size_t>(hosts)) {}

uint64_t Network::end_ns() const {
  uint64_t end_ns = 0;
  for (const Host& host : hosts_) end_ns = std::max(end_ns, host.now_ns);
  return end_ns;
}

Status Network::run(const std::function<Status(int host)>& body) {
  Status outcome;
  stuck_ = false;
  for (int host = 0; host < hosts(); ++host) {
    at(host).fiber = std::make_unique<Fiber>([host, &body, &outcome] {
      Status status = body(host);
      if (!status.ok() && outcome.ok()) outcome = std::move(status).while_doing("host " + std::to_string(host));
    });
    at(host).waits = true;
    set_timer(host, at(host).now_ns);
  }
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.time_ns;
    happen(event);
  }
  end_all();
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return outcome;
}

// Nothing happens any more. The hosts that still wait are told so, and return.
void Network::end_all() {
  stuck_ = true;
  for (int host = 0; host < hosts(); ++host) {
    while (!at(host).fiber->has_ended()) resume(host);
    at(host).fiber.reset();
  }
}

void Network::happen(const Event& event) {
  switch (event.what) {
    case What::kReaches:
      return reach(event.host);
    case What::kArrives:
      return arrive(event.host);
    case What::kTimer:
      break;
  }
  Host& host = at(event.host);
  if (host.timer_ns != event.time_ns) return;  // an earlier one has replaced it
  host.timer_ns = kNever;
  wake(event.host);
}

void Network::set_timer(int host, uint64_t time_ns) {
  if (at(host).timer_ns <= time_ns) return;
  at(host).timer_ns = time_ns;
  schedule(time_ns, What::kTimer, host);
}

uint64_t Network::send(int host, Letter letter) {
  Host& from = at(host);
  from.now_ns += model_.send_ns;
  ++from.sent.messages;
  from.sent.bytes += letter.bytes;
  from.link_out_free_ns = std::max(from.link_out_free_ns, from.now_ns) + wire_ns(letter.bytes);
  from.in_transit.push_back({from.link_out_free_ns + model_.latency_ns, std::move(letter)});
  if (from.in_transit.size() == 1) schedule(from.in_transit.front().reaches_ns, What::kReaches, host);
  return from.link_out_free_ns;
}

// The last byte is there, unless the receiver's link is busy with the messages of other hosts.
void Network::reach(int from) {
  std::deque<InTransit>& in_transit = at(from).in_transit;
  Letter letter = std::move(in_transit.front().letter);
  in_transit.pop_front();
  if (!in_transit.empty()) schedule(in_transit.front().reaches_ns, What::kReaches, from);
  const int to = letter.to->host();
  Host& receiver = at(to);
  receiver.link_in_free_ns = std::max(receiver.link_in_free_ns + wire_ns(letter.bytes), now_ns_);
  const bool at_once = receiver.arriving.empty() && receiver.link_in_free_ns == now_ns_;
  receiver.arriving.push_back(std::move(letter));
  if (at_once) {
    arrive(to);
  } else {
    schedule(receiver.link_in_free_ns, What::kArrives, to);
  }
}

void Network::arrive(int at_host) {
  std::deque<Letter>& arriving = at(at_host).arriving;
  Letter letter = std::move(arriving.front());
  arriving.pop_front();
  SimulatedMesh& to = *letter.to;
  to.arrive(std::move(letter));
}

bool Network::wait(int host, uint64_t until_ns) {
  if (stuck_) return false;
  at(host).waits = true;
  set_timer(host, until_ns);
  at(host).fiber->pause();
  return !stuck_;
}

// A host that is busy looks when it has the time.
void Network::wake(int host) {
  if (!at(host).waits) return;
  if (at(host).now_ns > now_ns_) {
    set_timer(host, at(host).now_ns);
  } else {
    at(host).now_ns = now_ns_;
    resume(host);
  }
}

void Network::resume(int host) {
  at(host).waits = false;
  try {
    at(host).fiber->resume();
  } catch (...) {
    if (thrown_ == nullptr) thrown_ = std::current_exception();
  }
}

}  // namespace hvd
