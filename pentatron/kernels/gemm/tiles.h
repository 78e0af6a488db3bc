/// The AVX-512 pieces around products of bf16 tiles: packing of rows tiles, and what becomes of the
/// sums. Pairs tiles are packed by avx512.h, whose panels of 32 columns are two pairs tiles side by
/// side (rows 128 bytes apart) if their strips are padded.
#pragma once

#include "pentatron/kernels/common/tile.h"
#include "pentatron/kernels/gemm/avx512.h"

namespace pentatron::kernels::gemm_detail {

constexpr int64_t kTileUnits = kTileBytes / 4;
constexpr int64_t kStepUnits = kTileK / 2; ///< 32-bit units of a step of k

/// Packs `k` elements of up to 16 rows of op(A), which are rows in memory `ld` elements apart, into
/// ceil(k / 32) rows tiles, one after the other. Missing rows and elements become zero.
PENTATRON_AVX512 inline void pack_rows_along(const char* src, int64_t ld, int64_t k, int lanes,
                                             uint32_t* dst) {
  for (int64_t k0 = 0; k0 < k; k0 += kTileK, dst += kTileUnits) {
    const int64_t left = k - k0;
    const auto mask = static_cast<__mmask32>((uint64_t{1} << (left < kTileK ? left : kTileK)) - 1);
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
      const char* const p = src + (i * ld + k0) * 2;
      _mm_prefetch(p + kAheadBytes, _MM_HINT_T0);
      _mm512_storeu_si512(dst + i * kStepUnits,
                          i < lanes ? _mm512_maskz_loadu_epi16(mask, p) : _mm512_setzero_si512());
    }
  }
}

/// The same for `rows` rows of op(A) that lie along the rows of memory, rows of k `ld` elements
/// apart. Strip i of 16 rows begins at dst + i * ceil(k / 32) tiles.
PENTATRON_AVX512 inline void pack_rows_across(const char* src, int64_t ld, int64_t k, int64_t rows,
                                              uint32_t* dst) {
  const int64_t steps = (k + kTileK - 1) / kTileK;
  for (int64_t s = 0; s < steps; ++s) {
    for (int64_t i = 0; i < rows; i += kTileRows) {
      const auto mask =
          static_cast<__mmask16>(rows - i < kTileRows ? (1U << (rows - i)) - 1 : 0xffffU);
      __m512i r[16];
#pragma GCC unroll 16
      for (int e = 0; e < 16; ++e) {
        const int64_t row = s * kTileK + 2 * e;
        const char* const p = src + (row * ld + i) * 2;
        const __mmask16 low = row < k ? mask : 0, high = row + 1 < k ? mask : 0;
        const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(low, p));
        const __m512i y = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(high, p + 2 * ld));
        r[e] = _mm512_or_si512(x, _mm512_slli_epi32(y, 16));
      }
      transpose_16x16(r);
      uint32_t* const d = dst + (i / kTileRows * steps + s) * kTileUnits;
#pragma GCC unroll 16
      for (int e = 0; e < 16; ++e) _mm512_storeu_si512(d + e * kStepUnits, r[e]);
    }
  }
}

constexpr int kSumsColumns = 32; ///< of a buffer of sums
using Sums = float[2 * kTileRows * kSumsColumns];

/// Transposes 2 x 2 tiles of sums.
PENTATRON_AVX512 inline void transpose_sums(const float* src, float* dst) {
  for (int i = 0; i < 32; i += 16) {
    for (int j = 0; j < 32; j += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int e = 0; e < 16; ++e) r[e] = _mm512_loadu_si512(src + (i + e) * kSumsColumns + j);
      transpose_16x16(r);
#pragma GCC unroll 16
      for (int e = 0; e < 16; ++e) _mm512_storeu_si512(dst + (j + e) * kSumsColumns + i, r[e]);
    }
  }
}

/// Writes `rows` rows of 32 sums to bf16: whole lines of the cache if C is aligned.
PENTATRON_AVX512_BF16 inline void finish_bf16_rows(const float* sums, int64_t rows,
                                                   const TileOut& t) {
  const __m512 left = bias_vector(t, 0, 0xffff), right = bias_vector(t, 1, 0xffff);
  for (int64_t i = 0; i < rows; ++i) {
    __m512 x = _mm512_loadu_ps(sums + i * kSumsColumns);
    __m512 y = _mm512_loadu_ps(sums + i * kSumsColumns + 16);
    if (t.bias != nullptr) x = _mm512_add_ps(x, left), y = _mm512_add_ps(y, right);
    const auto pair = (__m512i)_mm512_cvtne2ps_pbh(y, x);
    if (t.stream) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(t.out16 + i * t.ld_out), pair);
    } else {
      _mm512_storeu_si512(t.out16 + i * t.ld_out, pair);
    }
  }
  if (t.stream) _mm_sfence();
}

/// Writes `rows` rows of 32 sums to whole lines of memory that are not read first.
PENTATRON_AVX512 inline void stream_rows(const float* sums, int64_t rows, const TileOut& t) {
  const __m512 left = bias_vector(t, 0, 0xffff), right = bias_vector(t, 1, 0xffff);
  for (int64_t i = 0; i < rows; ++i) {
    __m512 x = _mm512_loadu_ps(sums + i * kSumsColumns);
    __m512 y = _mm512_loadu_ps(sums + i * kSumsColumns + 16);
    if (t.bias != nullptr) x = _mm512_add_ps(x, left), y = _mm512_add_ps(y, right);
    _mm512_stream_ps(t.out + i * t.ld_out, x);
    _mm512_stream_ps(t.out + i * t.ld_out + 16, y);
  }
  _mm_sfence(); // before another thread is told that C is written
}

/// Writes `rows` rows of sums as `t` says.
PENTATRON_AVX512_BF16 inline void finish_rows(const float* sums, int64_t rows, const TileOut& t) {
  if (t.columns == kSumsColumns && t.out16 != nullptr && t.in == nullptr && t.in16 == nullptr)
    return finish_bf16_rows(sums, rows, t);
  if (t.columns == kSumsColumns && t.out16 == nullptr && t.stream)
    return stream_rows(sums, rows, t);
  for (int v = 0; 16 * v < t.columns; ++v) {
    const __mmask16 mask = column_mask(t, v);
    const __m512 bias = bias_vector(t, v, mask);
    for (int64_t i = 0; i < rows; ++i) {
      finish_vector<true>(_mm512_loadu_ps(sums + i * kSumsColumns + 16 * v), i, v, mask, bias, t);
    }
  }
}

/// Asks for the rows of C that finish_rows() will write. Always inline, because g++ takes a
/// function that only prefetches for one without effects and drops the call.
__attribute__((always_inline)) inline void prefetch_out(const TileOut& t, int64_t rows) {
  const auto* const c = static_cast<const char*>(
      t.out16 != nullptr ? static_cast<const void*>(t.out16) : static_cast<const void*>(t.out));
  const int64_t bytes = t.out16 != nullptr ? 2 : 4;
  for (int64_t i = 0; i < rows; ++i) {
    __builtin_prefetch(c + i * t.ld_out * bytes, 1);
    if (bytes * t.columns > 64) __builtin_prefetch(c + i * t.ld_out * bytes + 64, 1);
  }
}

} // namespace pentatron::kernels::gemm_detail
