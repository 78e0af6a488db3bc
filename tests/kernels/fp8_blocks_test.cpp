#include "pentatron/kernels/quantize/fp8_blocks.h"

#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr QuantRecipe kBlocks[] = {QuantRecipe::kBlockwise1x128, QuantRecipe::kBlockwise128x128};

/// Numbers whose size differs from block to block, zeros of both signs, a block of zeros, and where
/// `finite` is false infinities and NaN.
Array blocks_of(DType dtype, int64_t rows, int64_t cols, bool finite, bool aligned) {
  const Stream random(5, "blocks");
  Array x(dtype, rows * cols, 0.0, aligned);
  x.fill([&](int64_t i) {
    const auto place = static_cast<uint64_t>(i);
    const int64_t r = i / cols, c = i % cols, block = r / 128 * 7 + c / 128;
    if (i % 97 == 5 || block % 5 == 3) return i % 2 != 0 ? 0.0 : -0.0;
    if (!finite && i % 301 == 7) return i % 2 != 0 ? kNaN : -kInf;
    return random.normal(place) * std::ldexp(1.0, static_cast<int>(block * 3 + r % 5) - 12);
  });
  return x;
}

struct BlocksCase {
  int64_t rows, cols, stride;
  bool transposed;
};
/// Blocks that do not divide, rows that are filled up, rows that can be read by 16 bytes.
const BlocksCase kBlocksCases[] = {
    {3, 5, 5, false},       {7, 48, 48, false},   {1, 1, 16, false},      {133, 272, 272, false},
    {5, 119, 160, false},   {0, 16, 16, false},   {257, 128, 128, false}, {3, 5, 16, true},
    {130, 72, 144, true},   {200, 64, 208, true}, {1, 1, 1, true},        {128, 130, 128, true},
    {0, 16, 0, true},       {17, 32, 17, true},   {300, 208, 304, true},  {256, 256, 256, true},
    {256, 256, 256, false}, {1, 144, 16, true}};

struct Encoded {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Encoded encode(const BlocksCase& one, QuantRecipe recipe, const Array& x,
               const Entry<Fp8Blocks>& entry) {
  const int64_t rows = one.transposed ? one.cols : one.rows, along = (one.stride + 127) / 128;
  const bool square = recipe == QuantRecipe::kBlockwise128x128;
  const int64_t scale_stride = square ? (along + 3) / 4 * 4 : rows + 3;
  const int64_t scales = (square ? (rows + 127) / 128 : along) * scale_stride;
  GuardedMemory codes(static_cast<size_t>(rows * one.stride));
  Array found(DType::kFloat32, scales, -1.0);
  entry.run({.recipe = recipe,
             .dtype = x.dtype(),
             .rows = one.rows,
             .cols = one.cols,
             .transposed = one.transposed,
             .stride = one.stride,
             .x = x.data(),
             .codes = reinterpret_cast<uint8_t*>(codes.data()),
             .scales = static_cast<float*>(found.data()),
             .scale_stride = scale_stride},
            {});
  const auto* const begin = reinterpret_cast<const uint8_t*>(codes.data());
  Encoded result{{begin, begin + rows * one.stride}, {}};
  for (int64_t i = 0; i < scales; ++i) result.scales.push_back(static_cast<float>(found[i]));
  return result;
}

TEST(Fp8Blocks, EveryEntryGivesTheSameBits) {
  for (const DType dtype : kAllTypes)
    for (const BlocksCase& one : kBlocksCases)
      for (const QuantRecipe recipe : kBlocks)
        for (const bool finite : {true, false}) {
          const Array x = blocks_of(dtype, one.rows, one.cols, finite, one.rows % 2 == 1);
          const Encoded expected = encode(one, recipe, x, reference_of(fp8_blocks_entries()));
          for (const auto& entry : fast_entries(fp8_blocks_entries(), {})) {
            const Encoded given = encode(one, recipe, x, entry);
            ASSERT_EQ(given.codes, expected.codes)
                << entry.name << ' ' << name(dtype) << ' ' << one.rows << 'x' << one.cols << ' '
                << traits(recipe).name << (one.transposed ? " transposed" : "");
            ASSERT_EQ(given.scales, expected.scales)
                << entry.name << ' ' << name(dtype) << ' ' << one.rows << 'x' << one.cols << ' '
                << traits(recipe).name << (one.transposed ? " transposed" : "");
          }
        }
}

/// Codes and scales are those of quantize(), along the rows those of the transposed tensor.
TEST(Fp8Blocks, AreThoseOfTheRecipe) {
  const int64_t rows = 150, cols = 272;
  const Array x = blocks_of(DType::kFloat32, rows, cols, true, false);
  Array turned(DType::kFloat32, rows * cols);
  turned.fill([&](int64_t i) { return x[i % rows * cols + i / rows]; });
  for (const QuantRecipe recipe : kBlocks)
    for (const bool transposed : {false, true}) {
      const int64_t out_rows = transposed ? cols : rows, out_cols = transposed ? rows : cols,
                    stride = transposed ? 160 : cols, along = (out_cols + 127) / 128;
      std::vector<uint8_t> codes(static_cast<size_t>(out_rows * out_cols));
      std::vector<float> scales(static_cast<size_t>(scale_rows(recipe, out_rows) * along));
      quantize({.recipe = recipe,
                .rows = out_rows,
                .cols = out_cols,
                .x = transposed ? turned.data() : x.data(),
                .codes = codes.data(),
                .scales = scales.data()});
      const Encoded given =
          encode({rows, cols, stride, transposed}, recipe, x, reference_of(fp8_blocks_entries()));
      const bool square = recipe == QuantRecipe::kBlockwise128x128;
      for (int64_t r = 0; r < out_rows; ++r)
        for (int64_t c = 0; c < stride; ++c) {
          ASSERT_EQ(given.codes[static_cast<size_t>(r * stride + c)],
                    c < out_cols ? codes[static_cast<size_t>(r * out_cols + c)] : 0);
          const int64_t block = c / 128;
          ASSERT_EQ(
              given.scales[static_cast<size_t>(square ? r / 128 * ((along + 3) / 4 * 4) + block
                                                      : block * (out_rows + 3) + r)],
              scales[static_cast<size_t>((square ? r / 128 : r) * along + block)]);
        }
    }
}

TEST(Fp8Blocks, RefusesWhatDoesNotFit) {
  const Fp8Blocks right = {.rows = 4, .cols = 16, .stride = 16, .scale_stride = 4};
  const auto with = [&](auto change) {
    Fp8Blocks args = right;
    change(args);
    return args;
  };
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.rows = -1; })), ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.stride = 15; })), ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.transposed = true, a.stride = 3; })),
               ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.scale_stride = 3; })), ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) {
                 a.recipe = QuantRecipe::kBlockwise128x128, a.scale_stride = 0;
               })),
               ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.recipe = QuantRecipe::kMxfp8; })), ShapeError);
  EXPECT_THROW(fp8_blocks(with([](Fp8Blocks& a) { a.recipe = QuantRecipe::kTensorwiseE4m3; })),
               ShapeError);
}

} // namespace
} // namespace pentatron::kernels
