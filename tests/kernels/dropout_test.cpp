#include "pentatron/kernels/dropout/dropout.h"

#include <cmath>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

const std::array<uint32_t, 2> kKey = Stream(1234, "dropout").key();

TEST(Dropout, MaskIsThePhiloxWordOfTheElement) {
  const Stream stream(1234, "dropout");
  const Dropout args{.rows = 3,
                     .cols = 200,
                     .p = 0.3,
                     .key = kKey,
                     .site = 7,
                     .row_begin = (1ull << 40) + 5,
                     .row_step = 2,
                     .feature_offset = 50};
  int64_t kept = 0;
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 200; ++c) {
      const uint64_t feature = 50 + c, row = (1ull << 40) + 5 + 2 * r;
      const PhiloxBlock block =
          stream.bits(row, uint64_t{7} << 32 | (feature / 64 * 16 + feature % 16));
      const bool keep = block[feature % 64 / 16] >= 0.3 * 0x1p32;
      EXPECT_EQ(dropout_keeps(args, r, c), keep);
      kept += keep;
    }
  EXPECT_NEAR(kept / 600.0, 0.7, 0.07);
}

TEST(Dropout, EveryEntryDrawsTheSameMask) {
  for (const DType dtype : kAllTypes)
    for (const int64_t cols : {1, 3, 15, 16, 17, 63, 64, 65, 130, 257})
      for (const int64_t offset : {0, 1, 48, 64, 1000003})
        for (const bool with_residual : {false, true}) {
          const int64_t rows = 5;
          const Array x = Array::random(dtype, rows * (cols + 1), 1),
                      residual = Array::random(dtype, rows * cols, 2);
          const std::vector<uint64_t> ids = {9, 0, ~0ull, 1ull << 33, 77};
          Array y(dtype, rows * cols);
          const Dropout args{.dtype = dtype,
                             .rows = rows,
                             .cols = cols,
                             .x = x.data(),
                             .residual = with_residual ? residual.data() : nullptr,
                             .y = y.data(),
                             .x_stride = cols + 1,
                             .residual_stride = cols,
                             .y_stride = cols,
                             .p = 0.4,
                             .key = kKey,
                             .site = 3,
                             .row_ids = ids.data(),
                             .feature_offset = offset};
          for (const auto& entry : dropout_entries()) {
            if (!entry.refuse(args, {}).empty()) continue;
            entry.run(args, {});
            Array expected(dtype, rows * cols);
            for (int64_t r = 0; r < rows; ++r)
              for (int64_t c = 0; c < cols; ++c)
                expected.set(r * cols + c,
                             (dropout_keeps(args, r, c) ? x[r * (cols + 1) + c] / 0.6 : 0.0) +
                                 (with_residual ? residual[r * cols + c] : 0.0));
            expect_close(
                y, expected, 2 * epsilon(dtype), epsilon(dtype) * 4,
                fmt::format("{} {} cols={} offset={}", entry.name, name(dtype), cols, offset));
          }
        }
}

TEST(Dropout, ShardsDrawTheirPartOfTheWholeMask) {
  const int64_t rows = 6, cols = 150;
  const Array x(DType::kFloat32, rows * cols, 1.0);
  Array whole(DType::kFloat32, rows * cols), parts(DType::kFloat32, rows * cols);
  Dropout args{.rows = rows, .cols = cols, .x = x.data(), .y = whole.data(), .p = 0.5, .key = kKey};
  dropout(args);
  for (const auto& [row, count] : {std::pair<int64_t, int64_t>{0, 2}, {2, 4}})
    for (const auto& [col, width] : {std::pair<int64_t, int64_t>{0, 37}, {37, 113}}) {
      Dropout shard = args;
      shard.rows = count;
      shard.cols = width;
      shard.x = static_cast<const float*>(x.data()) + row * cols + col;
      shard.y = static_cast<float*>(parts.data()) + row * cols + col;
      shard.x_stride = shard.y_stride = cols;
      shard.row_begin = row;
      shard.feature_offset = col;
      dropout(shard);
    }
  EXPECT_TRUE(parts.same_bits(whole));
}

TEST(Dropout, KeepsTheMeanAndDiffersBySite) {
  const int64_t rows = 64, cols = 1024;
  const Array x(DType::kFloat32, rows * cols, 1.0);
  Array a(DType::kFloat32, rows * cols), b(DType::kFloat32, rows * cols);
  dropout(
      {.rows = rows, .cols = cols, .x = x.data(), .y = a.data(), .p = 0.1, .key = kKey, .site = 1});
  dropout(
      {.rows = rows, .cols = cols, .x = x.data(), .y = b.data(), .p = 0.1, .key = kKey, .site = 2});
  double mean = 0, both = 0;
  for (int64_t i = 0; i < rows * cols; ++i) {
    mean += a[i] / (rows * cols);
    both += (a[i] != 0 && b[i] != 0) / double(rows * cols);
  }
  // 5 standard deviations of 65536 draws: 5 sqrt(0.9 * 0.1 / 65536) / 0.9 and 5 sqrt(0.81 * 0.19 /
  // 65536).
  EXPECT_NEAR(mean, 1.0, 0.0066);
  EXPECT_NEAR(both, 0.81, 0.0077);
}

TEST(Dropout, EndsOfTheRangeOfP) {
  for (const DType dtype : kAllTypes) {
    const Array x = Array::random(dtype, 100, 1), residual = Array::random(dtype, 100, 2);
    Array y(dtype, 100);
    dropout({.dtype = dtype,
             .rows = 2,
             .cols = 50,
             .x = x.data(),
             .y = y.data(),
             .p = 0.0,
             .key = kKey});
    EXPECT_TRUE(y.same_bits(x));
    dropout({.dtype = dtype,
             .rows = 2,
             .cols = 50,
             .x = x.data(),
             .residual = residual.data(),
             .y = y.data(),
             .p = 1.0,
             .key = kKey});
    EXPECT_TRUE(y.same_bits(residual));
  }
  EXPECT_THROW(dropout({.rows = 1, .cols = 1, .p = 1.5}), ConfigError);
  EXPECT_THROW(dropout({.rows = 1, .cols = 1, .p = kNaN}), ConfigError);
  EXPECT_THROW(dropout({.rows = 1, .cols = -1}), ShapeError);
}

TEST(Dropout, NaNAndInfinityPassWhereKept) {
  for (const double bad : {kNaN, kInf})
    for (const DType dtype : kAllTypes) {
      const Array x(dtype, 300, bad);
      Array y(dtype, 300);
      const Dropout args{.dtype = dtype,
                         .rows = 1,
                         .cols = 300,
                         .x = x.data(),
                         .y = y.data(),
                         .p = 0.5,
                         .key = kKey};
      dropout(args);
      for (int64_t c = 0; c < 300; ++c) {
        const bool passes = std::isnan(bad) ? std::isnan(y[c]) : y[c] == kInf;
        EXPECT_EQ(dropout_keeps(args, 0, c) ? passes : y[c] == 0.0, true);
      }
    }
}

TEST(Dropout, DoesNotDependOnThreads) {
  const Array x = Array::random(DType::kFloat32, 100 * 97, 1);
  Array one(DType::kFloat32, x.size()), many(DType::kFloat32, x.size());
  Dropout args{.rows = 100, .cols = 97, .x = x.data(), .p = 0.2, .key = kKey};
  with_threads(1, [&] {
    args.y = one.data();
    dropout(args);
  });
  with_threads(6, [&] {
    args.y = many.data();
    dropout(args);
  });
  EXPECT_TRUE(many.same_bits(one));
}

} // namespace

} // namespace pentatron::kernels
