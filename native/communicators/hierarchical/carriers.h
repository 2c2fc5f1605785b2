// SPDX-License-Identifier: Apache-2.0
// CarrierChoice: how many members of each host carry data to other hosts, one or as many as there are (step 7). Which
// is faster depends on the machine, its load and the network, so operations are timed: for each order of magnitude some
// go this way and some that way, and from then on the faster one is taken, until they are tried again. All members
// decide from all members' times, so they decide the same. Bits do not depend on it.
//
// Collective: every member asks for the same operations in the same order, on one thread; only describe() may be called
// on any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace hvd {

class CarrierChoice {
 public:
  static constexpr uint32_t kTrial = 8;      // operations; half of them each way, the first of which opens links
  static constexpr uint32_t kPeriod = 1024;  // from trial to trial

  // True if all carriers share the next operation, which has so many bytes.
  bool shares(size_t bytes) const { return of(bytes).is_shared(); }
  // Records that operation's time. True if the trial is over: then the members decide() by the slowest member's best().
  bool add(size_t bytes, uint64_t ns);
  struct Times {
    uint64_t alone = UINT64_MAX, shared = UINT64_MAX;  // nanoseconds a mebibyte
  };
  Times best(size_t bytes) const { return of(bytes).best; }
  void decide(size_t bytes, Times slowest);
  // JSON, by the largest size of a magnitude: are its operations shared, and how long did both ways take? Any thread.
  std::string describe() const;

 private:
  struct Magnitude {
    uint32_t operations = 0;
    bool shared = true;
    Times best;
    bool is_trial() const;
    bool is_shared() const { return is_trial() ? operations % 2 == 0 : shared; }
  };
  static size_t index(size_t bytes);
  Magnitude& of(size_t bytes) { return magnitudes_[index(bytes)]; }
  const Magnitude& of(size_t bytes) const { return magnitudes_[index(bytes)]; }

  std::array<Magnitude, 64> magnitudes_;
  mutable std::mutex lock_;
  std::map<size_t, std::string> decided_;  // by magnitude, for describe()
};

}  // namespace hvd
