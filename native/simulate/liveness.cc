// SPDX-License-Identifier: Apache-2.0
#include "simulate/liveness.h"

#include "platform/clock.h"

namespace hvd {

namespace {

constexpr uint64_t kFrozenNs = 3000 * kMs, kLostNs = 5000 * kMs;  // the defaults of settings/settings.h
constexpr uint64_t kBeatNs = 1000 * kMs, kTickNs = 500 * kMs;     // of a monitor (liveness/monitor.h)

}  // namespace

void Liveness::lose_process(int rank) {
  const int host = topology_.host_of(rank);
  const int loss = add(rank, "rank " + std::to_string(rank) + " died");
  if (has_others(rank)) tell(host, loss, queue_.draw(kMs / 20, kMs), EventQueue::What::kNotice);
  if (rank != topology_.leader_of(host)) return;
  at(host).is_mute = true;
  for (const int other : linked(host)) tell(other, loss, latency_ns(host, other), EventQueue::What::kNotice);
}

std::vector<int> Liveness::linked(int host) const {
  std::vector<int> all = tree_.below(host);
  if (host != 0) all.insert(all.begin(), tree_.above(host));
  return all;
}

void Liveness::freeze(int rank, uint64_t for_ns) {
  if (for_ns <= kFrozenNs) return;
  const int host = topology_.host_of(rank);
  const int loss = add(rank, "rank " + std::to_string(rank) + " froze");
  if (has_others(rank)) tell(host, loss, kFrozenNs + queue_.draw(0, 500 * kMs), EventQueue::What::kNotice);
  if (rank != topology_.leader_of(host)) return;
  at(host).is_mute = true;
  if (for_ns > kLostNs) notice_silence(host, loss);
}

void Liveness::lose_host(int host, bool is_cut) {
  const int leader = topology_.leader_of(host);
  const int loss = add(leader, "host " + std::to_string(host) + " is lost");
  at(host).is_apart = true;
  notice_silence(host, loss);
  if (is_cut) {
    const int lost = linked(host).front();  // as its own ranks see it
    const int other = add(topology_.leader_of(lost), "host " + std::to_string(lost) + " is lost");
    tell(host, other, kLostNs + queue_.draw(0, 1000 * kMs), EventQueue::What::kNotice);
  }
}

void Liveness::delay(int host, uint64_t ns) {
  const uint64_t before_ns = std::exchange(at(host).delay_ns, ns);
  if (ns > before_ns && kBeatNs + ns - before_ns > kLostNs + queue_.draw(0, kTickNs)) lose_host(host, true);
}

// Of that host, by those that exchange beats with it.
void Liveness::notice_silence(int host, int loss) {
  for (const int other : linked(host)) {
    tell(other, loss, kLostNs + queue_.draw(0, 1000 * kMs), EventQueue::What::kNotice);
  }
}

int Liveness::hear(int message) {
  const Message heard = messages_[static_cast<size_t>(message)];
  if (is_poisoned(heard.host)) return kNone;
  at(heard.host).cause = heard.loss;
  if (at(heard.host).is_apart) return heard.host;
  if (settled_ == kNone) settled_ = heard.loss;
  if (at(heard.host).is_mute) return heard.host;
  for (const int other : linked(heard.host)) {
    if (!at(other).is_apart) tell(other, heard.loss, latency_ns(heard.host, other), EventQueue::What::kPoison);
  }
  return heard.host;
}

}  // namespace hvd
