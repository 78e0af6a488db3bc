/// Common parts of rules that update every element independently, with one kernel over flat
/// vectors.
#pragma once

#include "pentatron/kernels/contract.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// What such kernels have in common: the vectors of a part, and the scalars of a step.
template <class Args> Args elementwise_args(const ShardState& part, const Hyperparameters& how) {
  const at::Tensor& values = part.shard.values;
  const bool lower = part.has_copy();
  return {.dtype = nn::kernel_dtype(part.master.scalar_type()),
          .n = values.numel(),
          .param = part.master.data_ptr(),
          .grad = part.shard.gradients.data_ptr(),
          .param_copy = lower ? values.data_ptr() : nullptr,
          .copy_dtype = lower ? nn::kernel_dtype(values.scalar_type()) : kernels::DType::kBFloat16,
          .lr = how.lr,
          .weight_decay = how.weight_decay,
          .grad_scale = how.grad_scale,
          .control = how.control};
}

} // namespace pentatron::optim
