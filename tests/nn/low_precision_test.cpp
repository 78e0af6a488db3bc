#include "pentatron/nn/ops/low_precision.h"

#include <ATen/ATen.h>

#include <algorithm>

#include <gtest/gtest.h>

#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/nn/context.h"
#include "pentatron/nn/ops/ops.h"
#include "pentatron/nn/ops/rows.h"
#include "pentatron/nn/ops/scaled_products.h"
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

/// With delayed scales the products are those of operands with the scales of the step before.
TEST(LowPrecision, ADelayedScaleIsThatOfTheStepBefore) {
  const int64_t tokens = 20, in = 32, out = 24;
  at::manual_seed(5);
  ParamList params;
  Param& weight = params.add({.name = "w", .shape = {out, in}}, Init::normal(0.5), at::kFloat, {});
  ResidentStore store(params, at::kCPU);
  weight.initialize(7);
  AmaxHistory history({.length = 4, .margin = 1});
  weight.low_precision = kWays[0];
  weight.low_precision->delayed = &history;
  WgradQueue queue;
  const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
  float input_amax = 0, gradient_amax = 0;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = (at::randn({tokens, in}) * (step + 1)).requires_grad_();
    const at::Tensor dy = at::randn({tokens, out}) * 0.1;
    const auto quantised = [&](const at::Tensor& t, QuantRecipe recipe, float amax) {
      const QuantizedValues q = quantized_values(t, recipe, false, {.amax = &amax});
      return q.values.to(at::kDouble) * q.scale;
    };
    const at::Tensor w = weight.value();
    const float weight_amax = step == 0 ? 0 : 2 * w.abs().max().item<float>();
    history.begin_step();
    const at::Tensor y = linear(x, weight, nullptr, ctx);
    y.backward(dy);
    history.end_step(history.seen());
    const at::Tensor qx = quantised(x.detach(), kWays[0].x, input_amax),
                     qw = quantised(w, kWays[0].weight, weight_amax),
                     qdy = quantised(dy, kWays[0].dy, gradient_amax);
    const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
      EXPECT_LE((a.to(at::kDouble) - b).norm().item<double>(), 1e-5 * b.norm().item<double>())
          << step;
    };
    near(y.detach(), qx.matmul(qw.t()));
    near(x.grad(), qdy.matmul(qw));
    near(weight.main_grad(), qdy.t().matmul(qx));
    weight.clear_main_grad();
    input_amax = std::max(input_amax, 2 * x.detach().abs().max().item<float>());
    gradient_amax = std::max(gradient_amax, 2 * dy.abs().max().item<float>());
    EXPECT_EQ(history.amax(Operand::kInput), input_amax);
  }
}

/// NVFP4: gradients are right in the mean of many draws, and a weight's gradient is one of
/// transformed operands.
TEST(LowPrecision, StochasticGradientsHaveNoBias) {
  const int64_t tokens = 40, in = 32, out = 48;
  at::manual_seed(6);
  ParamList params;
  Param& weight = params.add({.name = "w", .shape = {out, in}}, Init::normal(0.5), at::kFloat, {});
  ResidentStore store(params, at::kCPU);
  weight.initialize(7);
  weight.low_precision = LowPrecision{.x = QuantRecipe::kNvfp4,
                                      .weight = QuantRecipe::kNvfp4Square,
                                      .dy = QuantRecipe::kNvfp4,
                                      .stochastic = StochasticGradients{},
                                      .hadamard = true};
  WgradQueue queue;
  const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
  const at::Tensor x = at::randn({tokens, in}), dy = at::randn({tokens, out});
  at::Tensor dx = at::zeros({tokens, in}, at::kDouble), dw = at::zeros({out, in}, at::kDouble);
  constexpr int kDraws = 400;
  double one_error = 0;
  const at::Tensor qw = quantized_values(weight.value(), QuantRecipe::kNvfp4Square, true).values;
  const double sw = quantized_values(weight.value(), QuantRecipe::kNvfp4Square, true).scale;
  const at::Tensor expected_dx = dy.to(at::kDouble).matmul(qw.to(at::kDouble) * sw);
  for (int draw = 0; draw < kDraws; ++draw) {
    weight.low_precision->stochastic->input_key = {static_cast<uint32_t>(draw), 1};
    weight.low_precision->stochastic->weight_key = {static_cast<uint32_t>(draw), 2};
    const at::Tensor in_x = x.clone().requires_grad_();
    linear(in_x, weight, nullptr, ctx).backward(dy);
    if (draw == 0) one_error = (in_x.grad().to(at::kDouble) - expected_dx).norm().item<double>();
    dx += in_x.grad().to(at::kDouble) / kDraws;
    dw += weight.main_grad().to(at::kDouble) / kDraws;
    weight.clear_main_grad();
  }
  // The error of the mean falls with the root of the draws; one tenth is four times what is left.
  // Clamping to the largest code, where a block's scale was rounded down, remains.
  EXPECT_LE((dx - expected_dx).norm().item<double>(), 0.2 * one_error);
  const at::Tensor exact = dy.to(at::kDouble).t().matmul(x.to(at::kDouble));
  EXPECT_LE((dw - exact).norm().item<double>(), 0.15 * exact.norm().item<double>());
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

/// NVFP4 as it is trained, whose random numbers have addresses.
const LowPrecision kNvfp4Way = {.x = QuantRecipe::kNvfp4,
                                .weight = QuantRecipe::kNvfp4Square,
                                .dy = QuantRecipe::kNvfp4,
                                .stochastic =
                                    StochasticGradients{.input_key = {3, 4}, .weight_key = {5, 6}},
                                .hadamard = true};

struct ScaledWay {
  const LowPrecision& how;
  bool delayed = false;
};
const ScaledWay kScaledWays[] = {{kWays[0]}, {kWays[0], true}, {kWays[1]}, {kWays[2]}, {kNvfp4Way}};

/// The addresses of some tokens, in whose place a microbatch would have its own.
Microbatch addressed_microbatch(int64_t tokens) {
  Microbatch batch;
  batch.layouts.push_back(SequenceLayout::dense(1, std::max<int64_t>(tokens, 1), {77}, at::kCPU));
  return batch;
}

/// What a GPU computes, by LibTorch's scaled products for CPUs, with scales of blocks by those of
/// the values: the products of the same codes.
TEST(ScaledProducts, AreThoseOfTheQuantisedValues) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
    for (const int64_t tokens : {70, 135, 16, 1, 0})
      for (const auto& [how, delayed] : kScaledWays) {
        const int64_t in = 208, out = 144;
        const Microbatch batch = addressed_microbatch(tokens);
        GradientRows rows;
        rows.set(batch);
        std::vector<at::Tensor> results[2];
        std::array<float, kNumOperands> seen[2]{};
        for (const bool scaled : {false, true}) {
          at::manual_seed(3);
          ParamList params;
          Param& weight =
              params.add({.name = "w", .shape = {out, in}}, Init::normal(0.5), type, {});
          Param& bias = params.add({.name = "b", .shape = {out}}, Init::normal(0.5), type, {});
          ResidentStore store(params, at::kCPU);
          for (Param& param : params) param.initialize(7);
          weight.low_precision = how;
          weight.low_precision->scaled_products = scaled;
          if (how.stochastic) {
            weight.low_precision->stochastic->rows = &rows;
            // Two parts that do not begin at a multiple of eight.
            for (int64_t c = 0; c < out; ++c)
              weight.low_precision->stochastic->features.push_back(c < 72 ? c + 3 : c + 501);
          }
          AmaxHistory history({.length = 4});
          history.set_entries({{{.used = 2.5f}, {.used = 0.0f}, {.used = 1e-3f}}});
          if (delayed) weight.low_precision->delayed = &history;
          if (scaled) history.collect_on_device(seen[1].data());
          WgradQueue queue;
          const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
          const at::Tensor x = at::randn({tokens, in}).to(type).requires_grad_();
          history.begin_step();
          for (int pass = 0; pass < 2; ++pass) {
            const at::Tensor y = linear(x, weight, &bias, ctx);
            y.backward(at::randn({tokens, out}).mul_(1e-3).to(type));
            results[scaled].push_back(y.detach());
          }
          results[scaled].insert(results[scaled].end(),
                                 {x.grad(), weight.main_grad(), bias.main_grad()});
          if (!scaled) seen[0] = history.seen();
        }
        if (delayed && tokens > 0) {
          EXPECT_EQ(seen[0], seen[1]);
        }
        for (size_t i = 0; i < results[0].size(); ++i) {
          const at::Tensor expected = results[0][i].to(at::kDouble),
                           given = results[1][i].to(at::kDouble);
          EXPECT_LE((given - expected).norm().item<double>(),
                    (type == at::kFloat ? 1e-6 : 4e-3) * expected.norm().item<double>())
              << i << ' ' << type << ' ' << tokens << " tokens, " << kernels::traits(how.x).name
              << (delayed ? ", delayed" : "");
        }
      }
}

/// The experts of a layer, one of which has no tokens.
TEST(ScaledProducts, OfExperts) {
  for (const LowPrecision& how : {kWays[0], kWays[1], kWays[2], kNvfp4Way}) {
    std::vector<at::Tensor> results[2];
    for (const bool scaled : {false, true}) {
      at::manual_seed(3);
      ParamList params;
      Param& weight =
          params.add({.name = "w", .shape = {3, 32, 48}}, Init::normal(0.5), at::kFloat, {});
      ResidentStore store(params, at::kCPU);
      weight.initialize(7);
      weight.low_precision = how;
      weight.low_precision->scaled_products = scaled;
      WgradQueue queue;
      const ForwardContext ctx{.wgrad = &queue, .differentiated = true};
      const at::Tensor x = at::randn({40, 48}).requires_grad_();
      const std::vector<RowRange> ranges = {{2, 0, 7}, {0, 7, 30}, {2, 37, 3}};
      const at::Tensor y = grouped_linear(x, ranges, weight, nullptr, {}, ctx);
      y.backward(at::randn({40, 32}) * 1e-3);
      queue.drain();
      results[scaled] = {y.detach(), x.grad(), weight.main_grad()};
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_LE((results[1][i] - results[0][i]).norm().item<double>(),
                1e-6 * results[0][i].norm().item<double>())
          << i << ' ' << kernels::traits(how.x).name;
  }
}

/// Codes that GPUs multiply are those of the recipe, of operands in both orders: their values are
/// the values of the CPU, to the bit but for the scale of the tensor, which rounds.
TEST(ScaledProducts, HaveTheCodesOfTheCpu) {
  const int64_t rows = 64, cols = 96;
  at::manual_seed(4);
  const at::Tensor x = at::randn({rows, cols}) * at::randn({rows, 1}).exp();
  for (const bool along_rows : {false, true})
    for (const QuantRecipe recipe :
         {QuantRecipe::kMxfp8, QuantRecipe::kNvfp4, QuantRecipe::kNvfp4Square}) {
      const LowPrecision how = {.x = recipe, .weight = recipe, .dy = recipe};
      const QuantizedValues codes = scaled_codes(x, Operand::kInput, how, along_rows, rows),
                            values = quantized_values(x, recipe, along_rows);
      EXPECT_EQ(codes.device_scale.dim(), 1);
      // The product with 1 has one number in each sum.
      const at::Tensor one = at::eye(along_rows ? rows : cols);
      const QuantizedValues unit = scaled_codes(one, Operand::kInput, how, false, one.size(0));
      const at::Tensor product = at::empty({along_rows ? cols : rows, one.size(0)});
      scaled_product_into(product, codes, unit, {}, true);
      const at::Tensor expected =
          (along_rows ? values.values.t() : values.values).to(at::kDouble) * values.scale;
      const double error = (product.to(at::kDouble) - expected).abs().max().item<double>();
      const bool exact = recipe == QuantRecipe::kMxfp8;
      EXPECT_LE(error, exact ? 0 : 1e-6 * expected.abs().max().item<double>())
          << kernels::traits(recipe).name << along_rows;
      EXPECT_GT(expected.abs().max().item<double>(), 1);
    }
}

TEST(GradientRows, AreTheSameOnADevice) {
  const Microbatch batch = addressed_microbatch(40);
  GradientRows rows;
  const auto expect_same = [&](int64_t count, int64_t filled) {
    std::vector<int64_t> expected = rows.ids(count);
    while (std::ssize(expected) < filled) expected.push_back(expected.back() + 1);
    EXPECT_TRUE(at::equal(rows.device_ids(count, filled, at::kCPU), at::tensor(expected))) << count;
  };
  expect_same(24, 32); // numbered
  rows.set(batch);
  EXPECT_GT(rows.ids(40)[0], int64_t{77} << 20);
  for (const auto& [count, filled] : {std::pair(40, 40), std::pair(40, 48), std::pair(7, 16)})
    expect_same(count, filled);
}

} // namespace
} // namespace pentatron::nn
