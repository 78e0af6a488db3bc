#include "pentatron/kernels/quantize/tiled_blocks.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr QuantRecipe kTiled[] = {QuantRecipe::kMxfp8, QuantRecipe::kNvfp4,
                                  QuantRecipe::kNvfp4Square};

/// Numbers whose size differs from block to block, zeros of both signs, blocks of zeros, and where
/// `finite` is false infinities and NaN.
Array tiled_numbers(DType dtype, int64_t rows, int64_t cols, bool finite, bool aligned) {
  const Stream random(6, "tiles");
  Array x(dtype, rows * cols, 0.0, aligned);
  x.fill([&](int64_t i) {
    const auto place = static_cast<uint64_t>(i);
    const int64_t r = i / cols, c = i % cols, block = r / 16 * 7 + c / 16;
    if (i % 97 == 5 || block % 5 == 3) return i % 2 != 0 ? 0.0 : -0.0;
    if (!finite && i % 301 == 7) return i % 2 != 0 ? kNaN : -kInf;
    return random.normal(place) * std::ldexp(1.0, static_cast<int>(block % 6 * 3 + r % 5) - 12);
  });
  return x;
}

struct TiledCase {
  int64_t rows, cols, stride;
  bool transposed;
};
/// Blocks and tiles that do not divide, rows that are filled up, rows that can be read by 16 bytes.
const TiledCase kTiledCases[] = {
    {3, 5, 32, false},     {7, 48, 64, false},   {1, 1, 32, false},      {133, 288, 288, false},
    {5, 119, 160, false},  {0, 16, 32, false},   {257, 128, 128, false}, {17, 40, 64, false},
    {3, 5, 32, true},      {130, 72, 160, true}, {200, 64, 224, true},   {1, 1, 32, true},
    {128, 130, 128, true}, {0, 16, 0, true},     {17, 33, 32, true},     {300, 208, 320, true},
    {256, 256, 256, true}, {33, 144, 96, true}};

struct Tiles {
  std::vector<uint8_t> codes, scales;
  float tensor_scale = -1;
};

struct ByChance {
  std::vector<int64_t> rows, cols; ///< empty: numbers
  Stochastic rounding() const {
    return {.key = {11, 12},
            .row_ids = rows.empty() ? nullptr : rows.data(),
            .col_ids = cols.empty() ? nullptr : cols.data()};
  }
};

Tiles tiles_of(const TiledCase& one, QuantRecipe recipe, const Array& x,
               const Entry<TiledBlocks>& entry, const ByChance* chance = nullptr) {
  const bool fp4 = recipe != QuantRecipe::kMxfp8;
  const int64_t rows = one.transposed ? one.cols : one.rows;
  const ScaleTiles tiles = scale_tiles(recipe, rows, one.stride);
  GuardedMemory codes(static_cast<size_t>(rows * one.stride / (fp4 ? 2 : 1))),
      scales(static_cast<size_t>(tiles.bytes()));
  const float amax = largest_size(x.dtype(), x.size(), x.data());
  const Stochastic rounding = chance == nullptr ? Stochastic() : chance->rounding();
  Tiles result;
  entry.run({.recipe = recipe,
             .dtype = x.dtype(),
             .rows = one.rows,
             .cols = one.cols,
             .transposed = one.transposed,
             .stride = one.stride,
             .x = x.data(),
             .amax = fp4 ? &amax : nullptr,
             .stochastic = chance == nullptr ? nullptr : &rounding,
             .codes = reinterpret_cast<uint8_t*>(codes.data()),
             .scales = reinterpret_cast<uint8_t*>(scales.data()),
             .tensor_scale = fp4 ? &result.tensor_scale : nullptr},
            {});
  const auto* const first = reinterpret_cast<const uint8_t*>(codes.data());
  const auto* const bytes = reinterpret_cast<const uint8_t*>(scales.data());
  result.codes.assign(first, first + rows * one.stride / (fp4 ? 2 : 1));
  result.scales.assign(bytes, bytes + tiles.bytes());
  return result;
}

void expect_same(const Tiles& given, const Tiles& expected, const std::string& what) {
  ASSERT_EQ(given.codes, expected.codes) << what;
  ASSERT_EQ(given.scales, expected.scales) << what;
  ASSERT_EQ(given.tensor_scale, expected.tensor_scale) << what;
}

TEST(TiledBlocks, EveryEntryGivesTheSameBits) {
  for (const DType dtype : kAllTypes)
    for (const TiledCase& one : kTiledCases)
      for (const QuantRecipe recipe : kTiled)
        for (const bool finite : {true, false}) {
          const Array x = tiled_numbers(dtype, one.rows, one.cols, finite, one.rows % 2 == 1);
          const Tiles expected = tiles_of(one, recipe, x, reference_of(tiled_blocks_entries()));
          for (const auto& entry : fast_entries(tiled_blocks_entries(), {.dtype = dtype}))
            expect_same(tiles_of(one, recipe, x, entry), expected,
                        fmt::format("{} {} {}x{} {}{}", entry.name, name(dtype), one.rows, one.cols,
                                    traits(recipe).name, one.transposed ? " transposed" : ""));
        }
}

/// Addresses of rows in any order, and columns that begin anywhere, jump and go back.
TEST(TiledBlocks, RoundByTheSameChanceInEveryEntry) {
  for (const TiledCase& one : kTiledCases) {
    const Array x = tiled_numbers(DType::kFloat32, one.rows, one.cols, true, false);
    ByChance given;
    for (int64_t r = 0; r < one.rows; ++r) given.rows.push_back((r * 7919 + 3) << 33);
    for (int64_t c = 0; c < one.cols; ++c) given.cols.push_back(c < 21 ? c + 5 : 1000 - c);
    for (const ByChance& chance : {ByChance(), given}) {
      const Tiles expected =
          tiles_of(one, QuantRecipe::kNvfp4, x, reference_of(tiled_blocks_entries()), &chance);
      for (const auto& entry : fast_entries(tiled_blocks_entries(), {}))
        expect_same(tiles_of(one, QuantRecipe::kNvfp4, x, entry, &chance), expected,
                    fmt::format("{} {}x{}{}", entry.name, one.rows, one.cols,
                                one.transposed ? " transposed" : ""));
    }
  }
}

/// Where cuBLASLt looks for the scale of (row, block): the steps of its manual, one dimension after
/// the other: [rows / 128, 4, 32] by [blocks / 4, 4], in the order tile row, tile column, 32, 4, 4.
std::vector<uint8_t> in_order(const std::vector<uint8_t>& scales, int64_t rows, int64_t blocks) {
  std::vector<uint8_t> result;
  for (int64_t tile_row = 0; tile_row < rows; tile_row += 128)
    for (int64_t tile_block = 0; tile_block < blocks; tile_block += 4)
      for (int64_t inner = 0; inner < 32; ++inner)
        for (int64_t quarter = 0; quarter < 4; ++quarter)
          for (int64_t block = 0; block < 4; ++block)
            result.push_back(scales[static_cast<size_t>((tile_row + quarter * 32 + inner) * blocks +
                                                        tile_block + block)]);
  return result;
}

/// Codes and scales are those of quantize(), along the rows those of the transposed tensor; scales
/// that fill up tiles are zero.
TEST(TiledBlocks, AreThoseOfTheRecipe) {
  const int64_t rows = 150, cols = 288;
  const Array x = tiled_numbers(DType::kFloat32, rows, cols, true, false);
  Array turned(DType::kFloat32, rows * cols);
  turned.fill([&](int64_t i) { return x[i % rows * cols + i / rows]; });
  for (const QuantRecipe recipe : kTiled)
    for (const bool transposed : {false, true}) {
      const RecipeTraits& kind = traits(recipe);
      const int64_t out_rows = transposed ? cols : rows, out_cols = transposed ? rows : cols,
                    stride = transposed ? 160 : cols,
                    along = (out_cols + kind.block_cols - 1) / kind.block_cols;
      std::vector<uint8_t> codes(static_cast<size_t>(code_bytes(recipe, out_rows, out_cols))),
          scales(static_cast<size_t>(scale_rows(recipe, out_rows) * along));
      float tensor_scale = -1;
      quantize({.recipe = recipe,
                .rows = out_rows,
                .cols = out_cols,
                .x = transposed ? turned.data() : x.data(),
                .codes = codes.data(),
                .scales = scales.data(),
                .tensor_scale = kind.two_levels() ? &tensor_scale : nullptr});
      const Tiles given = tiles_of({rows, cols, stride, transposed}, recipe, x,
                                   reference_of(tiled_blocks_entries()));
      EXPECT_EQ(given.tensor_scale, tensor_scale);
      const auto code = [&](const std::vector<uint8_t>& from, int64_t width, int64_t r, int64_t c) {
        if (!kind.packed()) return static_cast<int>(from[static_cast<size_t>(r * width + c)]);
        const uint8_t byte = from[static_cast<size_t>(r * ((width + 1) / 2) + c / 2)];
        return c % 2 == 0 ? byte & 15 : byte >> 4;
      };
      for (int64_t r = 0; r < out_rows; ++r)
        for (int64_t c = 0; c < stride; ++c)
          ASSERT_EQ(code(given.codes, stride, r, c), c < out_cols ? code(codes, out_cols, r, c) : 0)
              << kind.name << ' ' << r << ", " << c;
      const ScaleTiles tiles = scale_tiles(recipe, out_rows, stride);
      ASSERT_EQ(tiles.rows, transposed ? 384 : 256);
      ASSERT_EQ(tiles.blocks,
                transposed ? (kind.block_cols == 32 ? 8 : 12) : (kind.block_cols == 32 ? 12 : 20));
      std::vector<uint8_t> plain(static_cast<size_t>(tiles.bytes()));
      const int64_t whole = (out_rows + kind.block_rows - 1) / kind.block_rows * kind.block_rows;
      for (int64_t r = 0; r < whole; ++r)
        for (int64_t b = 0; b < along; ++b)
          plain[static_cast<size_t>(r * tiles.blocks + b)] =
              scales[static_cast<size_t>(r / kind.block_rows * along + b)];
      ASSERT_EQ(given.scales, in_order(plain, tiles.rows, tiles.blocks)) << kind.name;
    }
}

/// Chance is that of quantize(), with the addresses of x also where codes are transposed.
TEST(TiledBlocks, RoundByTheChanceOfTheRecipe) {
  const int64_t rows = 64, cols = 96;
  const Array x = tiled_numbers(DType::kFloat32, rows, cols, true, false);
  ByChance chance;
  for (int64_t r = 0; r < rows; ++r) chance.rows.push_back(r * 3 + 100);
  for (int64_t c = 0; c < cols; ++c) chance.cols.push_back(c + 3);
  const Stochastic rounding = chance.rounding();
  for (const bool transposed : {false, true}) {
    std::vector<float> values(static_cast<size_t>(rows * cols));
    quantize({.recipe = QuantRecipe::kNvfp4,
              .rows = rows,
              .cols = cols,
              .along_rows = transposed,
              .x = x.data(),
              .stochastic = &rounding,
              .values = values.data()});
    const int64_t out_rows = transposed ? cols : rows, out_cols = transposed ? rows : cols;
    const Tiles given = tiles_of({rows, cols, out_cols, transposed}, QuantRecipe::kNvfp4, x,
                                 reference_of(tiled_blocks_entries()), &chance);
    const ScaleTiles tiles = scale_tiles(QuantRecipe::kNvfp4, out_rows, out_cols);
    for (int64_t r = 0; r < out_rows; ++r)
      for (int64_t c = 0; c < out_cols; ++c) {
        const uint8_t byte = given.codes[static_cast<size_t>((r * out_cols + c) / 2)];
        const float number =
            value_of(kE2M1, static_cast<uint8_t>(c % 2 == 0 ? byte & 15 : byte >> 4));
        const float scale = value_of(
            kE4M3, given.scales[static_cast<size_t>(tiled_scale_at(r, c / 16, tiles.blocks))]);
        ASSERT_EQ(number * scale,
                  values[static_cast<size_t>(transposed ? c * cols + r : r * cols + c)])
            << r << ", " << c << (transposed ? " transposed" : "");
      }
  }
}

TEST(TiledBlocks, RefuseWhatDoesNotFit) {
  const TiledBlocks right = {.rows = 4, .cols = 16, .stride = 32};
  const auto with = [&](auto change) {
    TiledBlocks args = right;
    change(args);
    return args;
  };
  const Stochastic chance;
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.rows = -1; })), ShapeError);
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.stride = 16; })), ShapeError);
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.cols = 33; })), ShapeError);
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.transposed = true, a.rows = 33; })),
               ShapeError);
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.recipe = QuantRecipe::kBlockwise1x128; })),
               ShapeError);
  EXPECT_THROW(tiled_blocks(with([&](TiledBlocks& a) { a.stochastic = &chance; })), ShapeError);
  EXPECT_THROW(tiled_blocks(with([](TiledBlocks& a) { a.codes = reinterpret_cast<uint8_t*>(8); })),
               ShapeError);
}

} // namespace
} // namespace pentatron::kernels
