/// From tensors to the raw arguments of kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/contract.h"

namespace pentatron::nn {

/// Throws ShapeError for a type that kernels do not know.
kernels::DType kernel_dtype(at::ScalarType type);

kernels::Device kernel_device(const at::Tensor& x);

/// The device of `x` with its current stream, and a workspace of at least `workspace_bytes` that
/// lives as long as this object.
class KernelContext {
 public:
  explicit KernelContext(const at::Tensor& x, size_t workspace_bytes = 0);
  operator const kernels::Context&() const { return context_; }

 private:
  at::Tensor workspace_;
  kernels::Context context_;
};

/// Data of a tensor that may be undefined.
inline void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.data_ptr() : nullptr;
}

} // namespace pentatron::nn
