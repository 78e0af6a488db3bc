#include "pentatron/nn/ops/low_precision.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/param_store.h"

namespace pentatron::nn {
namespace {

using kernels::QuantRecipe;

/// A tensor through codes and scales and back, in fp64; along its rows by transposing it.
at::Tensor through(const at::Tensor& x, QuantRecipe recipe, bool along_rows) {
  const at::Tensor given = (along_rows ? x.t() : x).to(at::kFloat).contiguous();
  const int64_t rows = given.size(0), cols = given.size(1);
  std::vector<uint8_t> codes(static_cast<size_t>(kernels::code_bytes(recipe, rows, cols)));
  std::vector<float> scales(
      static_cast<size_t>(kernels::scale_rows(recipe, rows) * kernels::scale_cols(recipe, cols)));
  float tensor_scale = 1;
  kernels::quantize({.recipe = recipe,
                     .rows = rows,
                     .cols = cols,
                     .x = given.data_ptr(),
                     .codes = codes.data(),
                     .scales = scales.data(),
                     .tensor_scale = &tensor_scale});
  const at::Tensor back = at::empty_like(given);
  kernels::dequantize({.recipe = recipe,
                       .rows = rows,
                       .cols = cols,
                       .codes = codes.data(),
                       .scales = scales.data(),
                       .tensor_scale = tensor_scale,
                       .values = back.data_ptr<float>()});
  return (along_rows ? back.t() : back).to(at::kDouble);
}

const LowPrecision kWays[] = {
    {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kTensorwiseE4m3, QuantRecipe::kTensorwiseE5m2},
    {QuantRecipe::kBlockwise1x128, QuantRecipe::kBlockwise128x128, QuantRecipe::kBlockwise1x128},
    {QuantRecipe::kMxfp8, QuantRecipe::kMxfp8, QuantRecipe::kMxfp8}};

/// The three products of a linear layer are those of the quantised operands, each along the
/// dimension that its product sums over; the bias and its gradient are not quantised.
TEST(LowPrecision, EachProductHasItsOwnQuantisedOperands) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const LowPrecision& way : kWays) {
      at::manual_seed(3);
      const int64_t tokens = 70, in = 200, out = 150;
      ParamList params;
      Param& weight = params.add({.name = "w", .shape = {out, in}}, Init::normal(0.5), type, {});
      Param& bias = params.add({.name = "b", .shape = {out}}, Init::normal(0.5), type, {});
      ResidentStore store(params, at::kCPU);
      for (Param& param : params) param.initialize(7);
      weight.low_precision = way;
      const at::Tensor x =
          (at::randn({tokens, in}, at::kDouble) * at::randn({tokens, 1}, at::kDouble).exp())
              .to(type)
              .requires_grad_();
      WgradQueue queue;
      const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
      const at::Tensor y = linear(x, weight, &bias, ctx);
      const at::Tensor dy = at::randn({tokens, out}, at::kDouble).mul_(1e-3).to(type);
      y.backward(dy);

      const at::Tensor w = weight.value();
      // dequantize() rounds code times scale, unless the scale is a power of two.
      const double of_doubles = kernels::traits(way.x).tensorwise() ? 1e-7 : 1e-12;
      const double tolerance = type == at::kDouble ? of_doubles : type == at::kFloat ? 1e-5 : 1e-2;
      const auto near = [&](const at::Tensor& a, const at::Tensor& b, double bound,
                            const char* what) {
        EXPECT_LE((a.to(at::kDouble) - b).norm().item<double>() / b.norm().item<double>(), bound)
            << what << ' ' << type;
      };
      near(y.detach(),

           through(x.detach(), way.x, false).matmul(through(w, way.weight, false).t()) +
               bias.value().to(at::kDouble),
           tolerance, "forward");
      near(x.grad(), through(dy, way.dy, false).matmul(through(w, way.weight, true)), tolerance,
           "input gradient");
      const at::Tensor dw = through(dy, way.dy, true).t().matmul(through(x.detach(), way.x, true));
      near(weight.main_grad(), dw, std::min(tolerance, 1e-5), "weight gradient");
      near(bias.main_grad(), dy.to(at::kDouble).sum(0), std::min(tolerance, 1e-5), "bias gradient");
      // And it does matter.
      EXPECT_GT(
          (dw - dy.to(at::kDouble).t().matmul(x.detach().to(at::kDouble))).norm().item<double>(),
          1e-3 * dw.norm().item<double>());

      // A second gradient is added to the first.
      linear(x, weight, &bias, ctx).backward(dy);
      near(weight.main_grad(), 2 * dw, std::min(tolerance, 1e-5), "sum of weight gradients");
    }
}

TEST(LowPrecision, OfNoTokensIsNothing) {
  ParamList params;
  Param& weight = params.add({.name = "w", .shape = {8, 4}}, Init::normal(1), at::kFloat, {});
  ResidentStore store(params, at::kCPU);
  weight.initialize(1);
  weight.low_precision = kWays[0];
  WgradQueue queue;
  const at::Tensor x = at::empty({0, 4}).requires_grad_();
  const at::Tensor y = linear(x, weight, nullptr, {.wgrad = &queue, .differentiated = true});
  y.backward(at::empty({0, 8}));
  EXPECT_EQ(x.grad().size(0), 0);
  EXPECT_EQ(weight.main_grad().abs().sum().item<double>(), 0);
}

} // namespace
} // namespace pentatron::nn
