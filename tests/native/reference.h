// SPDX-License-Identifier: Apache-2.0
// What a reduction must give: one element at a time, in the plainest words, sharing no code with the kernels. And the
// values to try it on.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "reduction/types.h"

namespace reference {

using hvd::DataType;
using hvd::ReduceOp;
using hvd::Reduction;
using Bytes = std::vector<std::byte>;

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

inline float from_bfloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
// By trying the neighbours: the nearest, ties to the even one.
inline uint16_t to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t below = bits >> 16, rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && (below & 1) != 0);
  return static_cast<uint16_t>(below + (up ? 1 : 0));
}

template <class F>
F combine(ReduceOp op, F a, F b) {
  if (op == HVD_SUM) return a + b;
  if (op == HVD_PRODUCT) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<F>::quiet_NaN();
  if (a == b) return (op == HVD_MIN) == std::signbit(a) ? a : b;
  return (op == HVD_MIN) == (a < b) ? a : b;
}

template <class F>
F fold_float(const Reduction& reduction, const std::vector<F>& values) {
  const bool pre = reduction.prescale != 1.0;
  const F prescale = static_cast<F>(reduction.prescale);
  volatile F total = pre ? values[0] * prescale : values[0];
  for (size_t m = 1; m < values.size(); ++m) {
    const volatile F scaled = pre ? values[m] * prescale : values[m];
    total = combine<F>(reduction.op, total, scaled);
  }
  const double factor = reduction.postscale / static_cast<double>(reduction.divisor);
  if (factor != 1.0) total = total * static_cast<F>(factor);
  return std::isnan(total) ? std::numeric_limits<F>::quiet_NaN() : total;
}

template <class T>
T scaled(T value, double scale) {
  if (scale == 1.0) return value;
  const double product = std::trunc(static_cast<double>(value) * scale);
  if (std::isnan(product)) return 0;
  if (product >= std::ldexp(1.0, std::numeric_limits<T>::digits)) return std::numeric_limits<T>::max();
  if (product <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(product);
}

template <class T>
T fold_integer(const Reduction& reduction, const std::vector<T>& values) {
  __int128 total = scaled(values[0], reduction.prescale);
  for (size_t m = 1; m < values.size(); ++m) {
    const T value = scaled(values[m], reduction.prescale);
    switch (reduction.op) {
      case HVD_SUM:
        total += value;
        break;
      case HVD_PRODUCT:
        total = static_cast<T>(static_cast<unsigned __int128>(total) * static_cast<unsigned __int128>(value));
        break;
      case HVD_MIN:
        total = value < total ? value : total;
        break;
      case HVD_BITAND:
        total &= value;
        break;
      case HVD_BITOR:
        total |= value;
        break;
      case HVD_BITXOR:
        total ^= value;
        break;
      default:
        total = value > total ? value : total;
        break;
    }
  }
  return scaled(static_cast<T>(total / reduction.divisor), reduction.postscale);
}

template <class T>
void fold_all_integers(const Reduction& reduction, const std::vector<const std::byte*>& inputs, int64_t count,
                       Bytes* out) {
  std::vector<T> values(inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t m = 0; m < inputs.size(); ++m) values[m] = read<T>(inputs[m] + i * static_cast<int64_t>(sizeof(T)));
    write<T>(out->data() + i * static_cast<int64_t>(sizeof(T)), fold_integer<T>(reduction, values));
  }
}

// `Wide` is the accumulation type.
template <class Wide, class Stored, class Widen, class Narrow>
void fold_all_floats(const Reduction& reduction, const std::vector<const std::byte*>& inputs, int64_t count, Bytes* out,
                     Widen widen, Narrow narrow) {
  std::vector<Wide> values(inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    for (size_t m = 0; m < inputs.size(); ++m)
      values[m] = widen(read<Stored>(inputs[m] + i * static_cast<int64_t>(sizeof(Stored))));
    write<Stored>(out->data() + i * static_cast<int64_t>(sizeof(Stored)), narrow(fold_float<Wide>(reduction, values)));
  }
}

inline Bytes fold(const Reduction& reduction, const std::vector<const std::byte*>& inputs, int64_t count) {
  Bytes out(static_cast<size_t>(count) * hvd::element_size(reduction.dtype));
  const bool unscaled = reduction.prescale == 1.0 && reduction.postscale == 1.0 && reduction.divisor == 1;
  if (inputs.size() == 1 && unscaled) {
    if (!out.empty()) std::memcpy(out.data(), inputs[0], out.size());
    return out;
  }
  switch (reduction.dtype) {
    case HVD_UINT8:
      fold_all_integers<uint8_t>(reduction, inputs, count, &out);
      break;
    case HVD_INT8:
      fold_all_integers<int8_t>(reduction, inputs, count, &out);
      break;
    case HVD_INT16:
      fold_all_integers<int16_t>(reduction, inputs, count, &out);
      break;
    case HVD_INT32:
      fold_all_integers<int32_t>(reduction, inputs, count, &out);
      break;
    case HVD_INT64:
      fold_all_integers<int64_t>(reduction, inputs, count, &out);
      break;
    case HVD_UINT16:
      fold_all_integers<uint16_t>(reduction, inputs, count, &out);
      break;
    case HVD_UINT32:
      fold_all_integers<uint32_t>(reduction, inputs, count, &out);
      break;
    case HVD_UINT64:
      fold_all_integers<uint64_t>(reduction, inputs, count, &out);
      break;
    case HVD_BOOL:
      for (int64_t i = 0; i < count; ++i) {
        bool all = true, any = false, odd = false;
        for (const std::byte* input : inputs) {
          all = all && input[i] != std::byte{0};
          any = any || input[i] != std::byte{0};
          odd = odd != (input[i] != std::byte{0});
        }
        const bool is_and = reduction.op == HVD_MIN || reduction.op == HVD_BITAND;
        out[static_cast<size_t>(i)] = std::byte{static_cast<uint8_t>(is_and                       ? all
                                                                     : reduction.op == HVD_BITXOR ? odd
                                                                                                  : any)};
      }
      break;
    case HVD_FLOAT32:
      fold_all_floats<float, float>(
          reduction, inputs, count, &out, [](float v) { return v; }, [](float v) { return v; });
      break;
    case HVD_FLOAT64:
      fold_all_floats<double, double>(
          reduction, inputs, count, &out, [](double v) { return v; }, [](double v) { return v; });
      break;
    case HVD_FLOAT16:
      fold_all_floats<float, _Float16>(
          reduction, inputs, count, &out, [](_Float16 v) { return static_cast<float>(v); },
          [](float v) { return static_cast<_Float16>(v); });
      break;
    case HVD_BFLOAT16:
      fold_all_floats<float, uint16_t>(reduction, inputs, count, &out, from_bfloat16, to_bfloat16);
      break;
  }
  return out;
}

// Random bits, every fourth element one of the values where arithmetic goes wrong first.
inline void fill(DataType dtype, uint64_t seed, std::byte* to, int64_t count) {
  uint64_t state = seed;
  const auto random = [&state] {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  };
  const size_t size = hvd::element_size(dtype);
  static constexpr uint64_t kFloat64[] = {
      0, 0x8000000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000123, 0xfff0000000000001,
      1, 0x800fffffffffffff, 0x7fefffffffffffff, 0x3ff0000000000000};
  static constexpr uint32_t kFloat32[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00123,
                                          0xff800001, 1,          0x807fffff, 0x7f7fffff, 0x3f800000};
  static constexpr uint16_t kFloat16[] = {0, 0x8000, 0x7c00, 0xfc00, 0x7e12, 0xfc01, 1, 0x83ff, 0x7bff, 0x3c00};
  static constexpr uint16_t kBfloat16[] = {0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xff81, 1, 0x807f, 0x7f7f, 0x3f80};
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    const uint64_t pick = (bits >> 32) % 10;
    const bool special = random() % 4 == 0;
    if (dtype == HVD_BOOL) bits = bits & 1;
    if (special && dtype == HVD_FLOAT64) bits = kFloat64[pick];
    if (special && dtype == HVD_FLOAT32) bits = kFloat32[pick];
    if (special && dtype == HVD_FLOAT16) bits = kFloat16[pick];
    if (special && dtype == HVD_BFLOAT16) bits = kBfloat16[pick];
    // All ones and the sign bit alone are -1 and the least of every signed type.
    const bool integer = dtype != HVD_BOOL && !hvd::is_floating(dtype);
    const uint64_t top = uint64_t{1} << (8 * size - 1);
    if (special && integer) bits = pick < 3 ? top : pick < 6 ? top - 1 : pick < 8 ? ~uint64_t{0} : pick;
    std::memcpy(to + static_cast<size_t>(i) * size, &bits, size);
  }
}

// Over hosts: each host's fold, then the fold of those, hosts by lowest member. With one host, or one member on each,
// there is one fold; so for integers and bool. Of hosts in groups, those of a group are folded before the groups are:
// there are as many groups as have `group_hosts` hosts each, and what is over makes some of them larger by one.
inline Bytes fold_over_hosts(const Reduction& reduction, const std::vector<const std::byte*>& inputs,
                             const std::vector<int>& host_of_member, int64_t count, size_t group_hosts = 0) {
  std::vector<int> hosts;  // in order of appearance
  for (const int host : host_of_member) {
    bool known = false;
    for (const int seen : hosts) known = known || seen == host;
    if (!known) hosts.push_back(host);
  }
  if (reduction.dtype < HVD_FLOAT16 || reduction.dtype > HVD_FLOAT64) return fold(reduction, inputs, count);
  Reduction rest = reduction;
  std::vector<const std::byte*> pointers = inputs;
  std::vector<Bytes> results;
  results.reserve(2 * inputs.size());
  const auto fold_some = [&](const std::vector<const std::byte*>& some) {
    results.push_back(fold({reduction.dtype, reduction.op, rest.prescale}, some, count));
    return results.back().data();
  };
  if (hosts.size() > 1 && hosts.size() < inputs.size()) {
    pointers.clear();
    for (const int host : hosts) {
      std::vector<const std::byte*> of_host;
      for (size_t m = 0; m < inputs.size(); ++m) {
        if (host_of_member[m] == host) of_host.push_back(inputs[m]);
      }
      pointers.push_back(fold_some(of_host));
    }
    rest.prescale = 1.0;
  }
  const size_t groups = group_hosts == 0 || hosts.size() == 1 ? 1 : hosts.size() / group_hosts;
  if (groups > 1) {
    std::vector<const std::byte*> of_groups;
    for (size_t group = 0, host = 0; group < groups; ++group) {
      std::vector<const std::byte*> of_group;
      while (host < (group + 1) * hosts.size() / groups) of_group.push_back(pointers[host++]);
      of_groups.push_back(fold_some(of_group));
    }
    pointers = of_groups;
    rest.prescale = 1.0;
  }
  return fold(rest, pointers, count);
}

inline bool legal(DataType dtype, ReduceOp op) {
  if (hvd::is_bitwise(op)) return !hvd::is_floating(dtype);
  return dtype != HVD_BOOL || op == HVD_MIN || op == HVD_MAX;
}

}  // namespace reference
