// SPDX-License-Identifier: Apache-2.0
// Integers and bool: part of kernel_body.h, inside its namespace (step 7). The compiler vectorises the loops; bits
// cannot differ.
//
// A block of elements is accumulated in the first-level cache, so that an output may be one of the inputs.

constexpr int64_t kBlockElements = 512;

template <class T>
inline T get(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + static_cast<size_t>(index) * sizeof(T), sizeof value);
  return value;
}

// The accumulation type for values of T, and how values are folded into it.
template <class T, class Wide>
struct WrappingSum {
  using Accumulator = Wide;
  static void add(Wide* into, T value) { *into = static_cast<Wide>(*into + static_cast<Wide>(value)); }
};
template <class T, class Wide>
struct WrappingProduct {
  using Accumulator = Wide;
  static void add(Wide* into, T value) { *into = static_cast<Wide>(*into * static_cast<Wide>(value)); }
};
template <class T>
struct Smaller {
  using Accumulator = T;
  static void add(T* into, T value) { *into = value < *into ? value : *into; }
};
template <class T>
struct Larger {
  using Accumulator = T;
  static void add(T* into, T value) { *into = value > *into ? value : *into; }
};
template <class T>
struct And {
  using Accumulator = T;
  static void add(T* into, T value) { *into = static_cast<T>(*into & value); }
};
template <class T>
struct Or {
  using Accumulator = T;
  static void add(T* into, T value) { *into = static_cast<T>(*into | value); }
};
template <class T>
struct Xor {
  using Accumulator = T;
  static void add(T* into, T value) { *into = static_cast<T>(*into ^ value); }
};

// `first(value)` opens an accumulator, `add` folds a further value in, `last(accumulator)` makes the result.
template <class T, class Accumulator, class First, class Add, class Last>
inline void fold_blocks(const FoldArguments& a, First first, Add add, Last last) {
  Accumulator accumulators[kBlockElements];
  T results[kBlockElements];
  for (int64_t begin = 0; begin < a.count; begin += kBlockElements) {
    const int64_t n = a.count - begin < kBlockElements ? a.count - begin : kBlockElements;
    const size_t offset = static_cast<size_t>(begin) * sizeof(T);
    for (int64_t i = 0; i < n; ++i) accumulators[i] = first(get<T>(a.inputs[0] + offset, i));
    for (int j = 1; j < a.ninputs; ++j) {
      const std::byte* const input = a.inputs[j] + offset;
      for (int64_t i = 0; i < n; ++i) add(&accumulators[i], get<T>(input, i));
    }
    for (int64_t i = 0; i < n; ++i) results[i] = last(accumulators[i]);
    for (const FoldOutput& output : a.outputs) {
      if (output.data != nullptr)
        copy(output.data + offset, reinterpret_cast<const std::byte*>(results), n * sizeof(T), output.stream);
    }
  }
}

template <class T>
struct Limits {
  static constexpr T kMax =
      std::is_signed_v<T> ? static_cast<T>((uint64_t{1} << (8 * sizeof(T) - 1)) - 1) : static_cast<T>(~T{0});
  static constexpr T kMin = std::is_signed_v<T> ? static_cast<T>(-kMax - 1) : T{0};
};

// value * scale, truncated toward zero, saturating; NaN (0 * infinity) becomes 0.
template <class T>
inline T scaled(T value, double scale) {
  const double product = static_cast<double>(value) * scale;
  if (product != product) return 0;
  if (product >= static_cast<double>(Limits<T>::kMax)) return Limits<T>::kMax;  // for int64 the bound rounds up to 2^63
  if (product <= static_cast<double>(Limits<T>::kMin)) return Limits<T>::kMin;
  return static_cast<T>(product);
}

template <class T, class Fold>
void fold_unscaled(const FoldArguments& a) {
  using Accumulator = typename Fold::Accumulator;
  fold_blocks<T, Accumulator>(
      a, [](T value) { return static_cast<Accumulator>(value); },
      [](Accumulator* into, T value) { Fold::add(into, value); },
      [](Accumulator total) { return static_cast<T>(total); });
}

template <class T, class Fold>
void fold_integer(const FoldArguments& a) {
  using Accumulator = typename Fold::Accumulator;
  const double prescale = a.reduction.prescale, postscale = a.reduction.postscale;
  if (prescale == 1.0 && postscale == 1.0) return fold_unscaled<T, Fold>(a);
  const auto before = [=](T value) { return prescale == 1.0 ? value : scaled<T>(value, prescale); };
  fold_blocks<T, Accumulator>(
      a, [=](T value) { return static_cast<Accumulator>(before(value)); },
      [=](Accumulator* into, T value) { Fold::add(into, before(value)); },
      [=](Accumulator total) {
        return postscale == 1.0 ? static_cast<T>(total) : scaled<T>(static_cast<T>(total), postscale);
      });
}

// The exact sum divided, truncated toward zero. Up to 32 bits the sum is exact in a double, and so is its truncated
// quotient: the quotient's rounding error is far below 1 / divisor.
template <class T>
void average_integer(const FoldArguments& a) {
  using Exact = std::conditional_t<sizeof(T) == 8, __int128, double>;
  using Quotient = std::conditional_t<sizeof(T) == 8, int64_t, std::conditional_t<sizeof(T) == 4, int64_t, int32_t>>;
  const double prescale = a.reduction.prescale, postscale = a.reduction.postscale;
  const Exact divisor = static_cast<Exact>(a.reduction.divisor);
  if (prescale == 1.0 && postscale == 1.0) {
    fold_blocks<T, Exact>(
        a, [](T value) { return static_cast<Exact>(value); },
        [](Exact* into, T value) { *into += static_cast<Exact>(value); },
        [=](Exact total) { return static_cast<T>(static_cast<Quotient>(total / divisor)); });
    return;
  }
  const auto before = [=](T value) { return static_cast<Exact>(prescale == 1.0 ? value : scaled<T>(value, prescale)); };
  fold_blocks<T, Exact>(
      a, before, [=](Exact* into, T value) { *into += before(value); },
      [=](Exact total) {
        const T quotient = static_cast<T>(static_cast<Quotient>(total / divisor));
        return postscale == 1.0 ? quotient : scaled<T>(quotient, postscale);
      });
}

template <class T>
void fold_integer_by_op(const FoldArguments& a) {
  // Unsigned, and at least 32 bits wide: overflow wraps instead of being undefined.
  using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  using Bits = std::make_unsigned_t<T>;
  switch (a.reduction.op) {
    case HVD_BITAND:
      return fold_unscaled<Bits, And<Bits>>(a);
    case HVD_BITOR:
      return fold_unscaled<Bits, Or<Bits>>(a);
    case HVD_BITXOR:
      return fold_unscaled<Bits, Xor<Bits>>(a);
    case HVD_PRODUCT:
      return fold_integer<T, WrappingProduct<T, Wide>>(a);
    case HVD_MIN:
      return fold_integer<T, Smaller<T>>(a);
    case HVD_MAX:
      return fold_integer<T, Larger<T>>(a);
    default:
      break;
  }
  return a.reduction.divisor != 1 ? average_integer<T>(a) : fold_integer<T, WrappingSum<T, Wide>>(a);
}

template <class Fold>
void fold_truths(const FoldArguments& a) {
  const auto truth = [](uint8_t value) { return static_cast<uint8_t>(value != 0); };
  fold_blocks<uint8_t, uint8_t>(
      a, truth, [=](uint8_t* into, uint8_t value) { Fold::add(into, truth(value)); },
      [](uint8_t total) { return total; });
}

void fold_bool(const FoldArguments& a) {
  switch (a.reduction.op) {
    case HVD_MIN:
    case HVD_BITAND:
      return fold_truths<And<uint8_t>>(a);
    case HVD_BITXOR:
      return fold_truths<Xor<uint8_t>>(a);
    default:
      return fold_truths<Or<uint8_t>>(a);
  }
}
