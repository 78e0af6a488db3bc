#include "pentatron/kernels/rows/rows.h"

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

/// Places of which about a quarter are none.
std::vector<int64_t> some_places(int64_t n, int64_t limit) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < n; ++i) places.push_back(i % 4 == 3 ? -1 : i * 797 % limit);
  return places;
}

TEST(SumRows, EveryEntryAddsInTheOrderOfPlaces) {
  for (const DType dtype : kAllTypes)
    for (const int64_t cols : {1, 3, 15, 16, 17, 64, 130, 1030})
      for (const int64_t k : {0, 1, 2, 3, 8}) {
        const int64_t rows = 9, given = 13;
        const Array x = Array::random(dtype, given * cols, 1);
        const std::vector<int64_t> places = some_places(rows * k, given);
        Array y(dtype, rows * cols), expected(dtype, rows * cols);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < cols; ++i) {
            double sum = 0; // rounded to the accumulate type after each addition
            for (int64_t j = 0; j < k; ++j)
              if (const int64_t place = places[static_cast<size_t>(r * k + j)]; place >= 0)
                sum = dtype == DType::kFloat64
                          ? sum + x[place * cols + i]
                          : static_cast<double>(static_cast<float>(sum + x[place * cols + i]));
            expected.set(r * cols + i, sum);
          }
        const SumRows args{.dtype = dtype,
                           .rows = rows,
                           .k = k,
                           .cols = cols,
                           .x = x.data(),
                           .places = places.data(),
                           .y = y.data()};
        for (const auto& entry : sum_rows_entries()) {
          if (!entry.refuse(args, {}).empty()) continue;
          entry.run(args, {});
          EXPECT_TRUE(y.same_bits(expected))
              << entry.name << ' ' << name(dtype) << " cols=" << cols << " k=" << k;
        }
      }
}

TEST(SumRows, OfOnePlaceAreCopies) {
  for (const DType dtype : kAllTypes) {
    Array x(dtype, 40), y(dtype, 40), expected(dtype, 40);
    for (int64_t i = 0; i < 40; ++i) x.set(i, -0.0);
    const std::vector<int64_t> places = {1, -1};
    for (int64_t i = 0; i < 40; ++i) expected.set(i, i < 20 ? -0.0 : 0.0);
    const SumRows args{.dtype = dtype,
                       .rows = 2,
                       .k = 1,
                       .cols = 20,
                       .x = x.data(),
                       .places = places.data(),
                       .y = y.data()};
    for (const auto& entry : sum_rows_entries()) {
      if (!entry.refuse(args, {}).empty()) continue;
      entry.run(args, {});
      EXPECT_TRUE(y.same_bits(expected)) << entry.name << ' ' << name(dtype);
    }
  }
}

TEST(SumRows, RefuseNegativeSizes) {
  EXPECT_THROW(sum_rows({.rows = 1, .k = -1, .cols = 1}), ShapeError);
}

} // namespace
} // namespace pentatron::kernels
