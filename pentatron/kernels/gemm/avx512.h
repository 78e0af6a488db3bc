/// The AVX-512 pieces of the GEMM: packing and the register-blocked micro-kernel. Included by
/// sources with entries for AVX-512 and AMX only.
///
/// A packed panel holds, for every step of k, the elements of up to 14 rows of op(A) or 32 columns
/// of op(B) side by side. An element (a "unit") has 32 bits: one fp32, or two bf16 of consecutive k
/// (zero after an odd k), which is what vdpbf16ps multiplies.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <immintrin.h>

#include "pentatron/kernels/gemm/panels.h"

namespace pentatron::kernels::gemm_detail {

// Attributes and not compiler flags, so that nothing else in the program is compiled for this
// processor. Code in these functions must not call inline functions of the standard library: the
// linker might keep the AVX-512 copy for everybody.
#define PENTATRON_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma")))
#define PENTATRON_AVX512_BF16                                                                      \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw")))

constexpr int kMr =
    14; ///< rows of a tile: 14 x 2 sums, two vectors of B and a broadcast of A fill the registers
constexpr int kNr = 32; ///< columns of a tile

/// 16 x 16 transposition of 32-bit units in registers.
PENTATRON_AVX512 inline void transpose_16x16(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // r[4i + j] now holds column 4c + j of rows 4i..4i+3 in its 128-bit part c.
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[8 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xdd);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xdd);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[4 + j], 0xdd);
    r[4 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_i32x4(t[8 + j], t[12 + j], 0xdd);
  }
}

/// The lanes of a strip that are written.
PENTATRON_AVX512 inline __mmask16 stored_lanes(const Strip& strip) {
  return static_cast<__mmask16>(strip.pad ? 0xffffU : (1U << strip.lanes) - 1);
}

/// Packs `k` elements of a strip whose lanes are rows in memory, `ld` elements apart.
template <bool kPair>
PENTATRON_AVX512 void pack_along(const char* src, int64_t ld, int64_t k, const Strip& strip) {
  constexpr int kBytes = kPair ? 2 : 4;
  constexpr int kPerUnit = kPair ? 2 : 1;
  const __mmask16 lane_mask = stored_lanes(strip);
  src += strip.offset * ld * kBytes;
  for (int64_t k0 = 0; k0 < k; k0 += 16 * kPerUnit) {
    const int64_t left = k - k0;
    const bool whole = left >= 16 * kPerUnit;
    const __mmask32 mask16 = static_cast<__mmask32>((uint64_t{1} << (whole ? 32 : left)) - 1);
    const __mmask16 mask32 = static_cast<__mmask16>((1U << (whole || kPair ? 16 : left)) - 1);
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const char* p = src + (i * ld + k0) * kBytes;
      _mm_prefetch(p + kAheadBytes, _MM_HINT_T0);
      if (i >= strip.lanes) {
        r[i] = _mm512_setzero_si512();
      } else if constexpr (kPair) {
        r[i] = _mm512_maskz_loadu_epi16(mask16, p);
      } else {
        r[i] = _mm512_maskz_loadu_epi32(mask32, p);
      }
    }
    transpose_16x16(r);
    const int64_t steps = whole || strip.pad ? 16 : (left + kPerUnit - 1) / kPerUnit;
    uint32_t* d = strip.dst + k0 / kPerUnit * strip.stride;
#pragma GCC unroll 16
    for (int s = 0; s < 16; ++s) {
      if (s < steps) _mm512_mask_storeu_epi32(d + s * strip.stride, lane_mask, r[s]);
    }
  }
}

/// Packs `k` elements of all strips, whose lanes lie along the rows of memory, rows of k `ld`
/// elements apart.
template <bool kPair>
PENTATRON_AVX512 void pack_across(const char* src, int64_t ld, int64_t k, const Strip* strips,
                                  int count) {
  if constexpr (kPair) {
    for (int64_t s = 0; 2 * s < k; ++s) {
      const char* const row = src + 2 * s * ld * 2;
      const bool pair = 2 * s + 1 < k;
      for (int i = 0; i < count; ++i) {
        const Strip& strip = strips[i];
        const __mmask16 mask = static_cast<__mmask16>((1U << strip.lanes) - 1);
        const char* const p = row + strip.offset * 2;
        _mm_prefetch(p + 2 * kAheadRows * ld, _MM_HINT_T0);
        _mm_prefetch(p + 2 * (kAheadRows + 1) * ld, _MM_HINT_T0);
        __m512i v = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p));
        if (pair) {
          const __m512i next = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p + ld * 2));
          v = _mm512_or_si512(v, _mm512_slli_epi32(next, 16));
        }
        _mm512_mask_storeu_epi32(strip.dst + s * strip.stride, stored_lanes(strip), v);
      }
    }
    for (int64_t s = (k + 1) / 2; s % 16 != 0; ++s) {
      for (int i = 0; i < count; ++i) {
        if (strips[i].pad)
          _mm512_storeu_si512(strips[i].dst + s * strips[i].stride, _mm512_setzero_si512());
      }
    }
  } else {
    for (int64_t s = 0; s < k; ++s) {
      const char* const row = src + s * ld * 4;
      for (int i = 0; i < count; ++i) {
        const Strip& strip = strips[i];
        const __mmask16 mask = static_cast<__mmask16>((1U << strip.lanes) - 1);
        _mm_prefetch(row + strip.offset * 4 + 4 * kAheadRows * ld, _MM_HINT_T0);
        _mm512_mask_storeu_epi32(strip.dst + s * strip.stride, mask,
                                 _mm512_maskz_loadu_epi32(mask, row + strip.offset * 4));
      }
    }
  }
}

/// As BlockedGemm packs.
template <bool kPair> struct Avx512Packing {
  static constexpr int kLanes = 16;
  static void along(const char* src, int64_t ld, int64_t k, const Strip& strip) {
    pack_along<kPair>(src, ld, k, strip);
  }
  static void across(const char* src, int64_t ld, int64_t k, const Strip* strips, int count) {
    pack_across<kPair>(src, ld, k, strips, count);
  }
};

/// The lanes of vector `v` of a tile that are columns of C.
PENTATRON_AVX512 inline __mmask16 column_mask(const TileOut& t, int v) {
  const int lanes = t.columns - 16 * v < 16 ? t.columns - 16 * v : 16;
  return static_cast<__mmask16>((1U << lanes) - 1);
}

PENTATRON_AVX512 inline __m512 bias_vector(const TileOut& t, int v, __mmask16 mask) {
  return t.bias == nullptr ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, t.bias + 16 * v);
}

/// Writes the sums x of vector v of row i of a tile as `t` says.
template <bool kPair>
PENTATRON_AVX512_BF16 inline void finish_vector(__m512 x, int64_t i, int v, __mmask16 mask,
                                                __m512 bias, const TileOut& t) {
  if (t.in != nullptr)
    x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, t.in + i * t.ld_in + 16 * v));
  if constexpr (kPair) {
    if (t.in16 != nullptr) {
      const __m256i old = _mm256_maskz_loadu_epi16(mask, t.in16 + i * t.ld_out + 16 * v);
      x = _mm512_add_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(old), 16)));
    }
  }
  if (t.bias != nullptr) x = _mm512_add_ps(x, bias);
  if (kPair && t.out16 != nullptr) {
    if constexpr (kPair) {
      _mm256_mask_storeu_epi16(t.out16 + i * t.ld_out + 16 * v, mask,
                               (__m256i)_mm512_cvtneps_pbh(x));
    }
  } else {
    _mm512_mask_storeu_ps(t.out + i * t.ld_out + 16 * v, mask, x);
  }
}

/// Writes the sums of a tile as `t` says.
template <bool kPair, int kRows, int kVectors>
PENTATRON_AVX512_BF16 inline void finish_tile(const __m512 (&sum)[kRows][kVectors],
                                              const TileOut& t) {
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; ++v) {
    const __mmask16 mask = column_mask(t, v);
    const __m512 bias = bias_vector(t, v, mask);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) finish_vector<kPair>(sum[i][v], i, v, mask, bias, t);
  }
}

/// sums[row][vector] of a tile: kRows x (16 kVectors), over `steps` units of the panels `a` and
/// `b`, finished as `t` says. The functions for fp32 carry the bf16 attribute too but contain none
/// of its instructions.
template <bool kPair, int kRows, int kVectors>
PENTATRON_AVX512_BF16 void micro_kernel(int64_t steps, const uint32_t* a, const uint32_t* b,
                                        const TileOut& t) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_setzero_ps();
  }
  // The tile of C comes from memory while the sums are formed.
  const char* const c =
      reinterpret_cast<const char*>(t.out16 != nullptr ? static_cast<const void*>(t.out16) : t.out);
  const int64_t c_row = t.ld_out * (t.out16 != nullptr ? 2 : 4);
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
    __builtin_prefetch(c + i * c_row, 1);
    if (kVectors == 2) __builtin_prefetch(c + i * c_row + 64, 1);
  }
  for (int64_t s = 0; s < steps; ++s) {
    __m512 bv[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) bv[v] = _mm512_loadu_ps(b + 16 * v);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) {
      const __m512 av = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(a[i])));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        if constexpr (kPair) {
          sum[i][v] = _mm512_dpbf16_ps(sum[i][v], (__m512bh)av, (__m512bh)bv[v]);
        } else {
          sum[i][v] = _mm512_fmadd_ps(av, bv[v], sum[i][v]);
        }
      }
    }
    a += kRows;
    b += 16 * kVectors;
  }
  finish_tile<kPair, kRows, kVectors>(sum, t);
}

/// The same for a tile of kRows x 16 whose part of op(B) is read from memory, its 16 columns of k
/// lying along rows `ld` elements apart, and never packed: for few rows of op(A), where B is used
/// once. The order of sums is that of micro_kernel.
template <bool kPair, int kRows>
PENTATRON_AVX512_BF16 void thin_kernel(int64_t k, const uint32_t* a, const char* src, int64_t ld,
                                       const TileOut& t) {
  constexpr int kBytes = kPair ? 2 : 4;
  constexpr int kPerUnit = kPair ? 2 : 1;
  __m512 sum[kRows][1];
#pragma GCC unroll 4
  for (int i = 0; i < kRows; ++i) sum[i][0] = _mm512_setzero_ps();
  for (int64_t k0 = 0; k0 < k; k0 += 16 * kPerUnit) {
    const int64_t left = k - k0;
    const bool whole = left >= 16 * kPerUnit;
    const __mmask32 mask16 = static_cast<__mmask32>((uint64_t{1} << (whole ? 32 : left)) - 1);
    const __mmask16 mask32 = static_cast<__mmask16>((1U << (whole || kPair ? 16 : left)) - 1);
    __m512i b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      const char* p = src + (i * ld + k0) * kBytes;
      _mm_prefetch(p + kAheadBytes, _MM_HINT_T0);
      if (i >= t.columns) {
        b[i] = _mm512_setzero_si512();
      } else if constexpr (kPair) {
        b[i] = _mm512_maskz_loadu_epi16(mask16, p);
      } else {
        b[i] = _mm512_maskz_loadu_epi32(mask32, p);
      }
    }
    transpose_16x16(b);
    const int64_t steps = whole ? 16 : (left + kPerUnit - 1) / kPerUnit;
#pragma GCC unroll 16
    for (int s = 0; s < 16; ++s) {
      if (s < steps) {
#pragma GCC unroll 4
        for (int i = 0; i < kRows; ++i) {
          const __m512 av =
              _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(a[s * kRows + i])));
          if constexpr (kPair) {
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], (__m512bh)av, (__m512bh)b[s]);
          } else {
            sum[i][0] = _mm512_fmadd_ps(av, _mm512_castsi512_ps(b[s]), sum[i][0]);
          }
        }
      }
    }
    a += 16 * kRows;
  }
  finish_tile<kPair, kRows, 1>(sum, t);
}

using MicroKernel = void (*)(int64_t steps, const uint32_t* a, const uint32_t* b, const TileOut& t);

/// The micro-kernel for a number of rows (1..14) and of vectors (1 or 2).
template <bool kPair> MicroKernel find_micro_kernel(int rows, int vectors) {
  static constexpr auto kTable = []<int... kRow>(std::integer_sequence<int, kRow...>) {
    return std::array<std::array<MicroKernel, kMr>, 2>{
        {{&micro_kernel<kPair, kRow + 1, 1>...}, {&micro_kernel<kPair, kRow + 1, 2>...}}};
  }
  (std::make_integer_sequence<int, kMr>{});
  return kTable[vectors - 1][rows - 1];
}

constexpr int kThinTile = 4; ///< most rows of thin_kernel

using ThinKernel = void (*)(int64_t k, const uint32_t* a, const char* src, int64_t ld,
                            const TileOut& t);

/// The thin kernel for a number of rows (1..4).
template <bool kPair> ThinKernel find_thin_kernel(int rows) {
  static constexpr ThinKernel kTable[kThinTile] = {&thin_kernel<kPair, 1>, &thin_kernel<kPair, 2>,
                                                   &thin_kernel<kPair, 3>, &thin_kernel<kPair, 4>};
  return kTable[rows - 1];
}

} // namespace pentatron::kernels::gemm_detail
