#include "pentatron/nn/ops/low_precision.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/param.h"

namespace pentatron::nn {

namespace {

/// A product into the accumulate type, times the scales of both operands; then into `out`, with the
/// bias.
template <class Multiply>
void multiply_into(const at::Tensor& out, const QuantizedValues& a, const QuantizedValues& b,
                   const at::Tensor& bias, Multiply&& multiply) {
  const at::ScalarType acc = acc_dtype(out.scalar_type());
  const bool direct = out.scalar_type() == acc;
  at::Tensor sum = direct ? out : at::empty(out.sizes(), out.options().dtype(acc));
  multiply(sum, a.values, b.values);
  if (a.scale * b.scale != 1) sum.mul_(a.scale * b.scale);
  if (bias.defined()) sum.add_(bias);
  if (!direct) at::Tensor(out).copy_(sum);
}

} // namespace

QuantizedValues quantized_values(const at::Tensor& x_in, kernels::QuantRecipe recipe,
                                 bool along_rows) {
  const at::Tensor x = x_in.contiguous();
  const at::ScalarType type = x.scalar_type() == at::kDouble ? at::kDouble : at::kBFloat16;
  QuantizedValues result = {at::empty(x.sizes(), x.options().dtype(type)), 1};
  float scale = 1;
  kernels::quantize({.recipe = recipe,
                     .dtype = kernel_dtype(x.scalar_type()),
                     .rows = x.size(0),
                     .cols = x.size(1),
                     .along_rows = along_rows,
                     .x = x.data_ptr(),
                     .tensor_scale = &scale,
                     .values = result.values.data_ptr(),
                     .values_dtype = kernel_dtype(type)},
                    KernelContext(x));
  result.scale = scale;
  return result;
}

void low_precision_nt_into(const at::Tensor& out, const at::Tensor& x, const Param& weight,
                           const at::Tensor& bias) {
  const LowPrecision& recipe = *weight.low_precision;
  multiply_into(out, quantized_values(x, recipe.x, false),
                quantized_values(weight.dense_value(), recipe.weight, false), bias,
                [](const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
                  matmul_nt_acc(sum, a, b);
                });
}

void low_precision_nn_into(const at::Tensor& out, const at::Tensor& dy, const Param& weight) {
  const LowPrecision& recipe = *weight.low_precision;
  multiply_into(out, quantized_values(dy, recipe.dy, false),
                quantized_values(weight.dense_value(), recipe.weight, true), {},
                [](const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
                  matmul_nn_acc(sum, a, b);
                });
}

void add_low_precision_tn(Param& weight, const at::Tensor& dy, const at::Tensor& x) {
  const LowPrecision& recipe = *weight.low_precision;
  const QuantizedValues a = quantized_values(dy, recipe.dy, true),
                        b = quantized_values(x, recipe.x, true);
  const double scale = a.scale * b.scale;
  const Param::Sum sum = weight.sum_to_write();
  if (scale == 1) return add_matmul_tn(sum.tensor, a.values, b.values, sum.empty);
  const at::Tensor gradient = sum.empty ? sum.tensor : at::empty_like(sum.tensor);
  add_matmul_tn(gradient, a.values, b.values, true);
  if (sum.empty)
    at::Tensor(gradient).mul_(scale);
  else
    at::Tensor(sum.tensor).add_(gradient, scale);
}

} // namespace pentatron::nn
