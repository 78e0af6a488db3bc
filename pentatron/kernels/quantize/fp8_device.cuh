/// What the kernels of FP8 codes share. Included by .cu files only.
#pragma once

#include "pentatron/kernels/common/device.cuh"
#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::kernels::cuda {

__device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof x);
  return bits;
}
__device__ inline float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

template <class A> __device__ float size_of(A x) {
  return float_of(bits_of(static_cast<float>(x)) & 0x7FFFFFFFu);
}

/// encode_scale(), rounded down to a power of two: block_scale() of the blockwise recipes.
__device__ inline float block_encode_of(float amax) {
  return float_of(bits_of(encode_scale(448.0f, amax)) & 0xFF800000u);
}

template <bool e5m2> __device__ uint8_t rounded_code(float x) {
#if !defined(PENTATRON_EMULATED) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  if constexpr (e5m2)
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return static_cast<uint8_t>(pair);
#else
  constexpr CodeFormat format = e5m2 ? kE5M2 : kE4M3;
  return code_of(format, rounded_to(format, x));
#endif
}

/// Codes that a thread writes at once.
inline constexpr int kCodes = 16;

/// Writes 16 codes that lie in words of shared memory or registers to an address that is a multiple
/// of 16.
__device__ inline void store_codes(uint8_t* out, const uint32_t (&words)[kCodes / 4]) {
#ifdef PENTATRON_EMULATED
  emulation::check_aligned(out, 16);
#endif
  uint4 raw;
  memcpy(&raw, words, sizeof raw);
  *reinterpret_cast<uint4*>(out) = raw;
}

/// kCodes elements from column `col` on of a row of x with `cols` columns; zeros behind the last.
template <bool packs, class T>
__device__ void load_group(const T* row, int64_t col, int64_t cols, acc_t<T> (&in)[kCodes]) {
  if constexpr (packs) {
    load_row<true>(row + col, in);
  } else {
    for (int j = 0; j < kCodes; ++j) in[j] = col + j < cols ? to_acc(row[col + j]) : acc_t<T>(0);
  }
}
/// Their codes, into a row of `stride` codes.
template <bool e5m2, bool packs, class A>
__device__ void store_group(uint8_t* row, int64_t col, int64_t stride, const A (&in)[kCodes],
                            float encode) {
  uint8_t codes[kCodes];
  for (int j = 0; j < kCodes; ++j)
    codes[j] = rounded_code<e5m2>(static_cast<float>(in[j]) * encode);
  if constexpr (packs) {
    uint32_t words[kCodes / 4];
    memcpy(words, codes, sizeof words);
    store_codes(row + col, words);
  } else {
    for (int j = 0; j < kCodes && col + j < stride; ++j) row[col + j] = codes[j];
  }
}

/// A tile of codes that is transposed through shared memory: rows and columns of x.
inline constexpr int kTileRows = 128, kTileCols = 64;
/// Of a column in the tile: neighbouring columns lie in different banks.
inline constexpr int kTilePitch = kTileRows + 4;

/// Writes columns of a tile as rows of codes [cols, stride]; all threads of a block call it, after
/// a barrier.
template <bool packs>
__device__ void store_tile(const uint32_t* words_of_tile, int64_t first_row, int64_t first_col,
                           int64_t cols, int64_t stride, uint8_t* codes) {
  constexpr int kGroups = kTileRows / kCodes;
  for (int i = static_cast<int>(threadIdx.x); i < kTileCols * kGroups;
       i += static_cast<int>(blockDim.x)) {
    const int c = i / kGroups, r = i % kGroups * kCodes;
    if (first_col + c >= cols || first_row + r >= stride) continue;
    uint8_t* const out = codes + (first_col + c) * stride + first_row + r;
    if constexpr (packs) {
      uint32_t words[kCodes / 4];
      for (int w = 0; w < kCodes / 4; ++w) words[w] = words_of_tile[(c * kTilePitch + r) / 4 + w];
      store_codes(out, words);
    } else {
      const auto* const from = reinterpret_cast<const uint8_t*>(words_of_tile) + c * kTilePitch + r;
      for (int j = 0; j < kCodes && first_row + r + j < stride; ++j) out[j] = from[j];
    }
  }
}

} // namespace pentatron::kernels::cuda
