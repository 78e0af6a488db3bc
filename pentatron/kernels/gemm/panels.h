/// What packing and micro-kernels of every instruction set share: where strips of op(A) and op(B)
/// are packed, and where a tile of C goes.
#pragma once

#include <cstdint>

namespace pentatron::kernels::gemm_detail {

// Packing reads more streams than the processor follows by itself, so it asks ahead. Prefetches
// past the end are harmless.
constexpr int64_t kAheadBytes = 256;
constexpr int64_t kAheadRows = 4;

/// Neighbouring rows of op(A) or columns of op(B), at most one vector of them, and their place in a
/// packed panel: unit s of lane l goes to dst[s * stride + l].
struct Strip {
  int64_t offset = 0; ///< of lane 0, in rows of op(A) or columns of op(B)
  int lanes = 0;
  int stride = 0;
  uint32_t* dst = nullptr;
  bool pad = false; ///< write zeros too, up to a whole vector and to a multiple of 16 units
};

/// How a tile of C is finished: sum [+ in] [+ in16] [+ bias] -> out or out16. Null pointers are
/// left out.
struct TileOut {
  const float* in = nullptr;
  const uint16_t* in16 = nullptr;
  const float* bias = nullptr;
  float* out = nullptr;
  uint16_t* out16 = nullptr;
  int64_t ld_in = 0;
  int64_t ld_out = 0;  ///< of out, or of out16 and in16
  int columns = 0;     ///< at least 1, at most two vectors
  bool fp16 = false;   ///< in16 and out16 are fp16, not bf16
  bool stream = false; ///< out is large, aligned and not read: past the caches, if whole lines
};

} // namespace pentatron::kernels::gemm_detail
