#include "pentatron/nn/ops/scaled_products.h"

#include <ATen/ATen.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/fp8_codes.h"
#include "pentatron/nn/ops/kernel_args.h"

namespace pentatron::nn {

namespace {

void raise_amax(const at::Tensor& x, float* amax) {
  kernels::raise_amax(
      {.dtype = kernel_dtype(x.scalar_type()), .n = x.numel(), .x = x.data_ptr(), .amax = amax},
      KernelContext(x));
}

int64_t filled(int64_t size) {
  return (size + kScaledProductSize - 1) / kScaledProductSize * kScaledProductSize;
}

} // namespace

void see_on_device(const at::Tensor& x, Operand operand, const LowPrecision& how) {
  if (how.delayed == nullptr || !how.delayed->wants(operand)) return;
  raise_amax(x.contiguous(), how.delayed->see_on_device(operand));
}

QuantizedValues scaled_codes(const at::Tensor& x_in, Operand operand, const LowPrecision& how,
                             bool along_rows) {
  PT_DCHECK(!how.hadamard && !how.stochastic);
  const at::Tensor x = x_in.contiguous();
  const kernels::QuantRecipe recipe = how.recipe(operand);
  const at::TensorOptions scalar = x.options().dtype(at::kFloat);
  at::Tensor amax;
  if (how.delayed != nullptr) {
    see_on_device(x, operand, how);
    amax = at::full({}, how.delayed->amax(operand), scalar);
  } else {
    amax = at::zeros({}, scalar);
    raise_amax(x, amax.data_ptr<float>());
  }
  const int64_t rows = x.size(0), cols = x.size(1), stride = along_rows ? filled(rows) : cols;
  const bool e5m2 = recipe == kernels::QuantRecipe::kTensorwiseE5m2;
  QuantizedValues result = {
      .values = at::empty({along_rows ? cols : rows, stride},
                          x.options().dtype(e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn)),
      .device_scale = at::empty({}, scalar)};
  kernels::fp8_codes({.recipe = recipe,
                      .dtype = kernel_dtype(x.scalar_type()),
                      .rows = rows,
                      .cols = cols,
                      .transposed = along_rows,
                      .stride = stride,
                      .x = x.data_ptr(),
                      .amax = amax.const_data_ptr<float>(),
                      .codes = static_cast<uint8_t*>(result.values.data_ptr()),
                      .scale = result.device_scale.data_ptr<float>()},
                     KernelContext(x));
  return result;
}

void scaled_product_into(const at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b,
                         const at::Tensor& bias, bool exact) {
  if (out.numel() == 0) return;
  // cuBLASLt adds biases of 16 bits.
  const bool adds =
      bias.defined() && bias.scalar_type() == out.scalar_type() && bias.scalar_type() != at::kFloat;
  at::Tensor target = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
  if (a.values.size(1) == 0) {
    target.zero_();
    if (adds) target.add_(bias);
  } else {
    at::_scaled_mm_out(target, a.values, b.values.t(), a.device_scale, b.device_scale,
                       adds ? std::optional(bias) : std::nullopt, {}, out.scalar_type(), !exact);
  }
  if (bias.defined() && !adds) target.add_(bias);
  if (!target.is_same(out)) at::Tensor(out).copy_(target);
}

void add_scaled_product(const at::Tensor& grad, const QuantizedValues& a, const QuantizedValues& b,
                        bool empty) {
  if (empty) return scaled_product_into(grad, a, b, {}, true);
  const at::Tensor product = at::empty(grad.sizes(), grad.options());
  scaled_product_into(product, a, b, {}, true);
  at::Tensor(grad).add_(product);
}

} // namespace pentatron::nn
