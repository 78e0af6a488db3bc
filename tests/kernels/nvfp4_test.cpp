// What NVFP4 training adds to quantisation: stochastic rounding without bias, whose random numbers
// have addresses, and an orthogonal transform.
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "pentatron/base/philox.h"
#include "pentatron/kernels/quantize/hadamard.h"
#include "pentatron/kernels/quantize/quantize.h"
#include "pentatron/kernels/quantize/stochastic.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using testing::Array;

/// out of `transform` over x [rows, cols].
Array transformed(const Array& x, DType dtype, int64_t rows, int64_t cols, bool inverse) {
  Array out(acc_dtype(dtype), hadamard_rows(rows) * cols);
  hadamard({.dtype = dtype,
            .rows = rows,
            .cols = cols,
            .x = x.data(),
            .out = out.data(),
            .inverse = inverse});
  return out;
}

TEST(Hadamard, IsTheMatrixOfSixteenWithSigns) {
  for (int64_t column = 0; column < 16; ++column) {
    Array unit(DType::kFloat64, 16);
    unit.set(column, 1);
    const Array y = transformed(unit, DType::kFloat64, 16, 1, false);
    for (int64_t row = 0; row < 16; ++row) {
      const int ones = __builtin_popcount(static_cast<unsigned>(row & column));
      const double entry =
          (ones % 2 == 0 ? 0.25 : -0.25) * kHadamardSigns[static_cast<size_t>(column)];
      EXPECT_EQ(y[row], entry) << row << ", " << column;
    }
  }
}

TEST(Hadamard, IsUndoneExactly) {
  // Integers: sums of sixteen of them and quarters are exact, so nothing may be lost.
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    for (const int64_t cols : {1, 7, 64}) {
      const int64_t rows = 48;
      Array x(dtype, rows * cols);
      const Stream stream(1, "hadamard");
      for (int64_t i = 0; i < x.size(); ++i)
        x.set(i, static_cast<double>(stream.below(2001, static_cast<uint64_t>(i))) - 1000);
      const Array y = transformed(x, dtype, rows, cols, false);
      const Array back = transformed(y, dtype, rows, cols, true);
      for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], x[i]) << i;
    }
  }
}

TEST(Hadamard, KeepsProductsThatSumOverRows) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t rows : {1, 16, 37, 130}) {
      const int64_t n = 5, m = 3;
      const Array a = Array::random(dtype, rows * n, 1), b = Array::random(dtype, rows * m, 2);
      const Array at = transformed(a, dtype, rows, n, false),
                  bt = transformed(b, dtype, rows, m, false);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) {
          double plain = 0, other = 0;
          for (int64_t r = 0; r < rows; ++r) plain += a[r * n + i] * b[r * m + j];
          for (int64_t r = 0; r < hadamard_rows(rows); ++r) other += at[r * n + i] * bt[r * m + j];
          EXPECT_NEAR(other, plain, dtype == DType::kFloat64 ? 1e-12 : 1e-4) << rows;
        }
    }
  }
}

TEST(Hadamard, EveryEntryGivesTheSameBits) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16, DType::kFloat16})
    for (const auto& [rows, cols] :
         std::vector<std::pair<int64_t, int64_t>>{{16, 1}, {1, 7}, {37, 45}, {160, 200}, {0, 3}})
      for (const bool inverse : {false, true}) {
        const Array x = Array::random(dtype, rows * cols, 3);
        Array expected(acc_dtype(dtype), hadamard_rows(rows) * cols);
        Hadamard args = {.dtype = dtype,
                         .rows = rows,
                         .cols = cols,
                         .x = x.data(),
                         .out = expected.data(),
                         .inverse = inverse};
        testing::reference_of(hadamard_entries()).run(args, {});
        for (const auto& entry : testing::fast_entries(hadamard_entries(), args)) {
          Array given(acc_dtype(dtype), hadamard_rows(rows) * cols);
          args.out = given.data();
          entry.run(args, {});
          ASSERT_TRUE(given.same_bits(expected))
              << entry.name << ' ' << name(dtype) << ' ' << rows << 'x' << cols;
        }
      }
}

TEST(StochasticRounding, EveryEntryGivesTheSameBits) {
  const Stream random(11, "stochastic entries");
  // Columns of a rank: all, a part that begins at a multiple of eight, and others in no order.
  enum { kAll, kPart, kScattered };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (size_t number = 0; number < kRecipes.size(); ++number)
      for (const int columns : {kAll, kPart, kScattered})
        for (const auto& [rows, cols] :
             std::vector<std::pair<int64_t, int64_t>>{{3, 5}, {33, 300}, {130, 137}})
          for (const bool along_rows : {false, true}) {
            Array x = Array::random(dtype, rows * cols, 6);
            x.set(rows * cols - 1, std::numeric_limits<double>::quiet_NaN());
            x.set(rows * cols / 2, -std::numeric_limits<double>::infinity());
            x.set(1, -0.0);
            std::vector<int64_t> row_ids(static_cast<size_t>(rows)),
                col_ids(static_cast<size_t>(cols));
            for (size_t r = 0; r < row_ids.size(); ++r)
              row_ids[r] = static_cast<int64_t>(random.below(uint64_t{1} << 40, r));
            for (size_t c = 0; c < col_ids.size(); ++c)
              col_ids[c] = columns == kPart
                               ? static_cast<int64_t>(c) + (int64_t{1} << 36) + (c < 16 ? 0 : 64)
                               : static_cast<int64_t>(random.below(uint64_t{1} << 35, c, 1));
            const Stochastic s{.key = random.key(),
                               .row_ids = row_ids.data(),
                               .col_ids = columns == kAll ? nullptr : col_ids.data()};
            std::vector<uint8_t> codes(static_cast<size_t>(rows * cols)), others(codes.size());
            Array values(DType::kBFloat16, rows * cols), given(DType::kBFloat16, rows * cols);
            Quantize args = {.recipe = static_cast<QuantRecipe>(number),
                             .dtype = dtype,
                             .rows = rows,
                             .cols = cols,
                             .along_rows = along_rows,
                             .x = x.data(),
                             .stochastic = &s,
                             .codes = along_rows ? nullptr : codes.data(),
                             .values = values.data(),
                             .values_dtype = DType::kBFloat16};
            testing::reference_of(quantize_entries()).run(args, {});
            const auto entries = testing::fast_entries(quantize_entries(), args);
            args.codes = along_rows ? nullptr : others.data();
            args.values = given.data();
            for (const auto& entry : entries) {
              entry.run(args, {});
              ASSERT_TRUE(given.same_bits(values) && codes == others)
                  << entry.name << ' ' << kRecipes[number].name << ' ' << name(dtype) << ' ' << rows
                  << 'x' << cols << ' ' << columns << (along_rows ? " along rows" : "");
              Quantize alone = args; // as training needs them
              alone.codes = nullptr;
              entry.run(alone, {});
              ASSERT_TRUE(given.same_bits(values)) << entry.name << ' ' << kRecipes[number].name;
            }
          }
}

TEST(StochasticRounding, HasTheMeanOfWhatItRounds) {
  constexpr int64_t kDraws = 1'000'000;
  const Stochastic s{.key = Stream(3, "rounding").key()};
  for (const float x :
       {0.1f, 0.25f, 0.4999f, 0.7f, 1.3f, 1.75f, 2.9f, 3.0f, 4.2f, 5.5f, -0.3f, -5.9f}) {
    double sum = 0;
    std::set<float> values;
    for (int64_t i = 0; i < kDraws; ++i) {
      const float y = rounded_stochastically(kE2M1, x, uniform_of(s, i / 1000, i % 1000));
      sum += y;
      values.insert(y);
    }
    const float size = std::abs(x);
    const double step = size < 2 ? 0.5 : size < 4 ? 1 : 2;
    // Five standard errors of the mean, and half a step of the random numbers.
    EXPECT_NEAR(sum / kDraws, x, 5 * step / 2 / 1000 + step * 0x1p-17) << x;
    EXPECT_LE(values.size(), 2u) << x;
  }
}

TEST(StochasticRounding, KeepsWhatTheFormatHas) {
  for (const float u : {0x1p-17f, 0.5f, 1 - 0x1p-17f})
    for (const float x : {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.5f, -6.0f})
      EXPECT_EQ(rounded_stochastically(kE2M1, x, u), x);
  EXPECT_EQ(rounded_stochastically(kE2M1, 100, 0.5f), 6);
  EXPECT_EQ(rounded_stochastically(kE2M1, std::numeric_limits<float>::quiet_NaN(), 0.5f), 6);
}

TEST(StochasticRounding, OfAPartIsThatOfTheWhole) {
  // Rows 32 to 47 and columns 16 to 31, with the amax of the whole; blocks are whole.
  constexpr int64_t kRows = 64, kCols = 48;
  const Array x = Array::random(DType::kFloat32, kRows * kCols, 4);
  const float amax = largest_size(DType::kFloat32, x.size(), x.data());
  Stochastic s{.key = Stream(5, "part").key()};
  const auto quantised = [&](const Array& from, int64_t rows, int64_t cols, bool along_rows) {
    Array values(DType::kFloat32, rows * cols);
    quantize({.recipe = QuantRecipe::kNvfp4,
              .rows = rows,
              .cols = cols,
              .along_rows = along_rows,
              .x = from.data(),
              .amax = &amax,
              .stochastic = &s,
              .values = values.data()});
    return values;
  };
  Array part(DType::kFloat32, 16 * 16);
  std::vector<int64_t> ids, columns;
  for (int64_t r = 0; r < 16; ++r) {
    ids.push_back(32 + r);
    columns.push_back(16 + r);
    for (int64_t c = 0; c < 16; ++c) part.set(r * 16 + c, x[(32 + r) * kCols + 16 + c]);
  }
  for (const bool along_rows : {false, true}) {
    s.row_ids = nullptr;
    s.col_ids = nullptr;
    const Array whole = quantised(x, kRows, kCols, along_rows);
    s.row_ids = ids.data();
    s.col_ids = columns.data();
    const Array own = quantised(part, 16, 16, along_rows);
    bool differs = false;
    s.row_ids = nullptr;
    const Array other = quantised(part, 16, 16, along_rows);
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t c = 0; c < 16; ++c) {
        EXPECT_EQ(own[r * 16 + c], whole[(32 + r) * kCols + 16 + c]);
        differs = differs || own[r * 16 + c] != other[r * 16 + c];
      }
    EXPECT_TRUE(differs) << "rows have numbers of their own";
  }
}

} // namespace
} // namespace pentatron::kernels
