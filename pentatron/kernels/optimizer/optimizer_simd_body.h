// Included once per instruction set by optimizer_simd.cpp. The same operations as in the reference,
// in the same order and without contraction to fused multiply-add: the results are the reference's
// bit for bit.

#include "pentatron/kernels/common/philox_body.h"

/// f(i, lanes) over [0, n) in vectors V, on threads.
template <class V, class F> void for_blocks(int64_t n, F&& f) {
  parallel_blocks(n, kStepBlock,
                  [&](int64_t begin, int64_t end, int64_t) { for_vectors<V>(begin, end, f); });
}

struct NoCopy {};

/// Calls f(pointer or NoCopy) for the second output of a step; doubles have none here.
template <class T, class F> void with_copy(void* copy, DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(NoCopy{});
  } else if (!copy) {
    f(NoCopy{});
  } else {
    visit_dtype(dtype, [&]<class Copy>(Copy) {
      if constexpr (!std::is_same_v<Copy, double>) f(static_cast<Copy*>(copy));
    });
  }
}

/// Ties of bf16 are rounded away from zero.
template <class Copy, class V, class Lanes>
void store_copy(Copy copy, int64_t i, V x, Lanes lanes) {
  if constexpr (std::is_same_v<Copy, bf16*>) {
    const VI bits = as_int(x);
    store(copy + i, as_float(bits | ((bits >> 15) & 1)), lanes);
  } else if constexpr (!std::is_same_v<Copy, NoCopy>) {
    store(copy + i, x, lanes);
  }
}

/// p = rule(i, lanes, p, grad_scale * grad) for vectors, and the copy of it. make(scalars) gives
/// the rule.
template <template <class> class Scalars, class Args, class F>
void update(const Args& a, F&& make) {
  visit_acc_dtype(a.dtype, [&]<class T>(T) {
    with_copy<T>(a.param_copy, a.copy_dtype, [&]<class Copy>(Copy copy) {
      using V = Vec<T>;
      const Scalars<T> s(a);
      const auto rule = make(s);
      T* p = static_cast<T*>(a.param);
      const T* grad = static_cast<const T*>(a.grad);
      for_blocks<V>(a.n, [&](int64_t i, auto lanes) {
        const V p1 = rule(i, lanes, load(p + i, lanes), s.grad_scale * load(grad + i, lanes));
        store(p + i, p1, lanes);
        store_copy(copy, i, p1, lanes);
      });
    });
  });
}

void adamw(const AdamWArgs& given, const Context&) {
  AdamWArgs a = given;
  if (!take_control(a)) return;
  update<AdamWScalars>(a, [&]<class T>(const AdamWScalars<T>& s) {
    return [s, m = static_cast<T*>(a.exp_avg),
            v = static_cast<T*>(a.exp_avg_sq)](int64_t i, auto lanes, Vec<T> p, Vec<T> g) {
      const Vec<T> m0 = load(m + i, lanes);
      const Vec<T> m1 = m0 + s.weight1 * (g - m0);
      const Vec<T> v1 = load(v + i, lanes) * s.beta2 + s.weight2 * g * g;
      const Vec<T> denominator = sqrt(v1) / s.correction2 + s.eps;
      store(m + i, m1, lanes);
      store(v + i, v1, lanes);
      return p * s.decay - s.step_size * m1 / denominator;
    };
  });
}

void sgd(const SgdArgs& given, const Context&) {
  SgdArgs a = given;
  if (!take_control(a)) return;
  update<SgdScalars>(a, [&]<class T>(const SgdScalars<T>& s) {
    return [s, nesterov = a.nesterov, b = static_cast<T*>(a.momentum_buffer)](
               int64_t i, auto lanes, Vec<T> p, Vec<T> scaled) {
      Vec<T> g = scaled + s.decay * p;
      if (b) {
        const Vec<T> b1 = s.momentum * load(b + i, lanes) + g;
        store(b + i, b1, lanes);
        g = nesterov ? g + s.momentum * b1 : b1;
      }
      return p - s.lr * g;
    };
  });
}

void lion(const LionArgs& given, const Context&) {
  LionArgs a = given;
  if (!take_control(a)) return;
  update<LionScalars>(a, [&]<class T>(const LionScalars<T>& s) {
    return [s, m = static_cast<T*>(a.exp_avg)](int64_t i, auto lanes, Vec<T> p, Vec<T> g) {
      const Vec<T> zero{}, one = zero + T(1), m0 = load(m + i, lanes);
      const Vec<T> c = s.beta1 * m0 + s.weight1 * g;
      const Vec<T> negative = c < zero ? -one : c; // 0 and NaN stay
      const Vec<T> sign = c > zero ? one : negative;
      store(m + i, s.beta2 * m0 + s.weight2 * g, lanes);
      return p * s.decay - s.lr * sign;
    };
  });
}

/// The lanes of sum_of_squares as vectors of doubles, in order.
struct Lanes {
  static constexpr int kVectors = kSumLanes / kLanesOf<VD>;
  VD sum[kVectors];
};

template <class T> void add_squares(Lanes& lanes, const T* x) {
  if constexpr (std::is_same_v<T, double>) {
    for (int k = 0; k < Lanes::kVectors; ++k) {
      const VD value = load(x + k * kLanesOf<VD>);
      lanes.sum[k] = fma(value, value, lanes.sum[k]);
    }
  } else {
    for (int k = 0; k < Lanes::kVectors; k += 2) {
      const VF value = load(x + k * kLanesOf<VD>);
      const VD low = lower_doubles(value), high = upper_doubles(value);
      lanes.sum[k] = fma(low, low, lanes.sum[k]);
      lanes.sum[k + 1] = fma(high, high, lanes.sum[k + 1]);
    }
  }
}

template <class T> double block_sum_of_squares(const T* x, int64_t n) {
  Lanes lanes{};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) add_squares(lanes, x + i);
  if (i < n) {
    T rest[kSumLanes] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(T));
    add_squares(lanes, rest);
  }
  double out[kSumLanes];
  for (int k = 0; k < Lanes::kVectors; ++k) store(out + k * kLanesOf<VD>, lanes.sum[k]);
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) out[l] += out[l + width];
  }
  return out[0];
}

void sum_of_squares(const SumOfSquaresArgs& a, const Context&) {
  std::vector<double> partial(static_cast<size_t>((a.n + kSumBlock - 1) / kSumBlock));
  visit_dtype(a.dtype, [&]<class T>(T) {
    const T* x = static_cast<const T*>(a.x);
    parallel_blocks(a.n, kSumBlock, [&](int64_t begin, int64_t end, int64_t block) {
      partial[static_cast<size_t>(block)] = block_sum_of_squares(x + begin, end - begin);
    });
  });
  double sum = 0;
  for (const double p : partial) sum += p;
  *a.result = sum;
}

void find_nonfinite(const NonfiniteArgs& a, const Context& context) {
  // 0 x is NaN exactly if x is NaN or infinite. A buffer is nearly always clean, so only the answer
  // yes costs a second pass.
  std::vector<uint8_t> dirty(static_cast<size_t>((a.n + kStepBlock - 1) / kStepBlock));
  visit_dtype(a.dtype, [&]<class T>(T) {
    using V = Vec<acc_t<T>>;
    const T* x = static_cast<const T*>(a.x);
    parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t block) {
      const V nothing{};
      V sum0{}, sum1{};
      int64_t i = begin;
      for (; i + 2 * kLanesOf<V> <= end; i += 2 * kLanesOf<V>) {
        sum0 = fma(load(x + i), nothing, sum0);
        sum1 = fma(load(x + i + kLanesOf<V>), nothing, sum1);
      }
      for_vectors<V>(i, end,
                     [&](int64_t j, auto lanes) { sum0 = fma(load(x + j, lanes), nothing, sum0); });
      acc_t<T> sums[kLanesOf<V>];
      store(sums, sum0 + sum1);
      for (const auto sum : sums) dirty[static_cast<size_t>(block)] |= std::isnan(sum) ? 1 : 0;
    });
  });
  *a.count = 0;
  *a.first_index = -1;
  for (size_t block = 0; block < dirty.size(); ++block) {
    if (!dirty[block]) continue;
    const int64_t begin = static_cast<int64_t>(block) * kStepBlock;
    int64_t count = 0, first = 0;
    NonfiniteArgs part = a;
    part.n = std::min(kStepBlock, a.n - begin);
    part.x = static_cast<const char*>(a.x) + begin * static_cast<int64_t>(element_size(a.dtype));
    part.count = &count;
    part.first_index = &first;
    optimizer_reference::find_nonfinite(part, context);
    if (*a.first_index < 0) *a.first_index = begin + first;
    *a.count += count;
  }
}

void scale(const ScaleArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    using V = Vec<acc_t<T>>;
    const auto factor = static_cast<acc_t<T>>(a.factor);
    T* x = static_cast<T*>(a.x);
    for_blocks<V>(a.n,
                  [&](int64_t i, auto lanes) { store(x + i, load(x + i, lanes) * factor, lanes); });
  });
}

void cast(const CastArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      if constexpr (!std::is_same_v<T, double> && !std::is_same_v<Out, double>) {
        const T* x = static_cast<const T*>(a.x);
        Out* out = static_cast<Out*>(a.out);
        for_blocks<VF>(a.n,
                       [&](int64_t i, auto lanes) { store(out + i, load(x + i, lanes), lanes); });
      }
    });
  });
}

/// goes_up() in every lane; 1 or 0.
template <bool chance> VU goes_up(VF rest, VF gap, VU below, VU half) {
  if constexpr (chance)
    return (VU)((__builtin_convertvector((VI)half, VF) + 0.5f) * 0x1p-16f * gap < rest) & 1u;
  else
    return (VU)((rest > 0.5f * gap) | ((rest == 0.5f * gap) & (VI)((below & 1u) != 0))) & 1u;
}

/// bfloat_code() in every lane.
template <bool chance> VU bfloat_code(VF x, VU half) {
  const VU bits = (VU)x, size = bits & 0x7FFFFFFFu, sign = bits >> 31 << 15;
  VU more;
  if constexpr (chance)
    more = 0xFFFFu - half;
  else
    more = 0x7FFFu + ((size >> 16) & 1u);
  const VU code = (size + more) >> 16, largest = VU{} + 0x7F7Fu;
  const VU finite = code < largest ? code : largest;
  const VU other = size > 0x7F800000u ? VU{} + 0x7FC0u : VU{} + 0x7F80u;
  return (size < 0x7F800000u ? finite : other) | sign;
}

/// narrow_code() in every lane.
template <NarrowType type, bool root, bool chance> VU narrow_code(VF x, VU half) {
  constexpr NarrowFormat f = format_of(type);
  constexpr int least = f.least << 23;
  VF size;
  if constexpr (root)
    size = sqrt(x);
  else
    size = as_float(as_int(x) & 0x7FFFFFFF);
  const VI field = as_int(size) & 0x7F800000;
  const VI exponent = field > least ? field : VI{} + least;
  const VF units = (VF)(((254u + f.mantissa) << 23) - (VU)exponent), scaled = size * units;
  const VI below = __builtin_convertvector(scaled, VI);
  const VF low = __builtin_convertvector(below, VF);
  VF rest = scaled - low, gap = VF{} + 1.0f;
  if constexpr (root && chance) {
    rest = x * units * units - low * low;
    gap = 2 * low + 1;
  }
  const VU code = (VU)(((exponent - least) >> (23 - f.mantissa)) + below);
  const VU nearby = code + goes_up<chance>(rest, gap, code, half);
  const VU within = size < f.largest_number ? nearby : VU{} + f.largest;
  const VU number = size == size ? within : VU{} + f.nan;
  if constexpr (root) return number;
  return number | (VU)x >> 31 << (f.width - 1);
}

/// The bits of 128 neighbours: `group` is their number over 128.
inline void draw_halves(const StoreNarrowArgs& a, uint64_t group, uint32_t* halves) {
  const VU step_low = VU{} + static_cast<uint32_t>(a.step),
           step_high = VU{} + static_cast<uint32_t>(a.step >> 32);
  for (uint64_t lane = 0; lane < 16; lane += kLanes) {
    const uint64_t counter = group * 16 + lane;
    const PhiloxLanes drawn =
        philox4x32({{lane_numbers() + static_cast<uint32_t>(counter),
                     VU{} + static_cast<uint32_t>(counter >> 32), step_low, step_high}},
                   a.key);
    for (uint64_t w = 0; w < 4; ++w) {
      const VU low = drawn.word[w] & 0xFFFFu, high = drawn.word[w] >> 16;
      std::memcpy(halves + 16 * w + lane, &low, sizeof low);
      std::memcpy(halves + 16 * (w + 4) + lane, &high, sizeof high);
    }
  }
}

/// The lanes as numbers of type T.
template <class T> inline void store_codes(T* p, VU codes, Full) {
  typedef T Narrow __attribute__((vector_size(sizeof(T) * PT_LANES)));
  const Narrow narrow = __builtin_convertvector(codes, Narrow);
  std::memcpy(p, &narrow, sizeof narrow);
}
template <class T> inline void store_codes(T* p, VU codes, Part lanes) {
  T narrow[kLanes];
  store_codes(narrow, codes, Full{});
  std::memcpy(p, narrow, static_cast<size_t>(lanes.count) * sizeof(T));
}

template <NarrowType type, bool root, bool chance> void store_rows(const StoreNarrowArgs& a) {
  using T = std::conditional_t<format_of(type).width == 8, uint8_t, uint16_t>;
  const auto scale = static_cast<float>(a.scale);
  const VF beyond = a.positive ? VF{} : broadcast(std::numeric_limits<float>::infinity());
  parallel_rows(a.rows, a.cols, kStepBlock, [&](int64_t row, int64_t begin, int64_t end) {
    const float* value = static_cast<const float*>(a.value) + row * a.stride;
    T* stored = static_cast<T*>(a.stored) + row * a.stride;
    const int64_t first = a.first + row * a.first_step;
    // Zero behind them: a part of a vector may begin near the end of the group.
    alignas(64) uint32_t halves[128 + kLanes] = {};
    for (int64_t col = begin; col < end;) {
      const int64_t skipped = (first + col) % 128, width = std::min(128 - skipped, end - col);
      if (chance) draw_halves(a, static_cast<uint64_t>((first + col) / 128), halves);
      for_vectors(width, [&](int64_t i, auto lanes) {
        VU half;
        std::memcpy(&half, halves + skipped + i, sizeof half);
        const VF x = load(value + col + i, lanes), scaled = root ? x * scale * scale : x * scale;
        VU code;
        if constexpr (type == NarrowType::kBFloat16)
          code = bfloat_code<chance>(scaled, half);
        else
          code = narrow_code<type, root, chance>(scaled, half);
        store_codes(stored + col + i, ((code == 0) & (x > beyond)) ? VU{} + 1 : code, lanes);
      });
      col += width;
    }
  });
}

template <NarrowType type> void store_narrow_as(const StoreNarrowArgs& a) {
  if constexpr (type == NarrowType::kE4M3)
    if (a.root)
      return a.by_chance ? store_rows<type, true, true>(a) : store_rows<type, true, false>(a);
  a.by_chance ? store_rows<type, false, true>(a) : store_rows<type, false, false>(a);
}

void store_narrow(const StoreNarrowArgs& a) {
  switch (a.type) {
  case NarrowType::kBFloat16:
    return store_narrow_as<NarrowType::kBFloat16>(a);
  case NarrowType::kFloat16:
    return store_narrow_as<NarrowType::kFloat16>(a);
  case NarrowType::kE4M3:
    return store_narrow_as<NarrowType::kE4M3>(a);
  }
}

/// number_of() of e4m3 in every lane. (That of cached attention knows no NaN.)
inline VF load_e4m3(const uint8_t* p, Full) {
  constexpr NarrowFormat f = format_of(NarrowType::kE4M3);
#if PT_LANES == 16
  const VI code = (VI)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  const VI code = (VI)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
  const VI size = code & 0x7F;
  const VF normal = as_float((size << (23 - f.mantissa)) + ((f.least - 1) << 23));
  const VF small = __builtin_convertvector(size, VF) * 0x1p-9f;
  const VF number = size < (1 << f.mantissa) ? small : normal;
  const VI bits = size > static_cast<int>(f.largest) ? VI{} + 0x7FC00000 : as_int(number);
  return as_float(bits | ((code & 0x80) << 24));
}
inline VF load_e4m3(const uint8_t* p, Part lanes) {
  uint8_t codes[kLanes] = {};
  std::memcpy(codes, p, static_cast<size_t>(lanes.count));
  return load_e4m3(codes, Full{});
}

void load_narrow(const LoadNarrowArgs& a) {
  const auto inverse = static_cast<float>(1 / a.scale);
  float* value = static_cast<float*>(a.value);
  const auto each = [&](auto&& number) {
    for_blocks<VF>(a.n, [&](int64_t i, auto lanes) {
      const VF x = number(i, lanes) * inverse;
      store(value + i, a.root ? x * x : x, lanes);
    });
  };
  switch (a.type) {
  case NarrowType::kBFloat16:
    return each(
        [&](int64_t i, auto lanes) { return load(static_cast<const bf16*>(a.stored) + i, lanes); });
  case NarrowType::kFloat16:
    return each(
        [&](int64_t i, auto lanes) { return load(static_cast<const fp16*>(a.stored) + i, lanes); });
  case NarrowType::kE4M3:
    return each([&](int64_t i, auto lanes) {
      return load_e4m3(static_cast<const uint8_t*>(a.stored) + i, lanes);
    });
  }
}
