// Codes that are made in parts, by whoever owns them, are those of the whole matrix.
#include "pentatron/nn/fp8_weight.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pentatron/nn/ops/low_precision.h"
#include "tests/nn/op_fixture.h"

namespace pentatron::nn {
namespace {

using kernels::QuantRecipe;

at::Tensor weights(const std::vector<int64_t>& shape, at::ScalarType type) {
  at::manual_seed(4);
  at::Tensor w =
      at::randn(shape, at::kDouble) * at::exp(3 * at::randn({shape.back()}, at::kDouble));
  const at::Tensor flat = w.view({-1});
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const auto& [at, value] :
       {std::pair{0, 0.0}, {1, -0.0}, {2, 1e-40}, {3, std::nan("")}, {4, 2.5e-3}, {5, 1e4}})
    flat[at] = value;
  flat[-1] = kInf;
  return w.to(type);
}

struct Codes {
  at::Tensor codes, amax;
};
/// By owners of `part` elements each.
Codes in_parts(QuantRecipe recipe, const at::Tensor& w, int64_t part) {
  const std::vector<int64_t> shape = w.sizes().vec();
  const at::Tensor flat = w.contiguous().view({-1});
  Codes c{at::zeros(shape, at::kByte), at::zeros({Fp8Weight::num_regions(recipe, shape)})};
  const auto each = [&](auto&& fn) {
    for (int64_t begin = 0; begin < flat.numel(); begin += part)
      fn(begin, flat.slice(0, begin, std::min(begin + part, flat.numel())));
  };
  each([&](int64_t begin, const at::Tensor& own) {
    Fp8Weight::add_amax(recipe, shape, begin, own, c.amax.data_ptr<float>());
  });
  each([&](int64_t begin, const at::Tensor& own) {
    Fp8Weight::encode(recipe, shape, begin, own, c.amax.const_data_ptr<float>(),
                      c.codes.data_ptr<uint8_t>() + begin);
  });
  return c;
}

TEST(Fp8Weight, MatricesAreThoseThatProductsQuantise) {
  for (const QuantRecipe recipe : {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kBlockwise128x128})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble})
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{130, 200}, {7, 40}, {3, 150, 136}, {256, 128}}) {
        const at::Tensor w = weights(shape, type);
        const at::Tensor stack = w.dim() == 3 ? w : w.unsqueeze(0);
        for (const int64_t part : {w.numel(), int64_t{64}, int64_t{1000}}) {
          const Codes c = in_parts(recipe, w, part);
          const Fp8Weight weight(recipe, c.codes, c.amax);
          const at::Tensor dense = weight.dense(at::kDouble).view_as(stack);
          for (int64_t m = 0; m < stack.size(0); ++m)
            for (const bool along_rows : {false, true}) {
              const QuantizedValues expected = quantized_values(stack[m], recipe, along_rows);
              const QuantizedValues found = weight.matrix(m, expected.values.scalar_type());
              ASSERT_EQ(found.scale, expected.scale);
              ASSERT_TRUE(at::equal(found.values.nan_to_num(7e7), expected.values.nan_to_num(7e7)))
                  << kernels::traits(recipe).name << " " << type << " " << shape << " " << part;
              ASSERT_TRUE(
                  at::equal((expected.values.to(at::kDouble) * expected.scale).nan_to_num(7),
                            dense[m].nan_to_num(7)));
            }
        }
      }
}

TEST(Fp8Weight, TakesAGivenLargestSize) {
  const at::Tensor w = at::randn({20, 30}) * 100;
  Codes c{at::zeros({20, 30}, at::kByte), at::full({1}, 10.0f)};
  Fp8Weight::encode(QuantRecipe::kTensorwiseE4m3, {20, 30}, 0, w.view({-1}),
                    c.amax.const_data_ptr<float>(), c.codes.data_ptr<uint8_t>());
  const float amax = 10;
  const QuantizedValues expected =
      quantized_values(w, QuantRecipe::kTensorwiseE4m3, false, {.amax = &amax});
  const QuantizedValues found =
      Fp8Weight(QuantRecipe::kTensorwiseE4m3, c.codes, c.amax).matrix(0, at::kBFloat16);
  EXPECT_EQ(found.scale, expected.scale);
  EXPECT_TRUE(at::equal(found.values, expected.values));
  EXPECT_EQ(found.values.abs().max().item<double>(), 448) << "beyond the scale, codes saturate";
}

} // namespace
} // namespace pentatron::nn
