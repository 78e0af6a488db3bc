/// How the products of a linear layer are computed in low precision. The implementation is in
/// nn/ops/low_precision.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "pentatron/kernels/quantize/recipe.h"
#include "pentatron/nn/amax_history.h"
#include "pentatron/nn/gradient_rows.h"

namespace pentatron::nn {

/// Gradients that are rounded up or down by chance, by the number of (token, feature).
struct StochasticGradients {
  /// Of the products for the gradient of the input, and of the weight.
  std::array<uint32_t, 2> input_key{}, weight_key{};
  std::vector<int64_t> features;      ///< true numbers of the gradient's columns on this rank
  at::Tensor device_features = {};    ///< the same on a GPU, for scaled products
  const GradientRows* rows = nullptr; ///< the tokens; null: rows are numbered
};

/// How each operand of the products with a weight is quantised.
struct LowPrecision {
  kernels::QuantRecipe x = kernels::QuantRecipe::kTensorwiseE4m3;
  kernels::QuantRecipe weight = kernels::QuantRecipe::kTensorwiseE4m3;
  kernels::QuantRecipe dy = kernels::QuantRecipe::kTensorwiseE4m3;
  /// Where scales of whole tensors come from; null: from the tensors at hand. Outlives the weight.
  AmaxHistory* delayed = nullptr;

  std::optional<StochasticGradients> stochastic = {};
  /// Operands of the weight's gradient are transformed along the tokens before they are quantised
  /// (kernels/quantize/hadamard.h).
  bool hadamard = false;

  /// Operands are codes with scales on the device, and LibTorch's scaled products multiply them
  /// (nn/ops/scaled_products.h): on GPUs.
  bool scaled_products = false;

  kernels::QuantRecipe recipe(Operand operand) const {
    return operand == Operand::kInput ? x : operand == Operand::kWeight ? weight : dy;
  }
};

} // namespace pentatron::nn
