#include "pentatron/layers/latent_keys.h"

#include <ATen/ATen.h>

#include "pentatron/nn/ops/matmul.h"

namespace pentatron::layers {

at::Tensor LatentKeys::make(const at::Tensor& latents) const {
  const int64_t r = sizes.rank, p = sizes.plain_size, d = sizes.rotary_size, e = sizes.value_size;
  const at::Tensor rows = latents.squeeze(1);
  const at::Tensor kv = nn::matmul_nt(rows.narrow(1, 0, r), *weight).unflatten(1, {heads, p + e});
  const at::Tensor y = at::empty({rows.size(0), heads, p + d + e}, rows.options());
  y.narrow(2, 0, p).copy_(kv.narrow(2, 0, p));
  y.narrow(2, p, d).copy_(rows.narrow(1, r, d).unsqueeze(1).expand({-1, heads, d}));
  y.narrow(2, p + d, e).copy_(kv.narrow(2, p, e));
  return y;
}

at::Tensor LatentKeys::gradient(const at::Tensor& grad, const at::Tensor& latents) const {
  const int64_t r = sizes.rank, p = sizes.plain_size, d = sizes.rotary_size, e = sizes.value_size;
  const at::Tensor rows = latents.squeeze(1);
  const at::Tensor dkv = at::empty({rows.size(0), heads, p + e}, rows.options());
  dkv.narrow(2, 0, p).copy_(grad.narrow(2, 0, p));
  dkv.narrow(2, p, e).copy_(grad.narrow(2, p + d, e));
  const at::Tensor flat = dkv.flatten(1);
  if (weight->trainable) nn::add_matmul_tn(*weight, flat, rows.narrow(1, 0, r));
  at::Tensor y = at::empty(latents.sizes(), grad.options());
  y.narrow(2, 0, r).copy_(nn::matmul_nn(flat, *weight).unsqueeze(1));
  y.narrow(2, r, d).copy_(grad.narrow(2, p, d).sum({1}, true));
  return y;
}

} // namespace pentatron::layers
