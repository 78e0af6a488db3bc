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

/// code_by_chance() in every lane.
inline VU code_by_chance(const NarrowFormat& f, VF x, VU random) {
  const VU bits = (VU)x, size = bits & 0x7FFFFFFFu, sign = bits >> 31 << (f.width - 1);
  const VI none{}, least = none + f.least, field = (VI)(size >> 23);
  const VI exponent = field > 1 ? field : none + 1;
  const VU digits = field > 0 ? (size & 0x7FFFFFu) | 0x800000u : size;
  const VI deep = exponent < least ? least - exponent : none, shift = deep + (23 - f.mantissa);
  const VI left = 32 - shift, right = shift < 63 ? shift - 32 : none + 31;
  const VU below = digits >> (VU)(shift < 31 ? shift : none + 31);
  const VU share = (digits << (VU)(left > 0 ? left : none)) >> (VU)(right > 0 ? right : none);
  const VI above = exponent > least ? exponent - least : none;
  const VU up = (VU)(random < share) & 1u;
  const VU code = ((VU)above << f.mantissa) + below + up, largest = VU{} + f.largest;
  const VU finite = code < largest ? code : largest;
  const VU other = size > 0x7F800000u ? VU{} + f.nan : VU{} + f.infinity;
  return (size < 0x7F800000u ? finite : other) | sign;
}

/// root_by_chance() in every lane.
inline VU root_by_chance(const NarrowFormat& f, VF square, VU random) {
  const VF root = sqrt(square);
  const VI least = VI{} + (f.least << 23), field = as_int(root) & 0x7F800000;
  const VI exponent = field > least ? field : least;
  const VF units = as_float(((254 + f.mantissa) << 23) - exponent);
  const VI below = __builtin_convertvector(root * units, VI);
  const VF low = __builtin_convertvector(below, VF);
  const VF share = (square * units * units - low * low) / (2 * low + 1);
  const VF uniform = __builtin_convertvector((VI)(random >> 8), VF) * 0x1p-24f;
  const VI up = (uniform < share) & 1;
  const VU code = (VU)(((exponent - least) >> (23 - f.mantissa)) + below + up);
  const VU within = root < f.largest_number ? code : VU{} + f.largest;
  return root == root ? within : VU{} + f.nan;
}

/// The random words of 64 neighbours: `group` is their number over 64.
inline void draw_words(const RoundByChanceArgs& a, uint64_t group, uint32_t* words) {
  const VU step_low = VU{} + static_cast<uint32_t>(a.step),
           step_high = VU{} + static_cast<uint32_t>(a.step >> 32);
  for (uint64_t lane = 0; lane < 16; lane += kLanes) {
    const uint64_t counter = group * 16 + lane;
    const PhiloxLanes drawn =
        philox4x32({{lane_numbers() + static_cast<uint32_t>(counter),
                     VU{} + static_cast<uint32_t>(counter >> 32), step_low, step_high}},
                   a.key);
    for (uint64_t w = 0; w < 4; ++w) std::memcpy(words + 16 * w + lane, &drawn.word[w], sizeof(VU));
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

template <class T, bool root> void round_rows(const RoundByChanceArgs& a, const NarrowFormat& f) {
  const auto scale = static_cast<float>(a.scale);
  const VF beyond = a.positive ? VF{} : broadcast(std::numeric_limits<float>::infinity());
  parallel_rows(a.rows, a.cols, kStepBlock, [&](int64_t row, int64_t begin, int64_t end) {
    const float* value = static_cast<const float*>(a.value) + row * a.stride;
    T* stored = static_cast<T*>(a.stored) + row * a.stride;
    const int64_t first = a.first + row * a.first_step;
    // Zero behind the words: a part of a vector may begin near the end of the group.
    alignas(64) uint32_t words[64 + kLanes] = {};
    for (int64_t col = begin; col < end;) {
      const int64_t skipped = (first + col) % 64, width = std::min(64 - skipped, end - col);
      draw_words(a, static_cast<uint64_t>((first + col) / 64), words);
      for_vectors(width, [&](int64_t i, auto lanes) {
        VU random;
        std::memcpy(&random, words + skipped + i, sizeof random);
        const VF x = load(value + col + i, lanes);
        VU code;
        if constexpr (root)
          code = root_by_chance(f, x * scale * scale, random);
        else
          code = code_by_chance(f, x * scale, random);
        store_codes(stored + col + i, ((code == 0) & (x > beyond)) ? VU{} + 1 : code, lanes);
      });
      col += width;
    }
  });
}

void round_by_chance(const RoundByChanceArgs& a) {
  const NarrowFormat f = format_of(a.type);
  if (a.root)
    round_rows<uint8_t, true>(a, f);
  else if (f.width == 8)
    round_rows<uint8_t, false>(a, f);
  else
    round_rows<uint16_t, false>(a, f);
}
