#include "pentatron/nn/ops/kernel_args.h"

#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "pentatron/base/error.h"

namespace pentatron::nn {

kernels::DType kernel_dtype(at::ScalarType type) {
  switch (type) {
  case at::kDouble:
    return kernels::DType::kFloat64;
  case at::kFloat:
    return kernels::DType::kFloat32;
  case at::kBFloat16:
    return kernels::DType::kBFloat16;
  case at::kHalf:
    return kernels::DType::kFloat16;
  default:
    raise<ShapeError>("no kernel supports tensors of type {}", c10::toString(type));
  }
}

kernels::Device kernel_device(const at::Tensor& x) {
  return x.is_cuda() ? kernels::Device::kCuda : kernels::Device::kCpu;
}

KernelContext::KernelContext(const at::Tensor& x, size_t workspace_bytes) {
  if (x.is_cuda()) {
    context_.device = kernels::Device::kCuda;
    const c10::impl::VirtualGuardImpl guard(x.device().type());
    context_.stream = guard.getStream(x.device()).native_handle();
  }
  if (workspace_bytes > 0) {
    workspace_ = at::empty({static_cast<int64_t>(workspace_bytes)}, x.options().dtype(at::kByte));
    context_.workspace = {static_cast<std::byte*>(workspace_.data_ptr()), workspace_bytes};
  }
}

} // namespace pentatron::nn
