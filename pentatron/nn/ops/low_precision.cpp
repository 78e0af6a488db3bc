#include "pentatron/nn/ops/low_precision.h"

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/kernels/quantize/hadamard.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/nn/ops/matmul.h"
#include "pentatron/nn/ops/scaled_products.h"
#include "pentatron/nn/param.h"

namespace pentatron::nn {

namespace {

/// Of the values of operands.
at::ScalarType values_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kBFloat16;
}

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

/// x [rows, cols], transformed along its rows, whose number becomes a multiple of 16.
at::Tensor hadamard_of(const at::Tensor& x_in) {
  const at::Tensor x = x_in.contiguous();
  const at::Tensor y = at::empty({kernels::hadamard_rows(x.size(0)), x.size(1)},
                                 x.options().dtype(acc_dtype(x.scalar_type())));
  kernels::hadamard({.dtype = kernel_dtype(x.scalar_type()),
                     .rows = x.size(0),
                     .cols = x.size(1),
                     .x = x.data_ptr(),
                     .out = y.data_ptr()},
                    KernelContext(x));
  return y;
}

/// The addresses of `rows` rows, and of those that fill them up to `filled`.
std::vector<int64_t> row_addresses(const StochasticGradients& s, int64_t rows, int64_t filled) {
  std::vector<int64_t> ids = s.rows != nullptr ? s.rows->ids(rows) : GradientRows().ids(rows);
  while (std::ssize(ids) < filled) ids.push_back(ids.empty() ? 0 : ids.back() + 1);
  return ids;
}

/// An operand of the products of a weight, as its recipe says.
QuantizedValues quantized_operand(const at::Tensor& given, Operand operand, const LowPrecision& how,
                                  bool along_rows) {
  const bool transformed = how.hadamard && along_rows && operand != Operand::kWeight;
  const at::Tensor x = transformed ? hadamard_of(given) : given;
  if (how.scaled_products) return scaled_codes(x, operand, how, along_rows, given.size(0));
  if (how.stochastic && operand == Operand::kGradient) {
    const StochasticGradients& s = *how.stochastic;
    const std::vector<int64_t> rows = row_addresses(s, given.size(0), x.size(0));
    const kernels::Stochastic rounding{
        .key = along_rows ? s.weight_key : s.input_key,
        .row_ids = rows.data(),
        .col_ids = std::ssize(s.features) == x.size(1) ? s.features.data() : nullptr};
    return quantized_values(x, how.recipe(operand), along_rows, {.stochastic = &rounding});
  }
  if (how.delayed == nullptr) return quantized_values(x, how.recipe(operand), along_rows);
  see_operand(x, operand, how);
  const float amax = how.delayed->amax(operand);
  return quantized_values(x, how.recipe(operand), along_rows, {.amax = &amax});
}

} // namespace

void see_operand(const at::Tensor& x, Operand operand, const LowPrecision& how) {
  if (how.scaled_products) return see_on_device(x, operand, how);
  if (how.delayed == nullptr || !how.delayed->wants(operand)) return;
  const at::Tensor packed = x.contiguous();
  how.delayed->see(operand, kernels::largest_size(kernel_dtype(packed.scalar_type()),
                                                  packed.numel(), packed.data_ptr()));
}

QuantizedValues quantized_values(const at::Tensor& x_in, kernels::QuantRecipe recipe,
                                 bool along_rows, const QuantizeWays& ways) {
  const at::Tensor x = x_in.contiguous();
  const at::ScalarType type = values_type(x.scalar_type());
  QuantizedValues result = {at::empty(x.sizes(), x.options().dtype(type)), 1};
  float scale = 1;
  kernels::quantize({.recipe = recipe,
                     .dtype = kernel_dtype(x.scalar_type()),
                     .rows = x.size(0),
                     .cols = x.size(1),
                     .along_rows = along_rows,
                     .x = x.data_ptr(),
                     .amax = ways.amax,
                     .stochastic = ways.stochastic,
                     .tensor_scale = &scale,
                     .values = result.values.data_ptr(),
                     .values_dtype = kernel_dtype(type)},
                    KernelContext(x));
  result.scale = scale;
  return result;
}

QuantizedValues quantized_weight(const Param& weight, bool along_rows) {
  if (weight.fp8() != nullptr) return weight.fp8()->matrix(0, values_type(weight.dtype()));
  return quantized_operand(weight.dense_value(), Operand::kWeight, *weight.low_precision,
                           along_rows);
}

QuantizedValues quantized_weight(const Param& weight, int64_t matrix, bool along_rows) {
  if (weight.fp8() != nullptr) return weight.fp8()->matrix(matrix, values_type(weight.dtype()));
  return quantized_operand(weight.dense_matrix(matrix), Operand::kWeight, *weight.low_precision,
                           along_rows);
}

void low_precision_nt_into(const at::Tensor& out, const at::Tensor& x,
                           const QuantizedValues& weight, const LowPrecision& how,
                           const at::Tensor& bias) {
  const QuantizedValues input = quantized_operand(x, Operand::kInput, how, false);
  if (how.scaled_products) return scaled_product_into(out, input, weight, bias, false);
  multiply_into(out, input, weight, bias,
                [](const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
                  matmul_nt_acc(sum, a, b);
                });
}

void low_precision_nn_into(const at::Tensor& out, const at::Tensor& dy,
                           const QuantizedValues& weight, const LowPrecision& how) {
  const QuantizedValues gradient = quantized_operand(dy, Operand::kGradient, how, false);
  if (how.scaled_products) return scaled_product_into(out, gradient, weight, {}, true);
  multiply_into(out, gradient, weight, {},
                [](const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
                  matmul_nn_acc(sum, a, b);
                });
}

void add_low_precision_tn(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                          const LowPrecision& how, bool empty) {
  const QuantizedValues a = quantized_operand(dy, Operand::kGradient, how, true),
                        b = quantized_operand(x, Operand::kInput, how, true);
  if (how.scaled_products) return add_scaled_product(grad, a, b, empty);
  const double scale = a.scale * b.scale;
  if (scale == 1) return add_matmul_tn(grad, a.values, b.values, empty);
  const at::Tensor product = empty ? grad : at::empty_like(grad);
  add_matmul_tn(product, a.values, b.values, true);
  if (empty)
    at::Tensor(product).mul_(scale);
  else
    at::Tensor(grad).add_(product, scale);
}

void low_precision_nt_into(const at::Tensor& out, const at::Tensor& x, const Param& weight,
                           const at::Tensor& bias) {
  low_precision_nt_into(out, x, quantized_weight(weight, false), *weight.low_precision, bias);
}

void low_precision_nn_into(const at::Tensor& out, const at::Tensor& dy, const Param& weight) {
  low_precision_nn_into(out, dy, quantized_weight(weight, true), *weight.low_precision);
}

void add_low_precision_tn(Param& weight, const at::Tensor& dy, const at::Tensor& x) {
  const LowPrecision& how = *weight.low_precision;
  const Param::Sum sum = weight.sum_to_write();
  const bool part = weight.shape() != weight.spec().shape;
  // Not from what has been quantised along the features: blocks along the tokens would round twice.
  const at::Tensor from = part && planted("operand_quantised_twice")
                              ? quantized_values(x, how.x, false).values.to(x.scalar_type())
                              : x;
  add_low_precision_tn(sum.tensor, dy, from, how, sum.empty);
}

} // namespace pentatron::nn
