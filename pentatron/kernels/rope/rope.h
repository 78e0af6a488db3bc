/// Rotary position embedding of q or k.
///
/// Shapes, t = tokens, n = heads, d = head_size, r = rotary_dim (even, <= d):
///   x, y       [t, n, d] with token and head strides, d contiguous; y may be x
///   cos, sin   [max_position, r / 2] of acc_dtype(dtype), any scaling of attention already
///   multiplied in positions  [t] int32
/// Pair i of a head is (i, i + r / 2), or (2i, 2i + 1) if `interleaved`, rotated by the angle of
/// its token's position:
///   (a, b) -> (a cos - b sin, b cos + a sin); features from r on are copied.
/// Backward is the same call on the gradient with `transpose`, which flips the sign of sin.
/// Source: Su et al. 2021 (arXiv:2104.09864); half-split pairs as in GPT-NeoX and Hugging Face.
#pragma once

#include <cstdint>
#include <span>

#include "pentatron/kernels/contract.h"

namespace pentatron::kernels {

struct Rope {
  DType dtype = DType::kFloat32;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_size = 0;
  int64_t rotary_dim = 0;
  const void* x = nullptr;
  void* y = nullptr;
  int64_t x_token_stride = 0; ///< 0: heads * head stride
  int64_t x_head_stride = 0;  ///< 0: head_size
  int64_t y_token_stride = 0;
  int64_t y_head_stride = 0;
  const void* cos = nullptr;
  const void* sin = nullptr;
  int64_t max_position = 0;
  const int32_t* positions = nullptr;
  bool interleaved = false;
  bool transpose = false;
};

/// Throws ShapeError if rotary_dim is odd or above head_size, or (CPU) a position lies outside the
/// tables.
void rope(const Rope& args, const Context& context = {});

std::span<const Entry<Rope>> rope_entries();

} // namespace pentatron::kernels
