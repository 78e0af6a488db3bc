// The vectorised entries, included once for each instruction set: inside its target region, with
// PENTATRON_ISA the namespace of its vectors and PENTATRON_OPTIMIZER the namespace of its entries.
// The same operations as in the reference, in the same order and without contraction to fused
// multiply-add: the results are the reference's bit for bit.

namespace pentatron::kernels::PENTATRON_OPTIMIZER {

using namespace PENTATRON_ISA; // NOLINT: one translation unit

namespace {

template <class V, class T> V load_some(const T* p, int64_t n) {
  return n == V::kWidth ? load(p) : load(p, n);
}
template <class V, class T> void store_some(T* p, V x, int64_t n) {
  if (n == V::kWidth) {
    store(p, x);
  } else {
    store(p, x, n);
  }
}

/// f(i, n) for every vector of [0, total), n <= width elements from i, on threads.
template <class V, class F> void for_vectors(int64_t total, F&& f) {
  simd::parallel_blocks(total, kStepBlock, [&](int64_t begin, int64_t end, int64_t) {
    int64_t i = begin;
    for (; i + V::kWidth <= end; i += V::kWidth) f(i, int64_t{V::kWidth});
    if (i < end) f(i, end - i);
  });
}

struct NoCopy {};

/// Calls f(pointer or NoCopy) for the second output of a step; doubles have none here.
template <class T, class F> void with_copy(void* copy, DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    f(NoCopy{});
  } else if (!copy) {
    f(NoCopy{});
  } else {
    simd::with_type(dtype, [&]<class Copy>(Copy) {
      if constexpr (!std::is_same_v<Copy, double>) f(static_cast<Copy*>(copy));
    });
  }
}

template <class Copy, class V> void store_copy(Copy copy, int64_t i, V x, int64_t n) {
  if constexpr (!std::is_same_v<Copy, NoCopy>) store_some(copy + i, x, n);
}

} // namespace

void adamw(const AdamWArgs& a, const Context&) {
  simd::with_acc_type(a.dtype, [&]<class T>(T) {
    with_copy<T>(a.param_copy, a.copy_dtype, [&]<class Copy>(Copy copy) {
      using V = Vec<T>;
      const AdamWScalars s(a);
      const auto c = [](double x) { return splat<V>(static_cast<T>(x)); };
      const V decay = c(s.decay), weight1 = c(s.one_minus_beta1), beta2 = c(s.beta2),
              weight2 = c(s.one_minus_beta2), correction2 = c(s.sqrt_correction2),
              step_size = c(s.step_size), eps = c(s.eps), grad_scale = c(s.grad_scale);
      T* p = static_cast<T*>(a.param);
      T* m = static_cast<T*>(a.exp_avg);
      T* v = static_cast<T*>(a.exp_avg_sq);
      const T* grad = static_cast<const T*>(a.grad);
      for_vectors<V>(a.n, [&](int64_t i, int64_t n) {
        const V g = grad_scale * load_some<V>(grad + i, n);
        const V m0 = load_some<V>(m + i, n);
        const V m1 = m0 + weight1 * (g - m0);
        const V v1 = load_some<V>(v + i, n) * beta2 + weight2 * g * g;
        const V denominator = sqrt(v1) / correction2 + eps;
        const V p1 = load_some<V>(p + i, n) * decay - step_size * m1 / denominator;
        store_some(m + i, m1, n);
        store_some(v + i, v1, n);
        store_some(p + i, p1, n);
        store_copy(copy, i, p1, n);
      });
    });
  });
}

void sgd(const SgdArgs& a, const Context&) {
  simd::with_acc_type(a.dtype, [&]<class T>(T) {
    with_copy<T>(a.param_copy, a.copy_dtype, [&]<class Copy>(Copy copy) {
      using V = Vec<T>;
      const auto c = [](double x) { return splat<V>(static_cast<T>(x)); };
      const V lr = c(a.lr), momentum = c(a.momentum), decay = c(a.weight_decay),
              grad_scale = c(a.grad_scale);
      T* p = static_cast<T*>(a.param);
      T* b = static_cast<T*>(a.momentum_buffer);
      const T* grad = static_cast<const T*>(a.grad);
      for_vectors<V>(a.n, [&](int64_t i, int64_t n) {
        const V p0 = load_some<V>(p + i, n);
        V g = grad_scale * load_some<V>(grad + i, n) + decay * p0;
        if (b) {
          const V b1 = momentum * load_some<V>(b + i, n) + g;
          store_some(b + i, b1, n);
          g = a.nesterov ? g + momentum * b1 : b1;
        }
        const V p1 = p0 - lr * g;
        store_some(p + i, p1, n);
        store_copy(copy, i, p1, n);
      });
    });
  });
}

namespace {

/// The lanes of sum_of_squares as vectors of doubles, in order.
struct Lanes {
  static constexpr int kVectors = kSumLanes / F64::kWidth;
  F64 sum[kVectors];
};

template <class T> void add_squares(Lanes& lanes, const T* x) {
  if constexpr (std::is_same_v<T, double>) {
    for (int k = 0; k < Lanes::kVectors; ++k) {
      const F64 value = load(x + k * F64::kWidth);
      lanes.sum[k] = fma(value, value, lanes.sum[k]);
    }
  } else {
    for (int k = 0; k < Lanes::kVectors; k += 2) {
      const F32 value = load(x + k * F64::kWidth);
      const F64 low = low_half(value), high = high_half(value);
      lanes.sum[k] = fma(low, low, lanes.sum[k]);
      lanes.sum[k + 1] = fma(high, high, lanes.sum[k + 1]);
    }
  }
}

template <class T> double block_sum_of_squares(const T* x, int64_t n) {
  Lanes lanes;
  for (F64& sum : lanes.sum) sum = splat<F64>(0);
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) add_squares(lanes, x + i);
  if (i < n) {
    T rest[kSumLanes] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(n - i) * sizeof(T));
    add_squares(lanes, rest);
  }
  double out[kSumLanes];
  for (int k = 0; k < Lanes::kVectors; ++k) store(out + k * F64::kWidth, lanes.sum[k]);
  for (int width = kSumLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) out[l] += out[l + width];
  }
  return out[0];
}

} // namespace

void sum_of_squares(const SumOfSquaresArgs& a, const Context&) {
  std::vector<double> partial(static_cast<size_t>((a.n + kSumBlock - 1) / kSumBlock));
  simd::with_type(a.dtype, [&]<class T>(T) {
    const T* x = static_cast<const T*>(a.x);
    simd::parallel_blocks(a.n, kSumBlock, [&](int64_t begin, int64_t end, int64_t block) {
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
  simd::with_type(a.dtype, [&]<class T>(T) {
    using V = Vec<acc_t<T>>;
    const T* x = static_cast<const T*>(a.x);
    simd::parallel_blocks(a.n, kStepBlock, [&](int64_t begin, int64_t end, int64_t block) {
      const V nothing = splat<V>(0);
      V sum0 = nothing, sum1 = nothing;
      int64_t i = begin;
      for (; i + 2 * V::kWidth <= end; i += 2 * V::kWidth) {
        sum0 = fma(load(x + i), nothing, sum0);
        sum1 = fma(load(x + i + V::kWidth), nothing, sum1);
      }
      for (; i < end; i += V::kWidth) {
        sum0 = fma(load(x + i, std::min<int64_t>(V::kWidth, end - i)), nothing, sum0);
      }
      typename V::Scalar lanes[V::kWidth];
      store(lanes, sum0 + sum1);
      for (const auto lane : lanes) dirty[static_cast<size_t>(block)] |= std::isnan(lane) ? 1 : 0;
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
  simd::with_type(a.dtype, [&]<class T>(T) {
    using V = Vec<acc_t<T>>;
    const V factor = splat<V>(static_cast<typename V::Scalar>(a.factor));
    T* x = static_cast<T*>(a.x);
    for_vectors<V>(
        a.n, [&](int64_t i, int64_t n) { store_some(x + i, load_some<V>(x + i, n) * factor, n); });
  });
}

void cast(const CastArgs& a, const Context&) {
  simd::with_type(a.dtype, [&]<class T>(T) {
    simd::with_type(a.out_dtype, [&]<class Out>(Out) {
      if constexpr (!std::is_same_v<T, double> && !std::is_same_v<Out, double>) {
        const T* x = static_cast<const T*>(a.x);
        Out* out = static_cast<Out*>(a.out);
        for_vectors<F32>(
            a.n, [&](int64_t i, int64_t n) { store_some(out + i, load_some<F32>(x + i, n), n); });
      }
    });
  });
}

} // namespace pentatron::kernels::PENTATRON_OPTIMIZER
