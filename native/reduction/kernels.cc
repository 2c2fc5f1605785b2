// SPDX-License-Identifier: Apache-2.0
// Choice of an instruction set at run time; the kernels themselves are kernel_body.h, compiled once per set (step 7).
#include "reduction/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace hvd {

extern const KernelTable kPlainKernels;
#if defined(__x86_64__)
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
#endif

namespace {

const KernelTable* table_of([[maybe_unused]] InstructionSet isa) {
#if defined(__x86_64__)
  if (isa == InstructionSet::kAvx512) return &kAvx512Kernels;
  if (isa == InstructionSet::kAvx2) return &kAvx2Kernels;
#endif
  return &kPlainKernels;
}

struct WideSets {
  bool avx2 = false, avx512 = false;
};

// Asks the processor itself: __builtin_cpu_supports is answered by the compiler's runtime library, and that of the
// wheels' compiler always says no.
WideSets wide_sets() {
  WideSets found;
#if defined(__x86_64__)
  constexpr unsigned kAvx2Needs = bit_OSXSAVE | bit_AVX | bit_F16C;
  constexpr unsigned kAvx512Parts = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
  // Registers that the operating system keeps for each thread (XCR0).
  constexpr unsigned kYmm = 0x06, kZmm = 0xe6;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kAvx2Needs) != kAvx2Needs) return found;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  unsigned kept = 0, high = 0;
  asm("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  found.avx2 = (ebx & bit_AVX2) != 0 && (kept & kYmm) == kYmm;
  found.avx512 = found.avx2 && (ebx & kAvx512Parts) == kAvx512Parts && (kept & kZmm) == kZmm;
#endif
  return found;
}

InstructionSet best_instruction_set() {
  if (machine_has(InstructionSet::kAvx512)) return InstructionSet::kAvx512;
  return machine_has(InstructionSet::kAvx2) ? InstructionSet::kAvx2 : InstructionSet::kPlain;
}

}  // namespace

const char* instruction_set_name(InstructionSet isa) {
  switch (isa) {
    case InstructionSet::kPlain:
      return "plain";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kBest:
      return "best";
  }
  return "unknown";
}

bool machine_has(InstructionSet isa) {
  static const WideSets found = wide_sets();
  if (isa == InstructionSet::kAvx2) return found.avx2;
  if (isa == InstructionSet::kAvx512) return found.avx512;
  return true;
}

Status Kernels::create(InstructionSet isa, Kernels* out) {
  if (!machine_has(isa)) {
    return Status(HVD_UNAVAILABLE, std::string("this machine has no ") + instruction_set_name(isa) +
                                       ". hint: leave the instruction set at its default");
  }
  out->isa_ = isa == InstructionSet::kBest ? best_instruction_set() : isa;
  out->table_ = table_of(out->isa_);
  return Status();
}

Kernels::Kernels() : table_(nullptr), isa_(best_instruction_set()) { table_ = table_of(isa_); }

void Kernels::fold(const Reduction& reduction, std::span<const std::byte* const> inputs, int64_t count,
                   FoldOutput first, FoldOutput second) const {
  if (count == 0) return;
  const bool unscaled = reduction.prescale == 1.0 && reduction.postscale == 1.0 && reduction.divisor == 1;
  if (inputs.size() == 1 && (unscaled || reduction.dtype == HVD_BOOL)) {
    const size_t bytes = static_cast<size_t>(count) * element_size(reduction.dtype);
    copy(first.data, inputs[0], bytes, first.stream);
    if (second.data != nullptr) copy(second.data, inputs[0], bytes, second.stream);
    return;
  }
  table_->fold({inputs.data(), static_cast<int>(inputs.size()), count, {first, second}, reduction});
}

}  // namespace hvd
