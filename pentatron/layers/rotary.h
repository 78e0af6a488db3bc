/// The table of rotary angles that all layers of a model share.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/rope/rope_frequencies.h"

namespace pentatron::layers {

/// cos and sin [max_position, rotary_dim / 2] in the accumulate type, computed in fp64. Undefined
/// tensors: no rotation.
struct RotaryTable {
  at::Tensor cos, sin;
  int64_t rotary_dim = 0;
  bool interleaved = false;

  bool defined() const { return cos.defined(); }
  static RotaryTable make(const kernels::RopeOptions& options, bool interleaved,
                          int64_t max_position, at::ScalarType acc_dtype, at::Device device);
};

/// Rotates x [T, n, d] by the angle of each token's position into `out` (which may be x);
/// `transpose` turns back.
void rotate(const at::Tensor& out, const at::Tensor& x, const RotaryTable& table,
            const at::Tensor& positions, bool transpose);

} // namespace pentatron::layers
