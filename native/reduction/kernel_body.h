// SPDX-License-Identifier: Apache-2.0
// The kernels' one source (step 7), compiled once per instruction set by kernels_{plain,avx2,avx512}.cc, which define
// HVD_KERNEL_NAMESPACE, HVD_KERNEL_TABLE and HVD_VECTOR_BYTES.
//
// A *unit* is HVD_VECTOR_BYTES bytes of one input: one vector of float32 or float64, or two vectors of float32 widened
// from halves. Whatever does not fill a unit goes through a padded one, so an element's arithmetic never depends on its
// place. Nothing here may come from a standard-library template: a copy of it compiled for a wide instruction set could
// be the one that the linker keeps for all callers.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "reduction/kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hvd {
namespace HVD_KERNEL_NAMESPACE {
namespace {

constexpr size_t kUnitBytes = HVD_VECTOR_BYTES;

typedef uint8_t U8 __attribute__((vector_size(HVD_VECTOR_BYTES)));
typedef uint32_t U32 __attribute__((vector_size(HVD_VECTOR_BYTES)));
typedef uint64_t U64 __attribute__((vector_size(HVD_VECTOR_BYTES)));
typedef float F32 __attribute__((vector_size(HVD_VECTOR_BYTES)));
typedef double F64 __attribute__((vector_size(HVD_VECTOR_BYTES)));

template <class V>
inline V load(const std::byte* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline void store(std::byte* to, U8 unit, [[maybe_unused]] bool stream) {
#if defined(__x86_64__)
  if (stream) {
#if HVD_VECTOR_BYTES == 64
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)unit);
#elif HVD_VECTOR_BYTES == 32
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)unit);
#else
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)unit);
#endif
    return;
  }
#endif
  std::memcpy(to, &unit, sizeof unit);
}

inline void finish_streams([[maybe_unused]] bool streamed) {
#if defined(__x86_64__)
  if (streamed) _mm_sfence();
#endif
}

// ---- formats: how a unit of storage becomes vectors of the accumulation type, and back

template <class Vector, class BitVector, uint64_t kNan>
struct Arithmetic {
  using Vec = Vector;
  using Bits = BitVector;
  static Vec nan() { return (Vec)(Bits{} + kNan); }
};

struct Float32 : Arithmetic<F32, U32, 0x7fc00000u> {
  using Lane = float;
  static constexpr int kVectors = 1;
  static constexpr size_t kElementBytes = 4;
  static void widen(const std::byte* from, Vec* out) { out[0] = load<F32>(from); }
  static U8 narrow(const Vec* in) { return (U8)in[0]; }
};

struct Float64 : Arithmetic<F64, U64, 0x7ff8000000000000u> {
  using Lane = double;
  static constexpr int kVectors = 1;
  static constexpr size_t kElementBytes = 8;
  static void widen(const std::byte* from, Vec* out) { out[0] = load<F64>(from); }
  static U8 narrow(const Vec* in) { return (U8)in[0]; }
};

struct Half : Arithmetic<F32, U32, 0x7fc00000u> {
  using Lane = float;
  static constexpr int kVectors = 2;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kLanes = kUnitBytes / 2;
};

// Rounds to nearest even. A NaN is canonical by now and comes through as one.
inline U32 round_to_bfloat16(F32 value) {
  const U32 bits = (U32)value;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

#if HVD_VECTOR_BYTES == 64
struct Float16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    out[0] = (F32)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    out[1] = (F32)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)));
  }
  static U8 narrow(const Vec* in) {
    const __m256i low = _mm512_cvtps_ph((__m512)in[0], _MM_FROUND_TO_NEAREST_INT);
    const __m256i high = _mm512_cvtps_ph((__m512)in[1], _MM_FROUND_TO_NEAREST_INT);
    return (U8)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
};
struct Bfloat16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    for (int half = 0; half < 2; ++half) {
      const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * half));
      out[half] = (F32)_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16);
    }
  }
  static U8 narrow(const Vec* in) {
    const __m256i low = _mm512_cvtepi32_epi16((__m512i)round_to_bfloat16(in[0]));
    const __m256i high = _mm512_cvtepi32_epi16((__m512i)round_to_bfloat16(in[1]));
    return (U8)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
};
#elif HVD_VECTOR_BYTES == 32
struct Float16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    out[0] = (F32)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    out[1] = (F32)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)));
  }
  static U8 narrow(const Vec* in) {
    const __m128i low = _mm256_cvtps_ph((__m256)in[0], _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph((__m256)in[1], _MM_FROUND_TO_NEAREST_INT);
    return (U8)_mm256_set_m128i(high, low);
  }
};
struct Bfloat16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    for (int half = 0; half < 2; ++half) {
      const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * half));
      out[half] = (F32)_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
    }
  }
  static U8 narrow(const Vec* in) {
    const __m256i packed = _mm256_packus_epi32((__m256i)round_to_bfloat16(in[0]), (__m256i)round_to_bfloat16(in[1]));
    return (U8)_mm256_permute4x64_epi64(packed, 0xd8);
  }
};
#else
#if defined(__aarch64__)
struct Float16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    const float16x8_t raw = (float16x8_t)load<U8>(from);
    out[0] = (F32)vcvt_f32_f16(vget_low_f16(raw));
    out[1] = (F32)vcvt_high_f32_f16(raw);
  }
  static U8 narrow(const Vec* in) {
    return (U8)vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)in[0]), (float32x4_t)in[1]);
  }
};
#else
inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float float16_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude < 0x400u) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
  const uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;  // an infinite or NaN exponent stays so
  return float_of(sign | ((magnitude << 13) + rebias));
}
inline uint16_t float_to_float16(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    half = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}
struct Float16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    uint16_t raw[kLanes];
    float wide[kLanes];
    std::memcpy(raw, from, sizeof raw);
    for (size_t i = 0; i < kLanes; ++i) wide[i] = float16_to_float(raw[i]);
    std::memcpy(out, wide, sizeof wide);
  }
  static U8 narrow(const Vec* in) {
    uint16_t raw[kLanes];
    float wide[kLanes];
    std::memcpy(wide, in, sizeof wide);
    for (size_t i = 0; i < kLanes; ++i) raw[i] = float_to_float16(wide[i]);
    return load<U8>(reinterpret_cast<const std::byte*>(raw));
  }
};
#endif
struct Bfloat16 : Half {
  static void widen(const std::byte* from, Vec* out) {
    uint16_t raw[kLanes];
    uint32_t wide[kLanes];
    std::memcpy(raw, from, sizeof raw);
    for (size_t i = 0; i < kLanes; ++i) wide[i] = static_cast<uint32_t>(raw[i]) << 16;
    std::memcpy(out, wide, sizeof wide);
  }
  static U8 narrow(const Vec* in) {
    uint16_t raw[kLanes];
    uint32_t wide[kLanes];
    for (int half = 0; half < 2; ++half) {
      const U32 rounded = round_to_bfloat16(in[half]);
      std::memcpy(wide + half * (kLanes / 2), &rounded, sizeof rounded);
    }
    for (size_t i = 0; i < kLanes; ++i) raw[i] = static_cast<uint16_t>(wide[i]);
    return load<U8>(reinterpret_cast<const std::byte*>(raw));
  }
};
#endif

// ---- operations on vectors of floating point

struct SumOp {
  template <class F>
  static typename F::Vec apply(typename F::Vec a, typename F::Vec b) {
    return a + b;
  }
};
struct ProductOp {
  template <class F>
  static typename F::Vec apply(typename F::Vec a, typename F::Vec b) {
    return a * b;
  }
};
// Equal values differ in the sign of zero at most: OR keeps the minus sign (the minimum), AND drops it (the maximum).
struct MinOp {
  template <class F>
  static typename F::Vec apply(typename F::Vec a, typename F::Vec b) {
    using Vec = typename F::Vec;
    using Bits = typename F::Bits;
    const Vec ordered = a == b ? (Vec)((Bits)a | (Bits)b) : (a < b ? a : b);
    const Vec with_b = b == b ? ordered : b;
    return a == a ? with_b : a;
  }
};
struct MaxOp {
  template <class F>
  static typename F::Vec apply(typename F::Vec a, typename F::Vec b) {
    using Vec = typename F::Vec;
    using Bits = typename F::Bits;
    const Vec ordered = a == b ? (Vec)((Bits)a & (Bits)b) : (a > b ? a : b);
    const Vec with_b = b == b ? ordered : b;
    return a == a ? with_b : a;
  }
};

// `unit_of(j)`: where input j's unit lies.
template <class F, class Op, int kInputs, bool kPrescaled, class UnitOf>
inline __attribute__((always_inline)) U8 fold_unit(UnitOf unit_of, int ninputs, typename F::Lane prescale,
                                                   typename F::Lane factor) {
  using Vec = typename F::Vec;
  Vec accumulator[F::kVectors];
  F::widen(unit_of(0), accumulator);
  if (kPrescaled) {
    for (int v = 0; v < F::kVectors; ++v) accumulator[v] = accumulator[v] * prescale;
  }
  const int n = kInputs != 0 ? kInputs : ninputs;
  for (int j = 1; j < n; ++j) {
    Vec next[F::kVectors];
    F::widen(unit_of(j), next);
    for (int v = 0; v < F::kVectors; ++v) {
      accumulator[v] = Op::template apply<F>(accumulator[v], kPrescaled ? next[v] * prescale : next[v]);
    }
  }
  for (int v = 0; v < F::kVectors; ++v) {
    accumulator[v] = accumulator[v] * factor;  // a factor of exactly 1 changes no bit but a NaN's
    accumulator[v] = accumulator[v] == accumulator[v] ? accumulator[v] : F::nan();
  }
  return F::narrow(accumulator);
}

struct Span {  // bytes [begin, end) of every input and output
  size_t begin, end;
};

// Streams need aligned targets: a padded unit leads up to the first streamed output's boundary, and the other output is
// streamed only where it has the same alignment.
struct StreamPlan {
  bool stream[2];
  size_t head;
};
inline StreamPlan plan_streams(const FoldOutput* outputs, size_t bytes) {
  StreamPlan plan = {{false, false}, 0};
  bool decided = false;
  for (int i = 0; i < 2; ++i) {
    if (outputs[i].data == nullptr || !outputs[i].stream) continue;
    const size_t head = (kUnitBytes - reinterpret_cast<uintptr_t>(outputs[i].data) % kUnitBytes) % kUnitBytes;
    if (decided && head != plan.head) continue;
    decided = plan.stream[i] = true;
    plan.head = head;
  }
  if (plan.head > bytes) plan = {{false, false}, 0};
  return plan;
}

template <class F, class Op, bool kPrescaled>
void fold_part(const FoldArguments& a, Span part, typename F::Lane prescale, typename F::Lane factor) {
  const size_t bytes = part.end - part.begin;
  if (bytes == 0) return;
  std::byte padded[kUnitBytes] = {};
  const auto unit_of = [&](int j) {
    std::memcpy(padded, a.inputs[j] + part.begin, bytes);
    return static_cast<const std::byte*>(padded);
  };
  const U8 unit = fold_unit<F, Op, 0, kPrescaled>(unit_of, a.ninputs, prescale, factor);
  for (const FoldOutput& output : a.outputs) {
    if (output.data != nullptr) std::memcpy(output.data + part.begin, &unit, bytes);
  }
}

template <class F, class Op, int kInputs, bool kPrescaled>
void fold_float(const FoldArguments& a) {
  using Lane = typename F::Lane;
  const Lane prescale = static_cast<Lane>(a.reduction.prescale);
  const Lane factor = static_cast<Lane>(a.reduction.postscale / static_cast<double>(a.reduction.divisor));
  const size_t bytes = static_cast<size_t>(a.count) * F::kElementBytes;
  const StreamPlan plan = plan_streams(a.outputs, bytes);
  fold_part<F, Op, kPrescaled>(a, {0, plan.head}, prescale, factor);
  std::byte* const first = a.outputs[0].data;
  std::byte* const second = a.outputs[1].data;
  const bool stream_first = plan.stream[0], stream_second = plan.stream[1];
  const std::byte* const* const inputs = a.inputs;
  const int ninputs = a.ninputs;
  size_t at = plan.head;
  for (; at + kUnitBytes <= bytes; at += kUnitBytes) {
    const auto unit_of = [&](int j) { return inputs[j] + at; };
    const U8 unit = fold_unit<F, Op, kInputs, kPrescaled>(unit_of, ninputs, prescale, factor);
    store(first + at, unit, stream_first);
    if (second != nullptr) store(second + at, unit, stream_second);
  }
  fold_part<F, Op, kPrescaled>(a, {at, bytes}, prescale, factor);
  finish_streams(stream_first || stream_second);
}

template <class F>
void fold_float_by_op(const FoldArguments& a) {
  const bool prescaled = static_cast<typename F::Lane>(a.reduction.prescale) != 1;
  switch (a.reduction.op) {
    case HVD_PRODUCT:
      return prescaled ? fold_float<F, ProductOp, 0, true>(a) : fold_float<F, ProductOp, 0, false>(a);
    case HVD_MIN:
      return prescaled ? fold_float<F, MinOp, 0, true>(a) : fold_float<F, MinOp, 0, false>(a);
    case HVD_MAX:
      return prescaled ? fold_float<F, MaxOp, 0, true>(a) : fold_float<F, MaxOp, 0, false>(a);
    default:
      break;
  }
  if (prescaled) return fold_float<F, SumOp, 0, true>(a);
  switch (a.ninputs) {
    case 2:
      return fold_float<F, SumOp, 2, false>(a);
    case 3:
      return fold_float<F, SumOp, 3, false>(a);
    case 4:
      return fold_float<F, SumOp, 4, false>(a);
    case 8:
      return fold_float<F, SumOp, 8, false>(a);
    default:
      return fold_float<F, SumOp, 0, false>(a);
  }
}

void copy(std::byte* to, const std::byte* from, size_t bytes, bool stream) {
  size_t at = 0;
  if (stream) {
    at = (kUnitBytes - reinterpret_cast<uintptr_t>(to) % kUnitBytes) % kUnitBytes;
    at = at < bytes ? at : bytes;
    std::memcpy(to, from, at);
  }
  for (; at + 4 * kUnitBytes <= bytes; at += 4 * kUnitBytes) {
    U8 units[4];
    for (int i = 0; i < 4; ++i) units[i] = load<U8>(from + at + i * kUnitBytes);
    for (int i = 0; i < 4; ++i) store(to + at + i * kUnitBytes, units[i], stream);
  }
  std::memcpy(to + at, from + at, bytes - at);
  finish_streams(stream);
}

#include "reduction/kernel_integers.h"

// ---- halves in float32, and back

template <class F>
void widen_half(const std::byte* from, int64_t count, float* to) {
  const int64_t lanes = F::kLanes;
  F32 wide[F::kVectors];
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    F::widen(from + 2 * i, wide);
    std::memcpy(to + i, wide, sizeof wide);
  }
  if (i == count) return;
  std::byte padded[kUnitBytes] = {};
  std::memcpy(padded, from + 2 * i, static_cast<size_t>(count - i) * 2);
  F::widen(padded, wide);
  std::memcpy(to + i, wide, static_cast<size_t>(count - i) * sizeof(float));
}

template <class F>
void narrow_half(const float* from, int64_t count, std::byte* to) {
  const int64_t lanes = F::kLanes;
  for (int64_t i = 0; i < count; i += lanes) {
    const int64_t left = count - i < lanes ? count - i : lanes;
    F32 wide[F::kVectors] = {};
    std::memcpy(wide, from + i, static_cast<size_t>(left) * sizeof(float));
    for (F32& vector : wide) vector = vector == vector ? vector : F::nan();
    const U8 unit = F::narrow(wide);
    std::memcpy(to + 2 * i, &unit, static_cast<size_t>(left) * 2);
  }
}

void widen(DataType dtype, const std::byte* from, int64_t count, float* to) {
  return dtype == HVD_FLOAT16 ? widen_half<Float16>(from, count, to) : widen_half<Bfloat16>(from, count, to);
}

void narrow(DataType dtype, const float* from, int64_t count, std::byte* to) {
  return dtype == HVD_FLOAT16 ? narrow_half<Float16>(from, count, to) : narrow_half<Bfloat16>(from, count, to);
}

// ---- the table

void fold(const FoldArguments& a) {
  switch (a.reduction.dtype) {
    case HVD_FLOAT32:
      return fold_float_by_op<Float32>(a);
    case HVD_FLOAT64:
      return fold_float_by_op<Float64>(a);
    case HVD_FLOAT16:
      return fold_float_by_op<Float16>(a);
    case HVD_BFLOAT16:
      return fold_float_by_op<Bfloat16>(a);
    case HVD_UINT8:
      return fold_integer_by_op<uint8_t>(a);
    case HVD_INT8:
      return fold_integer_by_op<int8_t>(a);
    case HVD_INT16:
      return fold_integer_by_op<int16_t>(a);
    case HVD_INT32:
      return fold_integer_by_op<int32_t>(a);
    case HVD_INT64:
      return fold_integer_by_op<int64_t>(a);
    case HVD_UINT16:
      return fold_integer_by_op<uint16_t>(a);
    case HVD_UINT32:
      return fold_integer_by_op<uint32_t>(a);
    case HVD_UINT64:
      return fold_integer_by_op<uint64_t>(a);
    case HVD_BOOL:
      return fold_bool(a);
  }
}

}  // namespace
}  // namespace HVD_KERNEL_NAMESPACE

extern const KernelTable HVD_KERNEL_TABLE;
const KernelTable HVD_KERNEL_TABLE = {&HVD_KERNEL_NAMESPACE::fold, &HVD_KERNEL_NAMESPACE::copy,
                                      &HVD_KERNEL_NAMESPACE::widen, &HVD_KERNEL_NAMESPACE::narrow};

}  // namespace hvd
