/// How the products of a linear layer are computed in low precision; nn/ops/low_precision.h does
/// it.
#pragma once

#include "pentatron/kernels/quantize/recipe.h"

namespace pentatron::nn {

/// How each operand of the products with a weight is quantised.
struct LowPrecision {
  kernels::QuantRecipe x = kernels::QuantRecipe::kTensorwiseE4m3;
  kernels::QuantRecipe weight = kernels::QuantRecipe::kTensorwiseE4m3;
  kernels::QuantRecipe dy = kernels::QuantRecipe::kTensorwiseE4m3;
};

} // namespace pentatron::nn
