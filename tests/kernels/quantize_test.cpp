#include "pentatron/kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/kernels/gemm/gemm.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

constexpr CodeFormat kFormats[] = {kE4M3, kE5M2, kE2M1};

/// All finite numbers of a format by its definition, by code.
std::vector<std::pair<double, int>> numbers_of(const CodeFormat& f) {
  std::vector<std::pair<double, int>> numbers;
  for (int code = 0; code < f.sign; ++code) {
    const int exponent = code >> f.mantissa, rest = code & ((1 << f.mantissa) - 1);
    const double value = exponent == 0
                             ? std::ldexp(rest, 1 - f.bias - f.mantissa)
                             : std::ldexp((1 << f.mantissa) + rest, exponent - f.bias - f.mantissa);
    if (value <= f.largest) numbers.emplace_back(value, code);
  }
  return numbers;
}

TEST(CodeFormats, CastToTheNearestAndTiesToTheEvenCode) {
  for (const CodeFormat& f : kFormats) {
    const auto numbers = numbers_of(f);
    const Stream random(7, "casts");
    for (uint64_t i = 0; i < 20000; ++i) {
      // Every third is a midpoint or next to one.
      const size_t place = random.below(numbers.size() - 1, i, 1);
      double x = random.normal(i) * std::ldexp(1.0, static_cast<int>(random.below(24, i, 2)) - 14);
      if (i % 3 == 0) {
        const double middle = (numbers[place].first + numbers[place + 1].first) / 2;
        x = std::nextafter(static_cast<float>(middle), i % 2 != 0   ? 1e30f
                                                       : i % 4 != 0 ? 0.0f
                                                                    : static_cast<float>(middle));
      }
      const auto given = static_cast<float>(x);
      const double size = std::abs(static_cast<double>(given));
      const auto* best = &numbers[0];
      for (const auto& one : numbers) {
        const double before = std::abs(best->first - size), now = std::abs(one.first - size);
        if (now < before || (now == before && one.second % 2 == 0)) best = &one;
      }
      const float cast = rounded_to(f, given);
      ASSERT_EQ(std::abs(cast), best->first) << given;
      ASSERT_EQ(std::signbit(cast), std::signbit(given));
      ASSERT_EQ(code_of(f, cast), best->second | (std::signbit(given) ? f.sign : 0)) << given;
      ASSERT_EQ(value_of(f, code_of(f, cast)), cast);
    }
    EXPECT_EQ(rounded_to(f, static_cast<float>(kInf)), f.largest);
    EXPECT_EQ(rounded_to(f, -3e38f), -f.largest);
    EXPECT_EQ(code_of(f, rounded_to(f, static_cast<float>(kNaN))), f.nan);
  }
}

TEST(CodeFormats, HaveNoOtherValues) {
  EXPECT_TRUE(std::isnan(value_of(kE4M3, 0x7F)) && std::isnan(value_of(kE4M3, 0xFF)));
  EXPECT_TRUE(std::isinf(value_of(kE5M2, 0x7C)) && std::isnan(value_of(kE5M2, 0x7D)));
  EXPECT_EQ(value_of(kE2M1, 0xF), -6);
  EXPECT_EQ(value_of_e8m0(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(value_of_e8m0(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(value_of_e8m0(255)));
}

QuantRecipe recipe_number(size_t i) {
  return static_cast<QuantRecipe>(i);
}

/// What quantize() gives, all at once.
struct Given {
  std::vector<uint8_t> codes;
  std::vector<float> scales; ///< also those that are bytes
  float tensor_scale = 0;
  Array values;

  Given(const Quantize& a, DType values_dtype)
      : codes(static_cast<size_t>(code_bytes(a.recipe, a.rows, a.cols)) + 1),
        scales(static_cast<size_t>(scale_rows(a.recipe, a.rows) * scale_cols(a.recipe, a.cols)) +
               1),
        values(values_dtype, a.rows * a.cols) {}
  Quantize into(Quantize a) {
    if (!a.along_rows) {
      a.codes = codes.data();
      a.scales = scales.data();
    }
    a.tensor_scale = &tensor_scale;
    a.values = values.data();
    a.values_dtype = values.dtype();
    return a;
  }
  bool operator==(const Given& o) const {
    return codes == o.codes &&
           std::memcmp(scales.data(), o.scales.data(), scales.size() * 4) == 0 &&
           tensor_scale == o.tensor_scale && values.same_bits(o.values);
  }
};

/// Normal numbers of very different sizes, with zeros, a block of zeros, infinities and NaN.
Array hard(DType dtype, int64_t rows, int64_t cols, bool finite) {
  const Stream random(3, "hard");
  Array x(dtype, rows * cols);
  x.fill([&](int64_t i) {
    const auto n = static_cast<uint64_t>(i);
    if (i % 97 == 5) return 0.0;
    if (i / cols == 1) return -0.0;
    if (!finite && i % 301 == 7) return i % 2 != 0 ? kNaN : -kInf;
    return random.normal(n) * std::ldexp(1.0, static_cast<int>(random.below(30, n, 1)) - 15);
  });
  return x;
}

TEST(Quantize, EveryEntryGivesTheSameBits) {
  for (const DType dtype : kFastTypes)
    for (size_t number = 0; number < kRecipes.size(); ++number)
      for (const bool along_rows : {false, true})
        for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
                 {3, 5}, {130, 259}, {33, 1040}, {5, 2200}, {1, 1}, {0, 4}})
          for (const DType out : kFastTypes) {
            const Array x = hard(dtype, rows, cols, number % 2 == 0);
            const Quantize args = {.recipe = recipe_number(number),
                                   .dtype = dtype,
                                   .rows = rows,
                                   .cols = cols,
                                   .along_rows = along_rows,
                                   .x = x.data()};
            Given expected(args, out);
            reference_of(quantize_entries()).run(expected.into(args), {});
            for (const auto& entry : fast_entries(quantize_entries(), args)) {
              Given given(args, out);
              entry.run(given.into(args), {});
              ASSERT_TRUE(given == expected)
                  << entry.name << ' ' << kRecipes[number].name << ' ' << name(dtype) << ' ' << rows
                  << 'x' << cols << (along_rows ? " along rows" : "");
              Array alone(out, rows * cols); // as training needs them
              Quantize values = args;
              values.values = alone.data();
              values.values_dtype = out;
              entry.run(values, {});
              ASSERT_TRUE(alone.same_bits(expected.values))
                  << entry.name << ' ' << kRecipes[number].name;
            }
          }
}

TEST(Quantize, LargestSizeIgnoresWhatIsNoNumber) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    const Array none(dtype, 1, kNaN);
    EXPECT_EQ(largest_size(dtype, 1, none.data()), 0);
    for (const int64_t n : {15, 33, 40000}) {
      Array x = Array::random(dtype, n, 8);
      x.set(0, kNaN);
      EXPECT_LT(largest_size(dtype, n, x.data()), 10);
      for (const int64_t at : {n - 1, n / 2, n / 3}) { // each is larger than those before
        x.set(at, -11 - static_cast<double>(n - at));
        EXPECT_EQ(largest_size(dtype, n, x.data()), std::abs(static_cast<float>(x[at]))) << n;
      }
      x.set(n - 1, -kInf);
      EXPECT_EQ(largest_size(dtype, n, x.data()), kInf);
    }
  }
}

TEST(Quantize, ValuesAreWhatCodesAndScalesSay) {
  for (size_t number = 0; number < kRecipes.size(); ++number) {
    const int64_t rows = 40, cols = 150;
    const Array x = hard(DType::kFloat32, rows, cols, true);
    const Quantize args = {
        .recipe = recipe_number(number), .rows = rows, .cols = cols, .x = x.data()};
    Given given(args, DType::kBFloat16), wide(args, DType::kFloat32);
    quantize(given.into(args));
    quantize(wide.into(args));
    std::vector<float> back(static_cast<size_t>(rows * cols));
    dequantize({.recipe = args.recipe,
                .rows = rows,
                .cols = cols,
                .codes = given.codes.data(),
                .scales = given.scales.data(),
                .tensor_scale = given.tensor_scale,
                .values = back.data()});
    const bool tensor = traits(args.recipe).tensorwise() || traits(args.recipe).two_levels();
    for (int64_t i = 0; i < rows * cols; ++i) {
      ASSERT_EQ(given.values[i], wide.values[i]); // bf16 holds them
      ASSERT_EQ(back[static_cast<size_t>(i)],
                static_cast<float>(given.values[i]) * (tensor ? given.tensor_scale : 1));
    }
  }
}

TEST(Quantize, AlongRowsIsTheTransposedTensor) {
  for (size_t number = 0; number < kRecipes.size(); ++number) {
    const int64_t rows = 70, cols = 45;
    const Array x = hard(DType::kFloat32, rows, cols, true);
    Array t(DType::kFloat32, rows * cols);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c) t.set(c * rows + r, x[r * cols + c]);
    Quantize across = {.recipe = recipe_number(number),
                       .rows = rows,
                       .cols = cols,
                       .along_rows = true,
                       .x = x.data()};
    Quantize transposed = {
        .recipe = recipe_number(number), .rows = cols, .cols = rows, .x = t.data()};
    Given a(across, DType::kFloat32), b(transposed, DType::kFloat32);
    quantize(a.into(across));
    quantize(b.into(transposed));
    EXPECT_EQ(a.tensor_scale, b.tensor_scale);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < cols; ++c)
        ASSERT_EQ(a.values[r * cols + c], b.values[c * rows + r]) << kRecipes[number].name;
  }
}

/// A shard that is given the amax of the whole tensor has the codes of the whole.
TEST(Quantize, TakesTheLargestNumberOfOtherRanks) {
  for (const QuantRecipe recipe : {QuantRecipe::kTensorwiseE4m3, QuantRecipe::kNvfp4}) {
    const Array x = Array::random(DType::kFloat32, 8 * 64, 4);
    const float amax = largest_size(DType::kFloat32, 8 * 64, x.data());
    const Quantize whole = {.recipe = recipe, .rows = 8, .cols = 64, .x = x.data()};
    Quantize half = {.recipe = recipe,
                     .rows = 4,
                     .cols = 64,
                     .x = static_cast<const float*>(x.data()) + 4 * 64,
                     .amax = &amax};
    Given a(whole, DType::kFloat32), b(half, DType::kFloat32);
    quantize(a.into(whole));
    quantize(b.into(half));
    EXPECT_EQ(a.tensor_scale, b.tensor_scale);
    for (int64_t i = 0; i < 4 * 64; ++i) ASSERT_EQ(b.values[i], a.values[4 * 64 + i]);
  }
}

/// Files of other programs, to the bit; their README has the origin.
TEST(Quantize, GivesTheBitsOfOtherPrograms) {
  for (const char* file : {"ties_e2m1", "ties_e4m3", "ties_e5m2", "not_finite"}) {
    const SafetensorsFile golden(PENTATRON_TEST_DATA "/kernels/quantize/" + std::string(file) +
                                 ".safetensors");
    const SafeTensor& x = golden.at("x");
    std::vector<float> data(static_cast<size_t>(x.numel()));
    std::memcpy(data.data(), x.data.data(), x.data.size());
    for (size_t number = 0; number < kRecipes.size(); ++number) {
      const std::string recipe(kRecipes[number].name);
      const Quantize args = {.recipe = recipe_number(number),
                             .rows = x.shape[0],
                             .cols = x.shape[1],
                             .x = data.data()};
      Given given(args, DType::kFloat32);
      quantize(given.into(args));
      const auto same = [&](const std::string& what, const void* bytes) {
        const SafeTensor& expected = golden.at(recipe + "." + what);
        EXPECT_EQ(std::memcmp(bytes, expected.data.data(), expected.data.size()), 0)
            << file << ' ' << recipe << ' ' << what;
      };
      same("data", given.codes.data());
      same("scale", given.scales.data());
      if (kRecipes[number].two_levels()) same("global_scale", &given.tensor_scale);
      std::vector<float> back(data.size());
      dequantize({.recipe = args.recipe,
                  .rows = args.rows,
                  .cols = args.cols,
                  .codes = given.codes.data(),
                  .scales = given.scales.data(),
                  .tensor_scale = given.tensor_scale,
                  .values = back.data()});
      const SafeTensor& expected = golden.at(recipe + ".dequantized");
      for (size_t i = 0; i < back.size(); ++i) {
        float value = 0;
        std::memcpy(&value, expected.data.data() + 4 * i, 4);
        ASSERT_TRUE(back[i] == value || (std::isnan(back[i]) && std::isnan(value)))
            << file << ' ' << recipe << ' ' << i;
      }
    }
  }
}

/// bf16 products of values are products of the quantised numbers: a sum in fp32 lies within its
/// bound of that in fp64.
TEST(Quantize, ProductsOfValuesAreExactButForTheirSums) {
  const int64_t m = 24, n = 40, k = 256;
  const Array x = hard(DType::kFloat32, m, k, true), w = Array::random(DType::kFloat32, n * k, 9);
  const std::pair<QuantRecipe, QuantRecipe> kPairs[] = {
      {QuantRecipe::kTensorwiseE5m2, QuantRecipe::kTensorwiseE4m3},
      {QuantRecipe::kBlockwise1x128, QuantRecipe::kBlockwise128x128},
      {QuantRecipe::kMxfp8, QuantRecipe::kMxfp8},
      {QuantRecipe::kNvfp4, QuantRecipe::kNvfp4Square}};
  for (const auto& [of_x, of_w] : kPairs) {
    const Quantize qx = {.recipe = of_x, .rows = m, .cols = k, .x = x.data()},
                   qw = {.recipe = of_w, .rows = n, .cols = k, .x = w.data()};
    Given a(qx, DType::kBFloat16), b(qw, DType::kBFloat16);
    quantize(a.into(qx));
    quantize(b.into(qw));
    Array y(DType::kFloat32, m * n);
    gemm({.m = m,
          .n = n,
          .k = k,
          .transpose_b = true,
          .in_dtype = DType::kBFloat16,
          .a = a.values.data(),
          .lda = k,
          .b = b.values.data(),
          .ldb = k,
          .c = y.data(),
          .ldc = n});
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0, size = 0;
        for (int64_t l = 0; l < k; ++l) {
          const double product = a.values[i * k + l] * b.values[j * k + l];
          sum += product;
          size += std::abs(product);
        }
        ASSERT_LE(std::abs(y[i * n + j] - sum), static_cast<double>(k) * 0x1p-24 * size)
            << traits(of_x).name;
      }
  }
}

TEST(Quantize, RefusesWhatItCannotGive) {
  EXPECT_THROW(quantize({.rows = -1}), ShapeError);
  uint8_t code = 0;
  EXPECT_THROW(quantize({.along_rows = true, .codes = &code}), ShapeError);
  EXPECT_THROW(dequantize({.rows = 1, .cols = -1}), ShapeError);
}

} // namespace
} // namespace pentatron::kernels
