#include "pentatron/layers/latent_keys.h"

#include <ATen/ATen.h>

#include "pentatron/nn/ops/matmul.h"

namespace pentatron::layers {

at::Tensor LatentKeys::make(const at::Tensor& latents) const {
  const int64_t r = sizes.rank, p = sizes.plain_size, d = sizes.rotary_size, e = sizes.value_size;
  const at::Tensor rows = latents.squeeze(1);
  const at::Tensor kv =
      nn::matmul_nt(rows.narrow(1, 0, r), weight->value()).unflatten(1, {heads, p + e});
  const at::Tensor y = at::empty({rows.size(0), heads, p + d + e}, rows.options());
  y.narrow(2, 0, p).copy_(kv.narrow(2, 0, p));
  y.narrow(2, p, d).copy_(rows.narrow(1, r, d).unsqueeze(1).expand({-1, heads, d}));
  y.narrow(2, p + d, e).copy_(kv.narrow(2, p, e));
  return y;
}

LatentKeys::Gradient::Gradient(const LatentKeys& keys) : keys_(keys) {
  if (keys.weight->trainable) sum_ = keys.weight->sum_to_write();
}

at::Tensor LatentKeys::Gradient::of(const at::Tensor& grad, const at::Tensor& latents) {
  const auto& [rank, p, d, e] = std::tuple{keys_.sizes.rank, keys_.sizes.plain_size,
                                           keys_.sizes.rotary_size, keys_.sizes.value_size};
  const at::Tensor rows = latents.squeeze(1);
  const at::Tensor dkv = at::empty({rows.size(0), keys_.heads, p + e}, rows.options());
  dkv.narrow(2, 0, p).copy_(grad.narrow(2, 0, p));
  dkv.narrow(2, p, e).copy_(grad.narrow(2, p + d, e));
  const at::Tensor flat = dkv.flatten(1);
  if (keys_.weight->trainable) {
    nn::add_matmul_tn(sum_.tensor, flat, rows.narrow(1, 0, rank), sum_.empty);
    sum_.empty = false;
  }
  at::Tensor y = at::empty(latents.sizes(), grad.options());
  y.narrow(2, 0, rank).copy_(nn::matmul_nn(flat, keys_.weight->value()).unsqueeze(1));
  y.narrow(2, rank, d).copy_(grad.narrow(2, p, d).sum({1}, true));
  return y;
}

void LatentKeys::Gradient::finish() {
  if (!keys_.weight->trainable) return;
  if (sum_.empty) sum_.tensor.zero_(); // there was no part with rows
  keys_.weight->accumulated();
}

} // namespace pentatron::layers
