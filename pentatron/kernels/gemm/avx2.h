/// The AVX2 pieces of the GEMM: packing and the register-blocked micro-kernel. Included by sources
/// with entries for AVX2 only.
///
/// bf16 and fp16 become fp32 when they are packed, so one micro-kernel serves all types. A packed
/// panel holds fp32, 8 rows of op(A) or up to 16 columns of op(B) side by side; of the 8 rows at
/// most 6 are used, so that whole vectors can be stored.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <immintrin.h>

#include "pentatron/kernels/common/scalar.h"
#include "pentatron/kernels/gemm/panels.h"

namespace pentatron::kernels::gemm_detail::avx2 {

// As in avx512.h: attributes, and no inline functions of the standard library within.
#define PENTATRON_AVX2 __attribute__((target("avx2,fma,f16c")))
#define PENTATRON_AVX2_INLINE PENTATRON_AVX2 inline __attribute__((always_inline))

constexpr int kLanes = 8;
constexpr int kMr = 6;       ///< rows of a tile: 6 x 2 sums, two vectors of B and a broadcast of A
constexpr int kThinTile = 4; ///< most rows of thin_kernel

/// The first n lanes, 0 <= n <= 8.
PENTATRON_AVX2 inline __m256i lane_mask(int n) {
  alignas(32) static constexpr int32_t kLeft[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLeft + kLanes - n));
}

/// Whether an element has 16 bits.
template <class T> inline constexpr bool kHalf = sizeof(T) == 2;

template <class T> PENTATRON_AVX2 inline __m256 widen(__m128i bits) {
  if constexpr (std::is_same_v<T, fp16>)
    return _mm256_cvtph_ps(bits);
  else
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

/// Up to three numbers of 16 bits.
inline uint64_t load_16_bits(const char* p, int n) {
  uint64_t x = 0;
  if (n == 3) {
    uint16_t last = 0;
    __builtin_memcpy(&x, p, 4);
    __builtin_memcpy(&last, p + 4, 2);
    return x | uint64_t{last} << 32;
  }
  if (n == 2) __builtin_memcpy(&x, p, 4);
  if (n == 1) __builtin_memcpy(&x, p, 2);
  return x;
}
inline void store_16_bits(char* p, uint64_t x, int n) {
  for (int i = 0; i < n; ++i) {
    const auto one = static_cast<uint16_t>(x >> (16 * i));
    __builtin_memcpy(p + 2 * i, &one, 2);
  }
}

/// p[0, n) of an even number of bytes below 16; zeros in the other places.
PENTATRON_AVX2 inline __m128i load_bytes(const char* p, int n) {
  uint64_t low = 0, high = 0;
  if (n >= 8) {
    __builtin_memcpy(&low, p, 8);
    high = load_16_bits(p + 8, (n - 8) / 2);
  } else {
    low = load_16_bits(p, n / 2);
  }
  return _mm_set_epi64x(static_cast<int64_t>(high), static_cast<int64_t>(low));
}

/// 8 rows.
inline void prefetch_rows(const char* p, int64_t row_bytes) {
#pragma GCC unroll 8
  for (int i = 0; i < kLanes; ++i) _mm_prefetch(p + i * row_bytes, _MM_HINT_T0);
}

/// Elements p[0, n) as fp32, n <= 8; zeros in the other lanes.
template <class T> PENTATRON_AVX2 inline __m256 load(const char* p, int n) {
  if constexpr (kHalf<T>) {
    return widen<T>(n == kLanes ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                                : load_bytes(p, 2 * n));
  } else {
    const auto* const x = reinterpret_cast<const float*>(p);
    return n == kLanes ? _mm256_loadu_ps(x) : _mm256_maskload_ps(x, lane_mask(n));
  }
}

PENTATRON_AVX2 inline void store(float* p, __m256 x, int n) {
  if (n == kLanes) return _mm256_storeu_ps(p, x);
  _mm256_maskstore_ps(p, lane_mask(n), x);
}

/// Bits of bf16 in the lower halves, rounded to nearest even; NaN becomes quiet.
PENTATRON_AVX2 inline __m256i round_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(nearest, quiet, nan), 16);
}
PENTATRON_AVX2 inline __m128i narrow_bf16(__m256 x) {
  const __m256i upper = round_bf16(x);
  return _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
}

/// n numbers of 16 bits.
PENTATRON_AVX2 inline void store_half(uint16_t* p, __m128i half, int n) {
  if (n == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  auto* const to = reinterpret_cast<char*>(p);
  const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(half));
  if (n < 4) return store_16_bits(to, low, n);
  __builtin_memcpy(to, &low, 8);
  store_16_bits(to + 8, static_cast<uint64_t>(_mm_extract_epi64(half, 1)), n - 4);
}

template <class T> PENTATRON_AVX2 inline void store_as(uint16_t* p, __m256 x, int n) {
  if constexpr (std::is_same_v<T, fp16>)
    store_half(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n);
  else
    store_half(p, narrow_bf16(x), n);
}

/// 16 numbers: packed and stored once.
template <class T> PENTATRON_AVX2 inline void store_two(uint16_t* p, __m256 low, __m256 high) {
  __m256i out;
  if constexpr (std::is_same_v<T, fp16>) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    out = _mm256_set_m128i(_mm256_cvtps_ph(high, kNearest), _mm256_cvtps_ph(low, kNearest));
  } else { // the two halves of a register are packed apart
    out = _mm256_permute4x64_epi64(_mm256_packus_epi32(round_bf16(low), round_bf16(high)), 0xd8);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), out);
}

/// 8 x 8 transposition in registers.
PENTATRON_AVX2 inline void transpose_8x8(__m256 (&r)[8]) {
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  // r[4i + j] now holds column 4c + j of rows 4i..4i+3 in its 128-bit part c.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20);
    t[4 + j] = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) r[j] = t[j];
}

/// Elements in 16 bytes of a row.
template <class T> constexpr int kStep = 16 / sizeof(T);
/// Vectors that load_transposed() makes of them: pairs of bf16, else fp32.
template <class T> constexpr int kVectorsOfStep = std::is_same_v<T, fp16> ? 8 : 4;
template <class T> constexpr int kElementsOfVector = kStep<T> / kVectorsOfStep<T>;

/// Up to kStep elements of `lanes` rows in memory, `row_bytes` apart: vector s holds element s of
/// all rows, or elements 2s and 2s + 1 if it has pairs. Zeros for what is not there.
template <class T>
PENTATRON_AVX2_INLINE void load_transposed(const char* src, int64_t row_bytes, int lanes,
                                           int elements, __m256i (&out)[kVectorsOfStep<T>]) {
  const auto row = [&](int i) __attribute__((always_inline)) PENTATRON_AVX2 {
    if (i >= lanes) return _mm_setzero_si128();
    const char* const p = src + i * row_bytes;
    return elements == kStep<T> ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))
                                : load_bytes(p, elements * static_cast<int>(sizeof(T)));
  };
  __m256i r[4], t[4]; // rows i and i + 4, then transposed in each half
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    r[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(row(i)), row(i + 4), 1);
  if constexpr (std::is_same_v<T, fp16>) {
    t[0] = _mm256_unpacklo_epi16(r[0], r[1]);
    t[1] = _mm256_unpackhi_epi16(r[0], r[1]);
    t[2] = _mm256_unpacklo_epi16(r[2], r[3]);
    t[3] = _mm256_unpackhi_epi16(r[2], r[3]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) { // elements 2i and 2i + 1
      const __m256i both = i % 2 == 0 ? _mm256_unpacklo_epi32(t[i / 2], t[i / 2 + 2])
                                      : _mm256_unpackhi_epi32(t[i / 2], t[i / 2 + 2]);
      const __m256i halves = _mm256_permute4x64_epi64(both, 0xd8);
      out[2 * i] = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
      out[2 * i + 1] = _mm256_castps_si256(_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
    }
  } else {
    t[0] = _mm256_unpacklo_epi32(r[0], r[1]);
    t[1] = _mm256_unpackhi_epi32(r[0], r[1]);
    t[2] = _mm256_unpacklo_epi32(r[2], r[3]);
    t[3] = _mm256_unpackhi_epi32(r[2], r[3]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      out[i] = i % 2 == 0 ? _mm256_unpacklo_epi64(t[i / 2], t[i / 2 + 2])
                          : _mm256_unpackhi_epi64(t[i / 2], t[i / 2 + 2]);
  }
}

/// Element i of a vector of load_transposed().
template <class T> PENTATRON_AVX2_INLINE __m256 element(__m256i x, int i) {
  if constexpr (!std::is_same_v<T, bf16>) return _mm256_castsi256_ps(x);
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return _mm256_castsi256_ps(i == 0 ? _mm256_slli_epi32(x, 16) : _mm256_and_si256(x, upper));
}

/// As BlockedGemm packs. Strides are at least 8, and all 8 lanes are written.
template <class T> struct Packing {
  static constexpr int kLanes = avx2::kLanes;
  static constexpr int kBytes = sizeof(T);

  /// `k` elements of a strip whose lanes are rows in memory, `ld` elements apart.
  PENTATRON_AVX2 static void along(const char* src, int64_t ld, int64_t k, const Strip& strip) {
    src += strip.offset * ld * kBytes;
    auto* const dst = reinterpret_cast<float*>(strip.dst);
    for (int64_t k0 = 0; k0 < k; k0 += kStep<T>) {
      const int elements = k - k0 < kStep<T> ? static_cast<int>(k - k0) : kStep<T>;
      const char* const p = src + k0 * kBytes;
      if (k0 * kBytes % 64 == 0) prefetch_rows(p + kAheadBytes, ld * kBytes);
      __m256i r[kVectorsOfStep<T>];
      load_transposed<T>(p, ld * kBytes, strip.lanes, elements, r);
#pragma GCC unroll 8
      for (int s = 0; s < kStep<T>; ++s)
        if (s < elements)
          _mm256_storeu_ps(dst + (k0 + s) * strip.stride,
                           element<T>(r[s / kElementsOfVector<T>], s % kElementsOfVector<T>));
    }
  }

  /// `k` elements of all strips, whose lanes lie along the rows of memory, rows of k `ld` elements
  /// apart.
  PENTATRON_AVX2 static void across(const char* src, int64_t ld, int64_t k, const Strip* strips,
                                    int count) {
    // Panels often lie a multiple of the page apart, so that one row at a time thrashes the cache.
    constexpr int64_t kRows = 16;
    for (int64_t first = 0; first < k; first += kRows) {
      const int64_t end = first + kRows < k ? first + kRows : k;
      for (int i = 0; i < count; ++i) {
        const Strip& strip = strips[i];
        auto* const dst = reinterpret_cast<float*>(strip.dst);
        for (int64_t s = first; s < end; ++s) {
          const char* const p = src + (s * ld + strip.offset) * kBytes;
          _mm_prefetch(p + kRows * ld * kBytes, _MM_HINT_T0);
          _mm256_storeu_ps(dst + s * strip.stride, load<T>(p, strip.lanes));
        }
      }
    }
  }
};

/// The sum of row i, vector v (its first n lanes) with what `t` adds to it.
PENTATRON_AVX2_INLINE __m256 finish_sum(__m256 x, const TileOut& t, int i, int v, int n) {
  if (t.in != nullptr) {
    const float* const in = t.in + i * t.ld_in + kLanes * v;
    x = _mm256_add_ps(x, load<float>(reinterpret_cast<const char*>(in), n));
  }
  if (t.in16 != nullptr) {
    const auto* const in = reinterpret_cast<const char*>(t.in16 + i * t.ld_out + kLanes * v);
    x = _mm256_add_ps(x, t.fp16 ? load<fp16>(in, n) : load<bf16>(in, n));
  }
  if (t.bias != nullptr) {
    const auto* const bias = reinterpret_cast<const char*>(t.bias + kLanes * v);
    x = _mm256_add_ps(x, load<float>(bias, n));
  }
  return x;
}

/// Writes the sums of a tile as `t` says.
template <int kRows, int kVectors>
PENTATRON_AVX2 inline void finish_tile(const __m256 (&sum)[kRows][kVectors], const TileOut& t) {
  if constexpr (kVectors == 2) {
    if (t.out16 != nullptr && t.columns == 2 * kLanes) {
#pragma GCC unroll 6
      for (int i = 0; i < kRows; ++i) {
        const __m256 low = finish_sum(sum[i][0], t, i, 0, kLanes);
        const __m256 high = finish_sum(sum[i][1], t, i, 1, kLanes);
        uint16_t* const out = t.out16 + i * t.ld_out;
        if (t.fp16) {
          store_two<fp16>(out, low, high);
        } else {
          store_two<bf16>(out, low, high);
        }
      }
      return;
    }
  }
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const int left = t.columns - kLanes * v;
    if (left <= 0) break;
    const int n = left < kLanes ? left : kLanes;
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 x = finish_sum(sum[i][v], t, i, v, n);
      if (t.out16 == nullptr) {
        store(t.out + i * t.ld_out + kLanes * v, x, n);
        continue;
      }
      uint16_t* const out = t.out16 + i * t.ld_out + kLanes * v;
      if (t.fp16) {
        store_as<fp16>(out, x, n);
      } else {
        store_as<bf16>(out, x, n);
      }
    }
  }
}

/// sums[row][vector] of a tile: kRows x (8 kVectors), over `steps` of the panels `a` (rows 8 apart)
/// and `b`, finished as `t` says.
template <int kRows, int kVectors>
PENTATRON_AVX2 void micro_kernel(int64_t steps, const float* a, const float* b, const TileOut& t) {
  __m256 sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm256_setzero_ps();
  }
  // The tile of C comes from memory while the sums are formed.
  const char* const c =
      reinterpret_cast<const char*>(t.out16 != nullptr ? static_cast<const void*>(t.out16) : t.out);
  const int64_t c_row = t.ld_out * (t.out16 != nullptr ? 2 : 4);
#pragma GCC unroll 6
  for (int i = 0; i < kRows; ++i) __builtin_prefetch(c + i * c_row, 1);
#pragma GCC unroll 4
  for (int64_t s = 0; s < steps; ++s) {
    __m256 bv[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) bv[v] = _mm256_loadu_ps(b + kLanes * v);
#pragma GCC unroll 6
    for (int i = 0; i < kRows; ++i) {
      const __m256 av = _mm256_broadcast_ss(a + i);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm256_fmadd_ps(av, bv[v], sum[i][v]);
    }
    a += kLanes;
    b += kLanes * kVectors;
  }
  finish_tile<kRows, kVectors>(sum, t);
}

/// The same for a tile of kRows x (8 kVectors) whose part of op(B) is read from memory, its columns
/// of k lying along rows `ld` elements apart, and never packed: for few rows of op(A), where B is
/// used once. `a` holds kRows numbers for each k. The order of sums is that of micro_kernel. A line
/// of the cache is used whole at once, because rows a multiple of the page apart would drive each
/// other out. Two vectors of columns hide that each sum waits for the one before it; with more,
/// rows are so many that memory is read more slowly.
template <class T, int kRows, int kVectors>
PENTATRON_AVX2 void thin_kernel(int64_t k, const float* a, const char* src, int64_t ld,
                                const char* next, const TileOut& t) {
  constexpr int64_t kBytes = sizeof(T);
  constexpr int kSteps = 4, kLine = kSteps * kStep<T>, kOfLine = kSteps * kVectorsOfStep<T>;
  const int64_t row_bytes = ld * kBytes;
  __m256i line[kOfLine][kVectors];
  __m256 sum[kRows][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm256_setzero_ps();
  }
  const auto add = [&](int s) __attribute__((always_inline)) PENTATRON_AVX2 {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const __m256 b = element<T>(line[s / kElementsOfVector<T>][v], s % kElementsOfVector<T>);
#pragma GCC unroll 4
      for (int i = 0; i < kRows; ++i)
        sum[i][v] = _mm256_fmadd_ps(_mm256_broadcast_ss(a + s * kRows + i), b, sum[i][v]);
    }
  };
  const auto load_step = [&](const char* p, int v, int q, int lanes, int elements)
      __attribute__((always_inline)) PENTATRON_AVX2 {
    __m256i r[kVectorsOfStep<T>];
    load_transposed<T>(p + 16 * q, row_bytes, lanes, elements, r);
#pragma GCC unroll 8
    for (int s = 0; s < kVectorsOfStep<T>; ++s) line[q * kVectorsOfStep<T> + s][v] = r[s];
  };
  const bool whole = t.columns == kLanes * kVectors;
  for (int64_t k0 = 0; k0 < k; k0 += kLine, src += kLine * kBytes, a += kLine * kRows) {
    const char* p = src;
    if (whole && k - k0 >= kLine) {
#pragma GCC unroll 1
      for (int v = 0; v < kVectors; ++v, p += kLanes * row_bytes) {
        prefetch_rows(next, 64);
        next += 8 * 64;
#pragma GCC unroll 4
        for (int q = 0; q < kSteps; ++q) load_step(p, v, q, kLanes, kStep<T>);
      }
#pragma GCC unroll 32
      for (int s = 0; s < kLine; ++s) add(s);
    } else {
      const int left = k - k0 < kLine ? static_cast<int>(k - k0) : kLine;
      for (int v = 0; v < kVectors; ++v, p += kLanes * row_bytes) {
        for (int q = 0; q * kStep<T> < left; ++q) {
          const int elements = left - q * kStep<T>;
          load_step(p, v, q, t.columns - kLanes * v, elements < kStep<T> ? elements : kStep<T>);
        }
      }
      for (int s = 0; s < left; ++s) add(s);
    }
  }
  finish_tile<kRows, kVectors>(sum, t);
}

using MicroKernel = void (*)(int64_t steps, const float* a, const float* b, const TileOut& t);

/// The micro-kernel for a number of rows (1..6) and of vectors (1 or 2).
inline MicroKernel find_micro_kernel(int rows, int vectors) {
  static constexpr auto kTable = []<int... kRow>(std::integer_sequence<int, kRow...>) {
    return std::array<std::array<MicroKernel, kMr>, 2>{
        {{&micro_kernel<kRow + 1, 1>...}, {&micro_kernel<kRow + 1, 2>...}}};
  }
  (std::make_integer_sequence<int, kMr>{});
  return kTable[static_cast<size_t>(vectors - 1)][static_cast<size_t>(rows - 1)];
}

using ThinKernel = void (*)(int64_t k, const float* a, const char* src, int64_t ld,
                            const char* next, const TileOut& t);

/// The thin kernel for a number of rows (1..4) and of vectors (1 or 2).
template <class T> ThinKernel find_thin_kernel(int rows, int vectors) {
  static constexpr ThinKernel kTable[kThinTile][2] = {
      {&thin_kernel<T, 1, 1>, &thin_kernel<T, 1, 2>},
      {&thin_kernel<T, 2, 1>, &thin_kernel<T, 2, 2>},
      {&thin_kernel<T, 3, 1>, &thin_kernel<T, 3, 2>},
      {&thin_kernel<T, 4, 1>, &thin_kernel<T, 4, 2>}};
  return kTable[rows - 1][vectors - 1];
}

} // namespace pentatron::kernels::gemm_detail::avx2
