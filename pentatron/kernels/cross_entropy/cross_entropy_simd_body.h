// Included once per instruction set by cross_entropy_simd.cpp. float64 is left to the reference.

#include "pentatron/kernels/common/math_body.h"

/// Columns per tile: read twice (maximum, then exponentials) while they are in the first-level
/// cache.
constexpr int64_t kTile = 2048;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct RowStats {
  float max = -kInfinity;
  double sum_exp = 0;
  double sum = 0;
};

template <class T> float tile_max(const T* x, int64_t n) {
  VF a = broadcast(-kInfinity), b = a, c = a, d = a;
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    a = max(load(x + j), a); // a second: it stays a number when x is NaN
    b = max(load(x + j + kLanes), b);
    c = max(load(x + j + 2 * kLanes), c);
    d = max(load(x + j + 3 * kLanes), d);
  }
  for_vectors(j, n, [&](int64_t i, auto lanes) {
    a = max(only(load(x + i, lanes), lanes, -kInfinity), a);
  });
  return largest(max(max(a, b), max(c, d)));
}

template <class T> float tile_sum(const T* x, int64_t n) {
  VF a{}, b{};
  int64_t j = 0;
  for (; j + 2 * kLanes <= n; j += 2 * kLanes) {
    a += load(x + j);
    b += load(x + j + kLanes);
  }
  for_vectors(j, n, [&](int64_t i, auto lanes) { a += load(x + i, lanes); });
  return sum(a + b);
}

template <class T> float tile_sum_exp(const T* x, int64_t n, float origin) {
  VF a{}, b{}, c{}, d{};
  int64_t j = 0;
  for (; j + 4 * kLanes <= n; j += 4 * kLanes) {
    a += exp(load(x + j) - origin);
    b += exp(load(x + j + kLanes) - origin);
    c += exp(load(x + j + 2 * kLanes) - origin);
    d += exp(load(x + j + 3 * kLanes) - origin);
  }
  for_vectors(j, n, [&](int64_t i, auto lanes) {
    a += exp(only(load(x + i, lanes), lanes, -kInfinity) - origin);
  });
  return sum((a + b) + (c + d));
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
  const double target_logit = here ? to_double(x[target]) : 0;
  const auto origin = static_cast<float>(max);
  const VF s = broadcast(static_cast<float>(slope));
  const VF u = broadcast(static_cast<float>(-uniform));
  int64_t j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
    const VF g0 = fma(exp(load(x + j) - origin), s, u);
    const VF g1 = fma(exp(load(x + j + kLanes) - origin), s, u);
    store(out + j, g0);
    store(out + j + kLanes, g1);
  }
  for_vectors(j, columns, [&](int64_t i, auto lanes) {
    store(out + i, fma(exp(load(x + i, lanes) - origin), s, u), lanes);
  });
  if (here) {
    const double g = slope * std::exp(target_logit - max) - uniform - scale * (1 - t.smoothing);
    out[target] = from_double<Out>(g);
  }
  zero_columns(out, columns, padded);
}

void stats(const CrossEntropyStatsArgs& a, const Context&) {
  visit_float_dtype(a.dtype, [&]<class T>(T) {
    parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
      const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
      const RowStats s = row_stats(x, a.columns, a.logit_sum != nullptr);
      static_cast<float*>(a.max)[r] = s.max;
      static_cast<float*>(a.sum_exp)[r] = static_cast<float>(s.sum_exp);
      const int64_t target = a.target[r] - a.vocab_offset;
      const bool here = a.target[r] >= 0 && target >= 0 && target < a.columns;
      static_cast<float*>(a.target_logit)[r] = here ? to_acc(x[target]) : 0;
      if (a.logit_sum) static_cast<float*>(a.logit_sum)[r] = static_cast<float>(s.sum);
    });
  });
}

void gradient(const CrossEntropyGradientArgs& a, const Context&) {
  const Terms terms{a.label_smoothing, a.z_loss, static_cast<double>(a.global_vocab)};
  visit_float_dtype(a.dtype, [&]<class T>(T) {
    visit_float_dtype(a.out_dtype, [&]<class Out>(Out) {
      parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
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
  visit_float_dtype(a.dtype, [&]<class T>(T) {
    visit_float_dtype(a.out_dtype, [&]<class Out>(Out) {
      parallel_blocks(a.rows, 1, [&](int64_t r, int64_t, int64_t) {
        const T* x = static_cast<const T*>(a.logits) + r * a.row_stride;
        Out* out = a.gradient ? static_cast<Out*>(a.gradient) + r * a.out_row_stride : nullptr;
        const int64_t target = a.target[r];
        const RowStats s = row_stats(x, a.columns, terms.smoothing > 0);
        const double lse = s.max + std::log(s.sum_exp);
        static_cast<float*>(a.lse)[r] = static_cast<float>(lse);
        double loss = 0;
        if (target >= 0) {
          const double logit = target < a.columns ? to_double(x[target]) : 0;
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
