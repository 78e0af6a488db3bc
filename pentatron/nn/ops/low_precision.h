/// The products of a linear layer in low precision: each operand is quantised along the dimension
/// that the product sums over, from the tensor itself, and the values are multiplied with sums in
/// fp32 (fp64 in fp64 models).
///
/// forward          y = x w^T     x and w along `in`
/// input gradient   dx = dy w     dy and w along `out`
/// weight gradient  dw += dy^T x  dy and x along the tokens
/// Biases and their gradients are not quantised. Shapes as in matmul.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/quantize/recipe.h"
#include "pentatron/kernels/quantize/stochastic.h"
#include "pentatron/nn/amax_history.h"
#include "pentatron/nn/fp8_weight.h"

namespace pentatron::nn {

class Param;
struct LowPrecision;

/// As in kernels/quantize/quantize.h.
struct QuantizeWays {
  const float* amax = nullptr;
  const kernels::Stochastic* stochastic = nullptr;
};
/// Of x [rows, cols] along its columns, or along its rows.
QuantizedValues quantized_values(const at::Tensor& x, kernels::QuantRecipe recipe, bool along_rows,
                                 const QuantizeWays& ways = {});

void low_precision_nt_into(const at::Tensor& out, const at::Tensor& x, const Param& weight,
                           const at::Tensor& bias);
void low_precision_nn_into(const at::Tensor& out, const at::Tensor& dy, const Param& weight);
void add_low_precision_tn(Param& weight, const at::Tensor& dy, const at::Tensor& x);

/// Takes the largest size of an operand into the step's, if delayed scales still want it.
void see_operand(const at::Tensor& x, Operand operand, const LowPrecision& how);

/// A weight, or one of its matrices [e, out, in], as the products take it: from its values, or from
/// the codes that it is stored in.
QuantizedValues quantized_weight(const Param& weight, bool along_rows);
QuantizedValues quantized_weight(const Param& weight, int64_t matrix, bool along_rows);

/// The same with a quantised weight and how the other operand is quantised; `empty`: as in
/// add_matmul_tn.
void low_precision_nt_into(const at::Tensor& out, const at::Tensor& x,
                           const QuantizedValues& weight, const LowPrecision& how,
                           const at::Tensor& bias);
void low_precision_nn_into(const at::Tensor& out, const at::Tensor& dy,
                           const QuantizedValues& weight, const LowPrecision& how);
void add_low_precision_tn(const at::Tensor& grad, const at::Tensor& dy, const at::Tensor& x,
                          const LowPrecision& how, bool empty);

} // namespace pentatron::nn
