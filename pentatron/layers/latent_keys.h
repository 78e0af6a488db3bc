/// Keys and values of heads, computed from latents where they are needed.
///
/// Shapes, R = rows, n = this rank's heads, r = rank of the latent, p, d, e = features of a head:
/// plain, rotary, of values:
///   latents [R, 1, r + d], the rotary key behind the latent -> [R, n, p + d + e], keys and values
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/layers/attention_options.h"
#include "pentatron/nn/param.h"

namespace pentatron::layers {

struct LatentKeys {
  nn::Param* weight = nullptr; ///< kv_b [n (p + e), r]
  LatentSizes sizes = {};
  int64_t heads = 0;
  bool adapted = false; ///< the layer of the weight has an adapter, which make() would leave out

  int64_t key_size() const { return sizes.plain_size + sizes.rotary_size; }
  int64_t value_size() const { return sizes.value_size; }
  /// Numbers of a token, as latents and as keys and values.
  int64_t latent_numbers() const { return sizes.rank + sizes.rotary_size; }
  int64_t key_numbers() const { return heads * (key_size() + value_size()); }
  at::Tensor make(const at::Tensor& latents) const;

  /// The gradient of latents, in the accumulate type, from `grad` of what they were made into. Adds
  /// to that of the weight; the caller says when all parts have (Param::accumulated).
  at::Tensor gradient(const at::Tensor& grad, const at::Tensor& latents) const;
};

} // namespace pentatron::layers
