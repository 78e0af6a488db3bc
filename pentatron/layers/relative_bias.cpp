#include "pentatron/layers/relative_bias.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/record.h"

namespace pentatron::layers {

nn::ShardSpec RelativeBias::spec(const RelativeBiasOptions& options) {
  return {.name = {},
          .shape = {options.buckets, options.heads},
          .table = true,
          .placements = {{"tp", nn::Placement::shard(1)}}};
}

RelativeBias::RelativeBias(const nn::Scope& scope, const RelativeBiasOptions& options,
                           const parallel::TensorParallel&)
    : RelativeBias(scope.param("weight", spec(options), nn::Init::normal(options.init_std)),
                   options) {}

RelativeBias::RelativeBias(nn::Param& weight, const RelativeBiasOptions& options)
    : options_(options), weight_(&weight) {}

at::Tensor RelativeBias::bucket_of_columns(int64_t span, const RelativeBiasOptions& o,
                                           at::Device device) {
  // Column span - 1 + (query - key).
  const at::Tensor behind = at::arange(1 - span, span, at::kLong);
  const int64_t half = o.bidirectional ? o.buckets / 2 : o.buckets, exact = half / 2;
  const at::Tensor distance = o.bidirectional ? behind.abs() : behind.clamp_min(0);
  // fp32 as in Hugging Face, whose rounding decides at the edges of buckets.
  const at::Tensor far =
      (at::log(distance.to(at::kFloat) / exact) /
       std::log(static_cast<double>(o.max_distance) / static_cast<double>(exact)) * (half - exact))
          .clamp(0, half) // log(0)
          .to(at::kLong)
          .add(exact)
          .clamp_max(half - 1);
  at::Tensor bucket = at::where(distance < exact, distance, far);
  if (o.bidirectional) bucket = bucket + (behind < 0).to(at::kLong) * half;
  return nn::to_device(bucket, device);
}

at::Tensor RelativeBias::table(int64_t span, const nn::ForwardContext& ctx) const {
  ctx.use(weight_);
  at::Tensor buckets, table;
  {
    const nn::NoAutograd guard;
    const at::Tensor weight = weight_->value();
    buckets = bucket_of_columns(span, options_, weight.device());
    table =
        weight.to(nn::acc_dtype(weight.scalar_type())).t().contiguous().index_select(1, buckets);
  }
  if (planted("bias_of_another_head")) {
    const auto tp = weight_->where().find("tp");
    if (tp != weight_->where().end() && tp->second.rank > 0) table = table.roll(1, 0);
  }
  nn::record("relative_bias", {}, {table}, {buckets},
             [weight = weight_](auto&& grads, nn::Saved& saved) {
               const nn::NoAutograd guard;
               if (weight->trainable) {
                 const at::Tensor sum = at::zeros(weight->shape(), grads[0].options());
                 weight->accumulate(sum.index_add_(0, saved[0], grads[0].t().contiguous()));
               }
               return std::vector<at::Tensor>{};
             });
  return table;
}

} // namespace pentatron::layers
