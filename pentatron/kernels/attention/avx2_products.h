/// Attention with AVX2: the matrix products, and what lies between them. Included by
/// attention_avx2.cpp only.
///
/// Everything is fp32; bf16 and fp16 become fp32 when they are packed. A panel of 32 queries is two
/// halves of 16, the columns of a tile of the GEMM: scores are [half][key][16], outputs
/// [half][feature][16].
#pragma once

#include <array>

#include <immintrin.h>

#include "pentatron/kernels/attention/attention.h"
#include "pentatron/kernels/attention/attention_panels.h"
#include "pentatron/kernels/attention/score_factors.h"
#include "pentatron/kernels/gemm/avx2.h"

namespace pentatron::kernels::attention_detail {

namespace gemm2 = gemm_detail::avx2;

constexpr int kHalf = 16;                               ///< queries of half a panel
constexpr int64_t kAvx2Keys = int64_t{16} * gemm2::kMr; ///< of a block

/// 2^x, to about 1 unit in the last place; NaN stays NaN, below -127 gives 0.
PENTATRON_AVX2 inline __m256 exp2_ps(__m256 x) {
  x = _mm256_max_ps(_mm256_set1_ps(-127.0F), x);
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 r = _mm256_sub_ps(x, whole);
  __m256 p = _mm256_set1_ps(1.5252734e-5F); // ln(2)^i / i!
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.5403530e-4F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3333558e-3F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(9.6181291e-3F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.5504109e-2F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(2.4022651e-1F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(6.9314718e-1F));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0F));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/// All bits of the lanes whose bit is set in the lowest 8 of `mask`.
PENTATRON_AVX2 inline __m256 lanes_of(uint32_t mask) {
  const __m256i bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bits);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, bits));
}

template <class T> PENTATRON_AVX2 inline void store_element(char* dst, __m256 x, int n) {
  if constexpr (gemm2::kHalf<T>) {
    gemm2::store_as<T>(reinterpret_cast<uint16_t*>(dst), x, n);
  } else {
    gemm2::store(reinterpret_cast<float*>(dst), x, n);
  }
}

template <class T> class Avx2Products {
 public:
  static constexpr bool kPair = false;
  static constexpr int64_t kElement = sizeof(T);
  static constexpr int64_t kKeys = kAvx2Keys;
  static constexpr int64_t kKeyStep = 1;

  static int64_t rows_size(int64_t n, int64_t k) { return ceil_div(n, kMr) * kLanes * k; }
  static int64_t columns_size(int64_t n, int64_t k) { return round_up(n, kQueries) * k; }
  static int64_t sum_rows(int64_t n) { return n; }
  static int64_t sum_columns(int64_t n) { return n; }
  static int64_t score(int64_t key, int half) { return half * kKeys * kHalf + key * kHalf; }

  /// Tiles of 6 rows, 8 apart.
  static void pack_rows_along(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    for (int64_t i = 0; i < n; i += kMr)
      Packing::along(src + i * ld * kElement, ld, k, row_strip(0, n - i, dst + rows_size(i, k)));
  }
  static void pack_rows_across(const char* src, int64_t ld, int64_t k, int64_t n, uint32_t* dst) {
    std::array<gemm_detail::Strip, kMaxHeadSize / kMr + 1> strips;
    int count = 0;
    for (int64_t i = 0; i < n; i += kMr)
      strips[static_cast<size_t>(count++)] = row_strip(i, n - i, dst + rows_size(i, k));
    Packing::across(src, ld, k, strips.data(), count);
  }
  /// Panels of 16 columns.
  static void pack_columns_along(const char* src, int64_t ld, int64_t k, int n, uint32_t* dst) {
    for (int64_t i = 0; i < n; i += kLanes)
      Packing::along(src + i * ld * kElement, ld, k, column_strip(0, i, n - i, k, dst));
  }
  static void pack_columns_across(const char* src, int64_t ld, int64_t k, int64_t n,
                                  uint32_t* dst) {
    std::array<gemm_detail::Strip, kMaxHeadSize / kLanes> strips;
    int count = 0;
    for (int64_t i = 0; i < n; i += kLanes)
      strips[static_cast<size_t>(count++)] = column_strip(i, i, n - i, k, dst);
    Packing::across(src, ld, k, strips.data(), count);
  }

  /// scores of keys [from, from + count) of the `packed` ones; `from` is a multiple of kKeys.
  static void multiply_keys(const uint32_t* keys, int64_t from, int64_t count, int64_t packed,
                            int64_t d, const uint32_t* queries, float* scores) {
    for (int64_t i = 0; i < count; i += kMr) {
      const gemm2::MicroKernel multiply = kernel_for(packed - from - i);
      for (int h = 0; h < 2; ++h) {
        gemm_detail::TileOut out;
        out.out = scores + (h * kKeys + i) * kHalf;
        out.ld_out = out.columns = kHalf;
        multiply(d, floats(keys + rows_size(from + i, d)), floats(queries + h * kHalf * d), out);
      }
    }
  }
  /// out += features of keys [from, from + count) of the `packed` ones times probabilities.
  static void add_features(const uint32_t* features, int64_t from, int64_t count, int64_t packed,
                           int64_t d, const uint32_t* probabilities, float* out) {
    for (int64_t c = 0; c < d; c += kMr) {
      const gemm2::MicroKernel multiply = kernel_for(d - c);
      for (int h = 0; h < 2; ++h) {
        gemm_detail::TileOut tile;
        tile.in = tile.out = out + (h * d + c) * kHalf;
        tile.ld_in = tile.ld_out = tile.columns = kHalf;
        multiply(count, floats(features + rows_size(c, packed) + from * kLanes),
                 floats(probabilities) + h * kKeys * kHalf, tile);
      }
    }
  }
  /// dst[key][feature] += x of all panels times y[query][feature], x as scores lie. `scratch`:
  /// kKeys * kPanels * 32 units.
  static void add_to_keys(const void* x, const uint32_t* y, const QueryRange& range, int64_t keys,
                          int64_t d, uint32_t* scratch, float* dst) {
    const int64_t begin = range.first * kQueries,
                  end = std::min(range.count, range.last * kQueries);
    for (int64_t key = 0; key < keys; key += kMr) {
      for (int64_t query = begin; query < end; query += kHalf) {
        const float* const half =
            static_cast<const float*>(x) + (query / kHalf * kKeys + key) * kHalf;
        gemm2::Packing<float>::along(reinterpret_cast<const char*>(half), kHalf,
                                     std::min<int64_t>(kHalf, end - query),
                                     row_strip(0, keys - key, scratch + (query - begin) * kLanes));
      }
      const gemm2::MicroKernel multiply = kernel_for(keys - key);
      for (int64_t c = 0; c < d; c += kHalf) {
        gemm_detail::TileOut tile;
        tile.in = tile.out = dst + key * d + c;
        tile.ld_in = tile.ld_out = d;
        tile.columns = static_cast<int>(std::min<int64_t>(kHalf, d - c));
        multiply(end - begin, floats(scratch), floats(y + c * range.count + begin * kHalf), tile);
      }
    }
  }

  /// One step of the running softmax over `keys` rows of scores, the first key at position `key`.
  /// Updates the maxima `top` and sums `sum` of the queries, multiplies the output o of `rows`
  /// features by the change of the maxima, and leaves the probabilities (relative to `top`) in s,
  /// multiplied by `factors.keep`. `factor`: scale * log2(e).
  static void softmax_step(float* s, int64_t keys, int64_t key, const Visibility& visible,
                           float factor, const ScoreFactors& factors, float* top, float* sum,
                           float* o, int64_t rows, uint32_t*) {
    const bool all = visible.all(key, keys);
    for (int v = 0; v < kVectors; ++v) {
      float* const scores = s + column(v, kKeys);
      const float* const keep = factors.keep == nullptr ? nullptr : factors.keep + column(v, kKeys);
      float* const out = o + column(v, rows);
      if (all) {
        step<true>(scores, keys, key, visible, v, factor, keep, top, sum, out, rows);
      } else {
        step<false>(scores, keys, key, visible, v, factor, keep, top, sum, out, rows);
      }
    }
  }
  static void dropout_factors(const DropoutTile& tile) { dropout_factors_avx2(tile); }
  static void cap_scores(const CapTile& tile) { cap_scores_avx2(tile); }

  /// Probabilities p = exp(scores - lse) times keep and ds = p (dp keep - delta) slope scale in
  /// place of the scores s and of dp. `lse` is in units of log2.
  PENTATRON_AVX2 static void softmax_backward(float* s, float* dp, int64_t keys, int64_t key,
                                              const Visibility& visible, float factor, float scale,
                                              const ScoreFactors& factors, const float* lse,
                                              const float* delta, uint16_t*, uint16_t*, uint32_t*) {
    const __m256 f = _mm256_set1_ps(factor);
    for (int v = 0; v < kVectors; ++v) {
      const __m256 offset = _mm256_loadu_ps(lse + kLanes * v);
      const __m256 d = _mm256_loadu_ps(delta + kLanes * v);
      for (int64_t r = 0; r < keys; ++r) {
        const __m256 lanes = lanes_of(visible.of(key + r) >> (kLanes * v));
        const int64_t at = column(v, kKeys) + kHalf * r;
        const __m256 e = exp2_ps(_mm256_fmsub_ps(_mm256_loadu_ps(s + at), f, offset));
        __m256 by = _mm256_set1_ps(scale), kept = e, x = _mm256_loadu_ps(dp + at);
        if (factors.slope != nullptr) by = _mm256_mul_ps(by, _mm256_loadu_ps(factors.slope + at));
        if (factors.keep != nullptr) {
          const __m256 keep = _mm256_loadu_ps(factors.keep + at);
          kept = _mm256_mul_ps(e, keep);
          x = _mm256_mul_ps(x, keep);
        }
        x = _mm256_mul_ps(_mm256_sub_ps(x, d), by);
        _mm256_storeu_ps(s + at, _mm256_and_ps(lanes, kept));
        _mm256_storeu_ps(dp + at, _mm256_and_ps(lanes, _mm256_mul_ps(e, x)));
      }
    }
  }

  /// dst[query][row] = o[row][query] * by[query], for `count` queries; queries `stride` elements
  /// apart.
  PENTATRON_AVX2 static void store_transposed(const float* o, int64_t rows, const float* by,
                                              int count, char* dst, int64_t stride) {
    for (int v = 0; kLanes * v < count; ++v) {
      const __m256 factor = _mm256_loadu_ps(by + kLanes * v);
      const float* const from = o + column(v, rows);
      for (int64_t r = 0; r < rows; r += kLanes) {
        const int n = rows - r < kLanes ? static_cast<int>(rows - r) : kLanes;
        __m256 x[8];
#pragma GCC unroll 8
        for (int i = 0; i < kLanes; ++i) {
          x[i] = i < n ? _mm256_mul_ps(factor, _mm256_loadu_ps(from + kHalf * (r + i)))
                       : _mm256_setzero_ps();
        }
        gemm2::transpose_8x8(x);
#pragma GCC unroll 8
        for (int i = 0; i < kLanes; ++i) {
          const int64_t query = kLanes * v + i;
          if (query < count) store_element<T>(dst + (query * stride + r) * kElement, x[i], n);
        }
      }
    }
  }

  /// dst[row] = sum over c of x[row][c] y[row][c], rows of d elements.
  PENTATRON_AVX2 static void row_dots(const char* x, int64_t x_stride, const char* y,
                                      int64_t y_stride, int64_t count, int64_t d, float* dst) {
    for (int64_t i = 0; i < count; ++i) {
      __m256 sum = _mm256_setzero_ps();
      for (int64_t c = 0; c < d; c += kLanes) {
        const int n = d - c < kLanes ? static_cast<int>(d - c) : kLanes;
        sum = _mm256_fmadd_ps(gemm2::load<T>(x + (i * x_stride + c) * kElement, n),
                              gemm2::load<T>(y + (i * y_stride + c) * kElement, n), sum);
      }
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      dst[i] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }

  /// dst[row][c] = src[row][c] for rows of d sums, `width` apart.
  PENTATRON_AVX2 static void store_rows(const float* src, int64_t width, int64_t count, int64_t d,
                                        char* dst, int64_t stride) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t c = 0; c < d; c += kLanes) {
        const int n = d - c < kLanes ? static_cast<int>(d - c) : kLanes;
        const char* const from = reinterpret_cast<const char*>(src + i * width + c);
        store_element<T>(dst + (i * stride + c) * kElement, gemm2::load<float>(from, n), n);
      }
    }
  }

 private:
  using Packing = gemm2::Packing<T>;
  static constexpr int kMr = gemm2::kMr;
  static constexpr int kLanes = gemm2::kLanes;
  static constexpr int kVectors = kQueries / kLanes;

  static const float* floats(const uint32_t* units) {
    return reinterpret_cast<const float*>(units);
  }
  static gemm2::MicroKernel kernel_for(int64_t rows) {
    return gemm2::find_micro_kernel(static_cast<int>(rows < kMr ? rows : kMr), 2);
  }
  /// Up to 6 rows of those that are left.
  static gemm_detail::Strip row_strip(int64_t offset, int64_t left, uint32_t* dst) {
    const int lanes = left < kMr ? static_cast<int>(left) : kMr;
    return {.offset = offset, .lanes = lanes, .stride = kLanes, .dst = dst};
  }
  /// Up to 8 columns of those that are left, from column i of panels of k elements.
  static gemm_detail::Strip column_strip(int64_t offset, int64_t i, int64_t left, int64_t k,
                                         uint32_t* dst) {
    const int lanes = left < kLanes ? static_cast<int>(left) : kLanes;
    uint32_t* const panel = dst + i / kHalf * kHalf * k;
    return {.offset = offset, .lanes = lanes, .stride = kHalf, .dst = panel + i % kHalf};
  }
  /// Where vector v of the queries begins, in halves of `rows` rows.
  static int64_t column(int v, int64_t rows) {
    return v / 2 * rows * kHalf + v % 2 * kLanes;
  }
  template <bool kAll>
  PENTATRON_AVX2 static void step(float* s, int64_t keys, int64_t key, const Visibility& visible,
                                  int v, float factor, const float* keep, float* top, float* sum,
                                  float* o, int64_t rows) {
    const __m256 f = _mm256_set1_ps(factor);
    const auto lanes = [&](int64_t r)
                           PENTATRON_AVX2 { return lanes_of(visible.of(key + r) >> (kLanes * v)); };
    const __m256 old = _mm256_loadu_ps(top + kLanes * v);
    __m256 m = old;
    for (int64_t r = 0; r < keys; ++r) {
      const __m256 larger = _mm256_max_ps(_mm256_loadu_ps(s + kHalf * r), m);
      m = kAll ? larger : _mm256_blendv_ps(m, larger, lanes(r));
    }
    _mm256_storeu_ps(top + kLanes * v, m);
    // No key seen so far: both are -inf and the difference NaN, which max() turns into a factor of
    // 0 for a sum of 0.
    const __m256 change =
        _mm256_max_ps(_mm256_mul_ps(_mm256_sub_ps(old, m), f), _mm256_set1_ps(-127.0F));
    const __m256 alpha = exp2_ps(change);
    if (_mm256_movemask_ps(_mm256_cmp_ps(alpha, _mm256_set1_ps(1.0F), _CMP_NEQ_UQ)) != 0) {
      for (int64_t r = 0; r < rows; ++r)
        _mm256_storeu_ps(o + kHalf * r, _mm256_mul_ps(alpha, _mm256_loadu_ps(o + kHalf * r)));
    }
    __m256 total = _mm256_mul_ps(alpha, _mm256_loadu_ps(sum + kLanes * v));
    const __m256 offset = _mm256_mul_ps(m, f);
    for (int64_t r = 0; r < keys; ++r) {
      __m256 p = exp2_ps(_mm256_fmsub_ps(_mm256_loadu_ps(s + kHalf * r), f, offset));
      if constexpr (!kAll) p = _mm256_and_ps(p, lanes(r));
      total = _mm256_add_ps(total, p);
      if (keep != nullptr) p = _mm256_mul_ps(p, _mm256_loadu_ps(keep + kHalf * r));
      _mm256_storeu_ps(s + kHalf * r, p);
    }
    _mm256_storeu_ps(sum + kLanes * v, total);
  }
};

} // namespace pentatron::kernels::attention_detail
