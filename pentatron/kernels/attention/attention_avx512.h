/// The AVX-512 pieces of attention between the matrix products. Included by avx512_products.h only.
///
/// Scores are kept transposed: a row for each key, 32 queries side by side. So the softmax needs no
/// sums across lanes, and a block of probabilities is at once a packed panel of the next product.
#pragma once

#include <cstdint>

#include <immintrin.h>

#include "pentatron/kernels/attention/attention_panels.h"
#include "pentatron/kernels/attention/score_factors.h"
#include "pentatron/kernels/gemm/avx512.h"

namespace pentatron::kernels::attention_detail {

/// 2^x, to about 1 unit in the last place; NaN stays NaN, below -200 gives 0.
PENTATRON_AVX512 inline __m512 exp2_ps(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-200.0F), x);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(1.5252734e-5F); // ln(2)^i / i!
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.5403530e-4F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3333558e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  return _mm512_scalef_ps(p, whole);
}

/// Two rows of 16 numbers as bf16 pairs: unit = (bf16(low), bf16(high) << 16).
PENTATRON_AVX512_BF16 inline __m512i pair_units(__m512 low, __m512 high) {
  const __m512i a = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(low));
  const __m512i b = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(high));
  return _mm512_or_si512(a, _mm512_slli_epi32(b, 16));
}

/// One step of the running softmax over `keys` rows of scores s[key][32], the first key at position
/// `key`. Updates the maxima `top` and sums `sum` of the queries, multiplies the transposed output
/// o[rows][32] by the change of the maxima, and leaves the probabilities (relative to `top`) in s,
/// or as pairs in `units`, multiplied by `factors.keep`. `factor`: scale * log2(e).
template <bool kPair>
PENTATRON_AVX512_BF16 void softmax_step(float* s, int64_t keys, int64_t key,
                                        const Visibility& visible, float factor,
                                        const ScoreFactors& factors, float* top, float* sum,
                                        float* o, int64_t rows, uint32_t* units) {
  const __m512 f = _mm512_set1_ps(factor);
  const bool all = visible.all(key, keys);
  for (int v = 0; v < 2; ++v) {
    const __m512 old = _mm512_loadu_ps(top + 16 * v);
    __m512 m = old;
    for (int64_t r = 0; r < keys; ++r) {
      const auto mask = static_cast<__mmask16>(all ? ~0U : visible.of(key + r) >> (16 * v));
      m = _mm512_mask_max_ps(m, mask, _mm512_loadu_ps(s + 32 * r + 16 * v), m);
    }
    _mm512_storeu_ps(top + 16 * v, m);
    // No key seen so far: both are -inf and the difference NaN, which max() turns into a factor of
    // 0 for a sum of 0.
    const __m512 change =
        _mm512_max_ps(_mm512_mul_ps(_mm512_sub_ps(old, m), f), _mm512_set1_ps(-200.0F));
    const __m512 alpha = exp2_ps(change);
    if (_mm512_cmp_ps_mask(alpha, _mm512_set1_ps(1.0F), _CMP_NEQ_UQ) != 0) {
      for (int64_t r = 0; r < rows; ++r) {
        _mm512_storeu_ps(o + 32 * r + 16 * v,
                         _mm512_mul_ps(alpha, _mm512_loadu_ps(o + 32 * r + 16 * v)));
      }
    }
    __m512 total = _mm512_mul_ps(alpha, _mm512_loadu_ps(sum + 16 * v));
    const __m512 offset = _mm512_mul_ps(m, f);
    for (int64_t r = 0; r < keys; r += 2) {
      __m512 p[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t e = 0; e < 2 && r + e < keys; ++e) {
        const auto mask = static_cast<__mmask16>(all ? ~0U : visible.of(key + r + e) >> (16 * v));
        float* const at = s + 32 * (r + e) + 16 * v;
        p[e] = _mm512_maskz_mov_ps(mask, exp2_ps(_mm512_fmsub_ps(_mm512_loadu_ps(at), f, offset)));
        total = _mm512_add_ps(total, p[e]);
        if (factors.keep != nullptr)
          p[e] = _mm512_mul_ps(p[e], _mm512_loadu_ps(factors.keep + 32 * (r + e) + 16 * v));
        if constexpr (!kPair) _mm512_storeu_ps(at, p[e]);
      }
      if constexpr (kPair) _mm512_storeu_si512(units + 16 * r + 16 * v, pair_units(p[0], p[1]));
    }
    _mm512_storeu_ps(sum + 16 * v, total);
  }
}

/// Probabilities p = exp(scores - lse) and ds = p (dp keep - delta) slope scale for `keys` rows of
/// s[key][32] and dp[key][32]; p keep and ds in their place for fp32. For bf16 as rows
/// p16[key][32], ds16[key][32], and ds as pairs in `units`. `lse` is in units of log2.
template <bool kPair>
PENTATRON_AVX512_BF16 void
softmax_backward(float* s, float* dp, int64_t keys, int64_t key, const Visibility& visible,
                 float factor, float scale, const ScoreFactors& factors, const float* lse,
                 const float* delta, uint16_t* p16, uint16_t* ds16, uint32_t* units) {
  const __m512 f = _mm512_set1_ps(factor);
  const bool all = visible.all(key, keys);
  for (int v = 0; v < 2; ++v) {
    const __m512 offset = _mm512_loadu_ps(lse + 16 * v);
    const __m512 d = _mm512_loadu_ps(delta + 16 * v);
    for (int64_t r = 0; r < keys; r += 2) {
      __m512 ds[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int64_t e = 0; e < 2 && r + e < keys; ++e) {
        const auto mask = static_cast<__mmask16>(all ? ~0U : visible.of(key + r + e) >> (16 * v));
        const int64_t at = 32 * (r + e) + 16 * v;
        __m512 p =
            _mm512_maskz_mov_ps(mask, exp2_ps(_mm512_fmsub_ps(_mm512_loadu_ps(s + at), f, offset)));
        const __m512 x = _mm512_loadu_ps(dp + at);
        __m512 by = _mm512_set1_ps(scale);
        if (factors.slope != nullptr) by = _mm512_mul_ps(by, _mm512_loadu_ps(factors.slope + at));
        if (factors.keep != nullptr) {
          const __m512 keep = _mm512_loadu_ps(factors.keep + at);
          ds[e] = _mm512_maskz_mul_ps(mask, p, _mm512_mul_ps(_mm512_fmsub_ps(x, keep, d), by));
          p = _mm512_mul_ps(p, keep);
        } else {
          ds[e] = _mm512_maskz_mul_ps(mask, p, _mm512_mul_ps(_mm512_sub_ps(x, d), by));
        }
        if constexpr (kPair) {
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(p16 + at), (__m256i)_mm512_cvtneps_pbh(p));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(ds16 + at),
                              (__m256i)_mm512_cvtneps_pbh(ds[e]));
        } else {
          _mm512_storeu_ps(s + at, p);
          _mm512_storeu_ps(dp + at, ds[e]);
        }
      }
      if constexpr (kPair) _mm512_storeu_si512(units + 16 * r + 16 * v, pair_units(ds[0], ds[1]));
    }
  }
}

template <bool kPair>
PENTATRON_AVX512_BF16 inline void store_elements(char* dst, int64_t index, __mmask16 mask,
                                                 __m512 x) {
  if constexpr (kPair) {
    _mm256_mask_storeu_epi16(dst + 2 * index, mask, (__m256i)_mm512_cvtneps_pbh(x));
  } else {
    _mm512_mask_storeu_ps(dst + 4 * index, mask, x);
  }
}

template <bool kPair>
PENTATRON_AVX512_BF16 inline __m512 load_elements(const char* src, int64_t index, __mmask16 mask) {
  if constexpr (kPair) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src + 2 * index));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
  } else {
    return _mm512_maskz_loadu_ps(mask, src + 4 * index);
  }
}

/// dst[query][row] = o[row][query] * by[query], for `count` queries of a transposed tile
/// o[rows][32]; queries `stride` elements apart.
template <bool kPair>
PENTATRON_AVX512_BF16 void store_transposed(const float* o, int64_t rows, const float* by,
                                            int count, char* dst, int64_t stride) {
  for (int q = 0; q < count; q += 16) {
    const __m512 factor = _mm512_loadu_ps(by + q);
    for (int64_t r = 0; r < rows; r += 16) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        x[i] =
            r + i < rows
                ? _mm512_castps_si512(_mm512_mul_ps(factor, _mm512_loadu_ps(o + 32 * (r + i) + q)))
                : _mm512_setzero_si512();
      }
      gemm_detail::transpose_16x16(x);
      const auto mask = static_cast<__mmask16>(rows - r >= 16 ? 0xffff : (1U << (rows - r)) - 1);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        if (q + i < count)
          store_elements<kPair>(dst, (q + i) * stride + r, mask, _mm512_castsi512_ps(x[i]));
      }
    }
  }
}

/// dst[row] = sum over c of x[row][c] y[row][c], rows of d elements.
template <bool kPair>
PENTATRON_AVX512_BF16 void row_dots(const char* x, int64_t x_stride, const char* y,
                                    int64_t y_stride, int64_t count, int64_t d, float* dst) {
  for (int64_t i = 0; i < count; ++i) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t c = 0; c < d; c += 16) {
      const auto mask = static_cast<__mmask16>(d - c >= 16 ? 0xffff : (1U << (d - c)) - 1);
      sum = _mm512_fmadd_ps(load_elements<kPair>(x, i * x_stride + c, mask),
                            load_elements<kPair>(y, i * y_stride + c, mask), sum);
    }
    dst[i] = _mm512_reduce_add_ps(sum);
  }
}

/// dst[row][c] = src[row][c] for rows of d sums, `width` apart.
template <bool kPair>
PENTATRON_AVX512_BF16 void store_rows(const float* src, int64_t width, int64_t count, int64_t d,
                                      char* dst, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < d; c += 16) {
      const auto mask = static_cast<__mmask16>(d - c >= 16 ? 0xffff : (1U << (d - c)) - 1);
      store_elements<kPair>(dst, i * stride + c, mask,
                            _mm512_maskz_loadu_ps(mask, src + i * width + c));
    }
  }
}

/// The same as members of a class of products.
template <bool kPair> struct Avx512Steps {
  static void softmax_step(float* s, int64_t keys, int64_t key, const Visibility& visible,
                           float factor, const ScoreFactors& factors, float* top, float* sum,
                           float* o, int64_t rows, uint32_t* units) {
    attention_detail::softmax_step<kPair>(s, keys, key, visible, factor, factors, top, sum, o, rows,
                                          units);
  }
  static void softmax_backward(float* s, float* dp, int64_t keys, int64_t key,
                               const Visibility& visible, float factor, float scale,
                               const ScoreFactors& factors, const float* lse, const float* delta,
                               uint16_t* p16, uint16_t* ds16, uint32_t* units) {
    attention_detail::softmax_backward<kPair>(s, dp, keys, key, visible, factor, scale, factors,
                                              lse, delta, p16, ds16, units);
  }
  static void dropout_factors(const DropoutTile& tile) { dropout_factors_avx512(tile); }
  static void cap_scores(const CapTile& tile) { cap_scores_avx512(tile); }
  static void store_transposed(const float* o, int64_t rows, const float* by, int count, char* dst,
                               int64_t stride) {
    attention_detail::store_transposed<kPair>(o, rows, by, count, dst, stride);
  }
  static void row_dots(const char* x, int64_t x_stride, const char* y, int64_t y_stride,
                       int64_t count, int64_t d, float* dst) {
    attention_detail::row_dots<kPair>(x, x_stride, y, y_stride, count, d, dst);
  }
  static void store_rows(const float* src, int64_t width, int64_t count, int64_t d, char* dst,
                         int64_t stride) {
    attention_detail::store_rows<kPair>(src, width, count, d, dst, stride);
  }
};

} // namespace pentatron::kernels::attention_detail
