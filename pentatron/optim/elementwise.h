/// What rules share that update every element by itself, with one kernel over flat vectors.
#pragma once

#include "pentatron/kernels/contract.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/optim/rule.h"

namespace pentatron::optim {

/// The vectors of a range, as kernels take them.
struct ElementwiseArgs {
  kernels::DType dtype;
  int64_t n;
  void* param;
  const void* grad;
  void* copy; ///< null: the values are the master weights
  kernels::DType copy_dtype;
  nn::KernelContext context;
};

void* at_element(const at::Tensor& flat, int64_t index);
ElementwiseArgs elementwise_args(const ShardState& shard, nn::FlatRange range);

} // namespace pentatron::optim
