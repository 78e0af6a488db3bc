/// The DType of a tensor for a kernel call.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/contract.h"

namespace pentatron::bench {

inline kernels::DType dtype_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
  case at::kDouble:
    return kernels::DType::kFloat64;
  case at::kBFloat16:
    return kernels::DType::kBFloat16;
  case at::kHalf:
    return kernels::DType::kFloat16;
  default:
    return kernels::DType::kFloat32;
  }
}

} // namespace pentatron::bench
