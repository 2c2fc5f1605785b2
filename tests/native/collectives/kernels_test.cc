// SPDX-License-Identifier: Apache-2.0
// The element kernels against a scalar reference: every type, operation and instruction set, bit for bit.
#include "reduction/kernels.h"

#include <string>
#include <vector>

#include "check.h"
#include "platform/float_state.h"
#include "reference.h"

namespace {

using hvd::FoldOutput;
using hvd::InstructionSet;
using hvd::Kernels;
using hvd::Reduction;
using reference::Bytes;

constexpr InstructionSet kSets[] = {InstructionSet::kPlain, InstructionSet::kAvx2, InstructionSet::kAvx512};
constexpr hvd_op kOps[] = {HVD_SUM, HVD_PRODUCT, HVD_MIN, HVD_MAX, HVD_BITAND, HVD_BITOR, HVD_BITXOR};

std::vector<Kernels> available_kernels() {
  std::vector<Kernels> all;
  for (InstructionSet isa : kSets) {
    Kernels kernels;
    if (hvd::machine_has(isa)) {
      EXPECT(Kernels::create(isa, &kernels).ok());
      all.push_back(kernels);
    } else {
      EXPECT(Kernels::create(isa, &kernels).code() == HVD_UNAVAILABLE);
      std::printf("not run: this machine has no %s\n", hvd::instruction_set_name(isa));
    }
  }
  return all;
}

struct Scales {
  double prescale, postscale;
  int64_t divisor;
};

void expect_same(const Bytes& expected, const std::byte* seen, const Reduction& reduction, const Kernels& kernels,
                 size_t n, const char* what) {
  if (std::memcmp(expected.data(), seen, expected.size()) == 0) return;
  size_t at = 0;
  while (expected[at] == seen[at]) ++at;
  std::printf(
      "%s: isa %s, dtype %d, op %d, %zu inputs, prescale %g, postscale %g, divisor %ld: element %zu of %zu differs\n",
      what, hvd::instruction_set_name(kernels.instruction_set()), reduction.dtype, reduction.op, n, reduction.prescale,
      reduction.postscale, static_cast<long>(reduction.divisor), at / hvd::element_size(reduction.dtype),
      expected.size() / hvd::element_size(reduction.dtype));
  ++check::failures();
}

// One fold: into two places at the given misalignment and streaming, then in place into input `n - 1`.
void check_fold(const std::vector<Kernels>& all, const Reduction& reduction, size_t n, int64_t count, size_t shift,
                unsigned streams) {
  const size_t size = hvd::element_size(reduction.dtype), bytes = static_cast<size_t>(count) * size;
  std::vector<Bytes> inputs(n, Bytes(bytes + 64));
  std::vector<const std::byte*> pointers(n);
  for (size_t m = 0; m < n; ++m) {
    std::byte* const at = inputs[m].data() + (shift + m) % 4 * size;
    reference::fill(reduction.dtype, 1000 * m + static_cast<uint64_t>(count) + 7 * static_cast<uint64_t>(reduction.op),
                    at, count);
    pointers[m] = at;
  }
  const Bytes expected = reference::fold(reduction, pointers, count);
  for (const Kernels& kernels : all) {
    const std::byte guard{0x5a};
    Bytes first(bytes + 128, guard), second(bytes + 128, guard);
    std::byte* const one = first.data() + shift * size;
    std::byte* const two = second.data() + (shift * 3) % 5 * size;
    kernels.fold(reduction, pointers, count, FoldOutput{one, (streams & 1) != 0}, FoldOutput{two, (streams & 2) != 0});
    expect_same(expected, one, reduction, kernels, n, "first output");
    expect_same(expected, two, reduction, kernels, n, "second output");
    EXPECT(one[bytes] == guard && two[bytes] == guard);
    EXPECT(shift == 0 || one[-1] == guard);
    std::vector<Bytes> copies = inputs;
    std::vector<const std::byte*> in_place(n);
    for (size_t m = 0; m < n; ++m) in_place[m] = copies[m].data() + (pointers[m] - inputs[m].data());
    std::byte* const last = const_cast<std::byte*>(in_place[n - 1]);
    kernels.fold(reduction, in_place, count, FoldOutput{last, (streams & 1) != 0});
    expect_same(expected, last, reduction, kernels, n, "in place");
  }
}

TEST(every_type_and_operation_gives_the_reference_bits_on_every_instruction_set) {
  const std::vector<Kernels> all = available_kernels();
  constexpr Scales kScales[] = {{1, 1, 1}, {1, 1, 3}, {0.3, 1, 1}, {1, -2.5, 1}, {1e10, 0.7, 5}};
  constexpr int64_t kCounts[] = {1, 3, 17, 64, 133, 700};
  for (int dtype = HVD_UINT8; dtype <= HVD_UINT64; ++dtype) {
    for (hvd_op op : kOps) {
      if (!reference::legal(static_cast<hvd_dtype>(dtype), op)) continue;
      for (const Scales& scales : kScales) {
        if ((dtype == HVD_BOOL || hvd::is_bitwise(op)) &&
            (scales.prescale != 1 || scales.postscale != 1 || scales.divisor != 1))
          continue;
        if (op != HVD_SUM && scales.divisor != 1) continue;
        for (size_t n : {1, 2, 3, 4, 5, 8, 9}) {
          const int64_t count = kCounts[(n + static_cast<size_t>(dtype)) % 6];
          const Reduction reduction{static_cast<hvd_dtype>(dtype), op, scales.prescale, scales.postscale,
                                    scales.divisor};
          for (unsigned streams = 0; streams < 4; ++streams) check_fold(all, reduction, n, count, n % 4, streams);
        }
      }
    }
  }
}

TEST(many_inputs_and_all_small_counts) {
  const std::vector<Kernels> all = available_kernels();
  for (hvd_dtype dtype : {HVD_FLOAT32, HVD_FLOAT16, HVD_BFLOAT16, HVD_FLOAT64, HVD_INT8}) {
    check_fold(all, {dtype, HVD_SUM, 1, 1, 64}, 64, 300, 1, 1);
    check_fold(all, {dtype, HVD_SUM, 1, 1, 1}, 200, 77, 1, 2);
    for (int64_t count = 1; count < 140; ++count) check_fold(all, {dtype, HVD_SUM, 1, 1, 2}, 2, count, 3, 3);
  }
}

TEST(every_half_keeps_its_value_through_a_fold_with_zero) {
  for (const Kernels& kernels : available_kernels()) {
    for (hvd_dtype dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
      std::vector<uint16_t> all(65536), zeros(65536, 0x8000), out(65536);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      const std::byte* inputs[] = {reinterpret_cast<std::byte*>(all.data()),
                                   reinterpret_cast<std::byte*>(zeros.data())};
      kernels.fold({dtype, HVD_SUM}, inputs, 65536, {reinterpret_cast<std::byte*>(out.data())});
      const uint16_t infinity = dtype == HVD_FLOAT16 ? 0x7c00 : 0x7f80, nan = dtype == HVD_FLOAT16 ? 0x7e00 : 0x7fc0;
      size_t wrong = 0;
      for (size_t i = 0; i < all.size(); ++i) wrong += out[i] != ((i & 0x7fff) > infinity ? nan : i);
      EXPECT(wrong == 0);
    }
  }
}

// All float32 sums that a half can be rounded from are too many; the ones around every rounding boundary are not.
TEST(rounding_to_halves_is_to_nearest_even) {
  const std::vector<Kernels> all = available_kernels();
  std::vector<float> scales;
  for (int e = -30; e <= 20; ++e) scales.push_back(std::ldexp(1.0f, e));
  for (hvd_dtype dtype : {HVD_FLOAT16, HVD_BFLOAT16}) {
    for (float scale : scales) check_fold(all, {dtype, HVD_SUM, 1, scale * 0.7f, 1}, 2, 700, 0, 0);
    for (float scale : scales) check_fold(all, {dtype, HVD_SUM, 1, scale, 1}, 2, 700, 0, 0);
  }
}

#if defined(__x86_64__)
TEST(float_state_restores_denormals_for_a_caller_who_flushes_them) {
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
  const uint32_t flushing = _mm_getcsr();
  {
    const hvd::FloatState state;
    for (const Kernels& kernels : available_kernels()) {
      float a = std::numeric_limits<float>::denorm_min(), b = a, out = 0;
      const std::byte* inputs[] = {reinterpret_cast<std::byte*>(&a), reinterpret_cast<std::byte*>(&b)};
      kernels.fold({HVD_FLOAT32, HVD_SUM}, inputs, 1, {reinterpret_cast<std::byte*>(&out)});
      uint32_t bits;
      std::memcpy(&bits, &out, sizeof bits);
      EXPECT(bits == 2);
    }
  }
  EXPECT((_mm_getcsr() & ~0x3fu) == (flushing & ~0x3fu));
  _mm_setcsr(before);
}
#endif

TEST(copies_of_every_length_and_alignment_keep_to_their_bounds) {
  for (const Kernels& kernels : available_kernels()) {
    Bytes from(5000), to(5000);
    reference::fill(HVD_UINT8, 3, from.data(), 5000);
    for (bool stream : {false, true}) {
      for (size_t length = 0; length < 700; length += length < 140 ? 1 : 37) {
        for (size_t shift : {0, 1, 8, 63}) {
          std::fill(to.begin(), to.end(), std::byte{0x5a});
          kernels.copy(to.data() + shift, from.data() + 5, length, stream);
          EXPECT(std::memcmp(to.data() + shift, from.data() + 5, length) == 0);
          EXPECT(to[shift + length] == std::byte{0x5a} && (shift == 0 || to[shift - 1] == std::byte{0x5a}));
        }
      }
    }
  }
}

}  // namespace

TEST_MAIN
