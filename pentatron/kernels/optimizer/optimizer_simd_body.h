// Included once per instruction set by optimizer_simd.cpp. The same operations as in the reference,
// in the same order and without contraction to fused multiply-add: the results are the reference's
// bit for bit.

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
