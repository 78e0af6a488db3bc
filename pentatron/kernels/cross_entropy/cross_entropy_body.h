// The vectorised entries, included once for each instruction set: inside its target region, with
// PENTATRON_ISA the namespace of its vectors and PENTATRON_CROSS_ENTROPY the namespace of its
// entries. float64 is left to the reference.

namespace pentatron::kernels::PENTATRON_CROSS_ENTROPY {

using namespace PENTATRON_ISA; // NOLINT: one translation unit

namespace {

/// Columns per tile: read twice (maximum, then exponentials) while they are in the first-level
/// cache.
constexpr int64_t kTile = 2048;
constexpr int64_t kWidth = F32::kWidth;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct RowStats {
  float max = -kInfinity;
  double sum_exp = 0;
  double sum = 0;
};

template <class T> float tile_max(const T* x, int64_t n) {
  F32 a = splat<F32>(-kInfinity), b = a, c = a, d = a;
  int64_t j = 0;
  for (; j + 4 * kWidth <= n; j += 4 * kWidth) {
    a = max(load(x + j), a); // a second: it stays a number when x is NaN
    b = max(load(x + j + kWidth), b);
    c = max(load(x + j + 2 * kWidth), c);
    d = max(load(x + j + 3 * kWidth), d);
  }
  for (; j < n; j += kWidth) a = max(load(x + j, std::min(kWidth, n - j), -kInfinity), a);
  return reduce_max(max(max(a, b), max(c, d)));
}

template <class T> float tile_sum(const T* x, int64_t n) {
  F32 a = splat<F32>(0), b = a;
  int64_t j = 0;
  for (; j + 2 * kWidth <= n; j += 2 * kWidth) {
    a = a + load(x + j);
    b = b + load(x + j + kWidth);
  }
  for (; j < n; j += kWidth) a = a + load(x + j, std::min(kWidth, n - j));
  return reduce_add(a + b);
}

template <class T> float tile_sum_exp(const T* x, int64_t n, float origin) {
  const F32 o = splat<F32>(origin);
  F32 a = splat<F32>(0), b = a, c = a, d = a;
  int64_t j = 0;
  for (; j + 4 * kWidth <= n; j += 4 * kWidth) {
    a = a + exp(load(x + j) - o);
    b = b + exp(load(x + j + kWidth) - o);
    c = c + exp(load(x + j + 2 * kWidth) - o);
    d = d + exp(load(x + j + 3 * kWidth) - o);
  }
  for (; j < n; j += kWidth) {
    a = a + exp(load(x + j, std::min(kWidth, n - j), -kInfinity) - o);
  }
  return reduce_add((a + b) + (c + d));
}

/// Online softmax by tiles; sums of tiles are added in double.
template <class T> RowStats row_stats(const T* x, int64_t columns, bool want_sum) {
  RowStats s;
  for (int64_t begin = 0; begin < columns; begin += kTile) {
    const int64_t n = std::min(kTile, columns - begin);
    const float m = tile_max(x + begin, n);
    if (m > s.max) {
      s.sum_exp *= std::exp(static_cast<double>(s.max) - m);
      s.max = m;
    }
    s.sum_exp += tile_sum_exp(x + begin, n, s.max == -kInfinity ? 0.0f : s.max);
    if (want_sum) s.sum += tile_sum(x + begin, n);
  }
  return s;
}

struct Terms {
  double smoothing;
  double z_loss;
  double vocab;
};

template <class Out> void zero_columns(Out* out, int64_t begin, int64_t end) {
  if (end > begin) std::memset(out + begin, 0, static_cast<size_t>(end - begin) * sizeof(Out));
}

template <class T, class Out>
void row_gradient(const T* x, Out* out, int64_t columns, int64_t padded, int64_t target, double max,
                  double sum_exp, double scale, const Terms& t) {
  const double lse = max + std::log(sum_exp);
  const double slope = scale * (1 + 2 * t.z_loss * lse) / sum_exp;
  const double uniform = t.smoothing > 0 ? scale * t.smoothing / t.vocab : 0;
  const bool here = target >= 0 && target < columns;
  // The target's logit is read first: the gradient may be written over it.
  const double target_logit = here ? simd::load<double>(x[target]) : 0;
  const F32 o = splat<F32>(static_cast<float>(max));
  const F32 s = splat<F32>(static_cast<float>(slope));
  const F32 u = splat<F32>(static_cast<float>(-uniform));
  int64_t j = 0;
  for (; j + 2 * kWidth <= columns; j += 2 * kWidth) {
    const F32 g0 = fma(exp(load(x + j) - o), s, u);
    const F32 g1 = fma(exp(load(x + j + kWidth) - o), s, u);
    store(out + j, g0);
    store(out + j + kWidth, g1);
  }
  for (; j < columns; j += kWidth) {
    const int64_t n = std::min(kWidth, columns - j);
    store(out + j, fma(exp(load(x + j, n) - o), s, u), n);
  }
  if (here) {
    const double g = slope * std::exp(target_logit - max) - uniform - scale * (1 - t.smoothing);
    out[target] = simd::store<Out>(g);
  }
  zero_columns(out, columns, padded);
}

template <class F> void with_float_type(DType dtype, F&& f) {
  simd::with_type(dtype, [&]<class T>(T x) {
    if constexpr (!std::is_same_v<T, double>) f(x);
  });
}

} // namespace

void stats(const CrossEntropyStatsArgs& a, const Context&) {
  with_float_type(a.dtype, [&]<class T>(T) {
    simd::parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
      const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
      const RowStats s = row_stats(x, a.columns, a.logit_sum != nullptr);
      static_cast<float*>(a.max)[r] = s.max;
      static_cast<float*>(a.sum_exp)[r] = static_cast<float>(s.sum_exp);
      const int64_t target = a.target[r] - a.vocab_offset;
      const bool here = a.target[r] >= 0 && target >= 0 && target < a.columns;
      static_cast<float*>(a.target_logit)[r] = here ? simd::load<float>(x[target]) : 0;
      if (a.logit_sum) static_cast<float*>(a.logit_sum)[r] = static_cast<float>(s.sum);
    });
  });
}

void gradient(const CrossEntropyGradientArgs& a, const Context&) {
  const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.global_vocab)};
  with_float_type(a.dtype, [&]<class T>(T) {
    with_float_type(a.out_dtype, [&]<class Out>(Out) {
      simd::parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
        Out* out = static_cast<Out*>(a.gradient) + r * a.out_row_stride;
        if (a.target[r] < 0) return zero_columns(out, 0, a.padded_columns);
        row_gradient(static_cast<const T*>(a.logits) + r * a.row_stride, out, a.columns,
                     a.padded_columns, a.target[r] - a.vocab_offset,
                     static_cast<const float*>(a.max)[r], static_cast<const float*>(a.sum_exp)[r],
                     static_cast<const float*>(a.row_scale)[r], terms);
      });
    });
  });
}

void fused(const CrossEntropyArgs& a, const Context&) {
  const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.columns)};
  with_float_type(a.dtype, [&]<class T>(T) {
    with_float_type(a.out_dtype, [&]<class Out>(Out) {
      simd::parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
        const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
        Out* out = a.gradient ? static_cast<Out*>(a.gradient) + r * a.out_row_stride : nullptr;
        const int64_t target = a.target[r];
        const RowStats s = row_stats(x, a.columns, terms.smoothing > 0);
        const double lse = s.max + std::log(s.sum_exp);
        static_cast<float*>(a.lse)[r] = static_cast<float>(lse);
        double loss = 0;
        if (target >= 0) {
          const double logit = target < a.columns ? simd::load<double>(x[target]) : 0;
          loss = lse - (1 - terms.smoothing) * logit + terms.z_loss * lse * lse;
          if (terms.smoothing > 0) loss -= terms.smoothing / terms.vocab * s.sum;
        }
        static_cast<float*>(a.loss)[r] = static_cast<float>(loss);
        if (!out) return;
        if (target < 0) return zero_columns(out, 0, a.padded_columns);
        row_gradient(x, out, a.columns, a.padded_columns, target, s.max, s.sum_exp,
                     static_cast<const float*>(a.row_scale)[r], terms);
      });
    });
  });
}

} // namespace pentatron::kernels::PENTATRON_CROSS_ENTROPY
