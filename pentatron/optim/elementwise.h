/// What rules share that update every element by itself, with one kernel over flat vectors.
#pragma once

#include "pentatron/kernels/contract.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/rule.h"

namespace pentatron::optim {

void* at_element(const at::Tensor& flat, int64_t index);

/// What such kernels have in common: the vectors of a range, and the scalars of a step.
template <class Args>
Args elementwise_args(const ShardState& shard, nn::FlatRange range, const Hyperparameters& how) {
  const at::Tensor& values = shard.shard.values;
  const bool lower = !shard.master.is_same(values); // the values are not the master weights
  return {.dtype = nn::kernel_dtype(shard.master.scalar_type()),
          .n = range.size,
          .param = at_element(shard.master, range.begin),
          .grad = at_element(shard.shard.gradients, range.begin),
          .param_copy = lower ? at_element(values, range.begin) : nullptr,
          .copy_dtype = lower ? nn::kernel_dtype(values.scalar_type()) : kernels::DType::kBFloat16,
          .lr = how.lr,
          .weight_decay = how.weight_decay,
          .grad_scale = how.grad_scale};
}

} // namespace pentatron::optim
