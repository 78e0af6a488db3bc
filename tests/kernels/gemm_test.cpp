#include "pentatron/kernels/gemm/gemm.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>
#include <omp.h>

#include "pentatron/base/error.h"
#include "tests/kernels/emulated_gemm.h"
#include "tests/kernels/gemm_cases.h"

namespace pentatron::kernels {
namespace {

using namespace testing;
using ::testing::TestWithParam;
using ::testing::ValuesIn;

struct Subject {
  std::string_view entry;
  DType in, out;
};

std::vector<Subject> subjects(bool ordered_only) {
  std::vector<Subject> result = {{"avx512", DType::kFloat32, DType::kFloat32},
                                 {"avx2", DType::kFloat32, DType::kFloat32}};
  if (!ordered_only) result.push_back({"mkl", DType::kFloat32, DType::kFloat32});
  for (const DType out : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::string_view entry : {"amx_bf16", "amx_bf16_emulated", "avx512_bf16", "avx2"})
      result.push_back({entry, DType::kBFloat16, out});
    if (!ordered_only) result.push_back({"mkl_bf16", DType::kBFloat16, out});
  }
  for (const DType out : {DType::kFloat32, DType::kFloat16})
    for (const std::string_view entry : {"avx2", "widened"})
      result.push_back({entry, DType::kFloat16, out});
  return result;
}

/// Every entry but the reference, with every pair of types it takes.
class Gemm : public TestWithParam<Subject> {
 protected:
  void SetUp() override {
    if (GetParam().entry == emulated_gemm_entry().name) entry_ = emulated_gemm_entry();
    for (const Entry<GemmArgs>& entry : gemm_entries())
      if (entry.name == GetParam().entry) entry_ = entry;
    ASSERT_NE(entry_.run, nullptr) << "there is no entry " << GetParam().entry;
    const std::string reason =
        entry_.refuse({.in_dtype = GetParam().in, .out_dtype = GetParam().out}, {});
    if (!reason.empty()) GTEST_SKIP() << GetParam().entry << " " << reason;
  }
  void run(const GemmArgs& args) const { entry_.run(args, {}); }
  void expect_correct(const Problem& p) const;

 private:
  Entry<GemmArgs> entry_{};
};
/// The entries that keep the order of sums.
class OrderedGemm : public Gemm {};

const auto name_of = [](const auto& info) {
  return fmt::format("{}_{}_{}", info.param.entry, name(info.param.in), name(info.param.out));
};
INSTANTIATE_TEST_SUITE_P(Entries, Gemm, ValuesIn(subjects(false)), name_of);
INSTANTIATE_TEST_SUITE_P(Entries, OrderedGemm, ValuesIn(subjects(true)), name_of);

/// Compares with a double sum. The bound is that of fp32 sums of k terms against the sum of their
/// magnitudes.
void Gemm::expect_correct(const Problem& p) const {
  SCOPED_TRACE(describe(p));
  Data d = make(p);
  attach(d, p.bias);
  const Matrix before = d.c;
  run(d.args);
  const std::vector<double> a = widened(d.a, p.transpose_a, p.m, p.k),
                            b = widened(d.b, !p.transpose_b, p.n, p.k);
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const double *const x = a.data() + i * p.k, *const y = b.data() + j * p.k;
      double sum = 0, size = 0;
#pragma omp simd reduction(+ : sum, size)
      for (int64_t l = 0; l < p.k; ++l) {
        sum += x[l] * y[l];
        size += std::abs(x[l] * y[l]);
      }
      if (p.accumulate) sum += before.get(i, j), size += std::abs(before.get(i, j));
      if (p.bias) sum += d.bias.get(0, j), size += std::abs(d.bias.get(0, j));
      double bound = 4e-7 * size + 1e-30;
      if (p.k > 64) bound = 1.2e-7 * std::sqrt(static_cast<double>(p.k)) * size;
      if (p.out == DType::kBFloat16) bound += std::abs(sum) / 256;
      if (p.out == DType::kFloat16) bound += std::abs(sum) / 2048 + 0x1p-25;
      ASSERT_NEAR(d.c.get(i, j), sum, bound) << "at " << i << "," << j;
    }
    // Nothing is written past the row.
    for (int64_t j = p.n; j < d.c.ld(); ++j)
      ASSERT_TRUE(std::isnan(d.c.get(i, j))) << "margin written at " << i << "," << j;
  }
}

TEST_P(Gemm, AgreesWithADoubleSumForOddSizesAndAllTransposes) {
  std::mt19937 generator(7);
  std::uniform_int_distribution<int> size(1, 67), bit(0, 1), pad(0, 5);
  for (int i = 0; i < 400; ++i) {
    Problem p{size(generator), size(generator), size(generator)};
    p.transpose_a = bit(generator);
    p.transpose_b = bit(generator);
    p.in = GetParam().in;
    p.out = GetParam().out;
    p.accumulate = bit(generator);
    p.bias = bit(generator);
    p.bias_dtype = bit(generator)            ? DType::kFloat32
                   : p.in == DType::kFloat16 ? DType::kFloat16
                                             : DType::kBFloat16;
    p.pad = pad(generator);
    p.shift = static_cast<int64_t>(bit(generator)) * static_cast<int64_t>(element_size(p.out));
    expect_correct(p);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Gemm, AgreesWithADoubleSumAcrossBlocksOfEveryDimension) {
  for (int transposes = 0; transposes < 4; ++transposes) {
    for (const bool accumulate : {false, true}) {
      for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{200, 40, 1601},
                                    {30, 1100, 70},
                                    {1, 300, 900},
                                    {1100, 33, 800}}) {
        expect_correct({m, n, k, (transposes & 1) != 0, (transposes & 2) != 0, GetParam().in,
                        GetParam().out, accumulate, true});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Gemm, WithoutProductsGivesOldValuesAndBias) {
  expect_correct({5, 19, 0, false, false, GetParam().in, GetParam().out, false, true});
  expect_correct({5, 19, 0, true, true, GetParam().in, GetParam().out, true, true});
  expect_correct({5, 19, 0, true, true, GetParam().in, GetParam().out, false, false});
}

TEST_P(OrderedGemm, BitsDoNotDependOnTheNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const auto& [m, n, k, transpose_b] :
       {std::tuple<int64_t, int64_t, int64_t, bool>{301, 517, 1233, false},
        {3, 1999, 771, false},
        {3, 1030, 771, true},
        {17, 350, 900, true},
        {777, 5, 900, false}}) {
    std::vector<std::byte> first;
    Data d = make({m, n, k, true, transpose_b, GetParam().in, GetParam().out, true, true});
    attach(d, true);
    const Matrix before = d.c;
    for (const int t : {1, 2, 3, 4, 7}) {
      omp_set_num_threads(t);
      d.c.take(before);
      run(d.args);
      if (t == 1) {
        first = d.c.bytes();
      } else {
        EXPECT_EQ(d.c.bytes(), first) << t << " threads";
      }
    }
  }
  omp_set_num_threads(threads);
}

TEST_P(OrderedGemm, LargeResultsAreTheSameAtEveryAddress) {
  // Some entries write those that begin whole lines of the cache past the caches.
  const auto size = static_cast<int64_t>(element_size(GetParam().out));
  for (const int64_t n : {1024, 1000, 800}) {
    constexpr int64_t kM = 700;
    Data d = make({kM, n, 70, true, false, GetParam().in, GetParam().out, false, true});
    attach(d, true);
    std::vector<std::byte> first;
    for (const int64_t margin : {0, 32, 3}) { // of rows
      const int64_t ld = n + margin;
      for (const int64_t shift : {0, 64, 4}) { // of the address
        std::vector<std::byte> memory(static_cast<size_t>(kM * ld * size + 192), std::byte{0xff});
        const auto begin = reinterpret_cast<uintptr_t>(memory.data());
        std::byte* const c = memory.data() + (64 - begin % 64) + shift;
        d.args.c = c;
        d.args.ldc = ld;
        run(d.args);
        std::vector<std::byte> rows;
        for (int64_t i = 0; i < kM; ++i) {
          std::byte* const row = c + i * ld * size;
          rows.insert(rows.end(), row, row + n * size);
          for (std::byte* p = row + n * size; p < row + ld * size; ++p)
            ASSERT_EQ(*p, std::byte{0xff}) << "margin written in row " << i;
        }
        if (first.empty()) first = rows;
        EXPECT_EQ(rows, first) << n << " columns, margin " << margin << ", shift " << shift;
      }
    }
    // Old content that counts: all rows at once, and few at a time, which are never large.
    const auto in_size = static_cast<int64_t>(element_size(GetParam().in));
    std::vector<std::byte> start(first.size()), memory(first.size() + 64);
    for (size_t i = 0; i < start.size(); ++i) // finite numbers of either type
      start[i] = static_cast<std::byte>(i % 2 == 0 ? i % 251 : 0x3f);
    std::byte* const lines = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    std::vector<std::byte> whole, parts = start;
    d.args.ldc = n;
    d.args.accumulate = true;
    d.args.c = lines;
    std::ranges::copy(start, lines);
    run(d.args);
    whole.assign(lines, lines + start.size());
    GemmArgs few = d.args;
    for (int64_t i = 0; i < kM; i += few.m) {
      few.m = std::min<int64_t>(100, kM - i);
      few.a = static_cast<const char*>(d.args.a) + i * in_size; // op(A) is transposed
      few.c = parts.data() + i * n * size;
      run(few);
    }
    EXPECT_EQ(whole, parts);
    EXPECT_NE(whole, first);
  }
}

TEST_P(OrderedGemm, ARowIsTheSameAloneAndAmongOthers) {
  for (const int64_t k : {31, 1000, 1601, 3301}) {
    Data all = make({150, 70, k, false, true, GetParam().in, GetParam().out, true, true});
    attach(all, true);
    Matrix c = all.c; // of few rows
    const Matrix before = c;
    run(all.args);
    for (const int64_t rows : {1, 2, 3, 4, 5}) {
      for (const int64_t row : {0, 13, 77, 145}) {
        GemmArgs few = all.args;
        few.m = rows;
        const auto size = static_cast<int64_t>(element_size(GetParam().in));
        few.a = static_cast<const char*>(few.a) + row * few.lda * size;
        c.take(before);
        few.c = static_cast<char*>(c.data()) +
                row * few.ldc * static_cast<int64_t>(element_size(GetParam().out));
        run(few);
        for (int64_t i = row; i < row + rows; ++i) {
          for (int64_t j = 0; j < 70; ++j)
            ASSERT_EQ(c.get(i, j), all.c.get(i, j))
                << rows << " rows from " << row << ": row " << i << " column " << j;
        }
      }
    }
  }
}

TEST_P(Gemm, NanAndInfinityReachTheirRowAndColumnOnly) {
  for (const auto& [value, k] : {std::pair<float, int64_t>{kFloatNan, 33},
                                 {kFloatInf, 33},
                                 {kFloatNan, 1601},
                                 {kFloatInf, 1601}}) {
    Data d = make({20, 40, k, false, true, GetParam().in, GetParam().out, false, false});
    attach(d, false);
    d.a.set(3, k - 1, value);
    d.b.set(17, 0, value);
    run(d.args);
    for (int64_t i = 0; i < 20; ++i) {
      for (int64_t j = 0; j < 40; ++j) {
        const float x = d.c.get(i, j);
        if (i != 3 && j != 17) {
          ASSERT_TRUE(std::isfinite(x)) << i << "," << j;
        } else if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(x)) << i << "," << j;
        } else {
          ASSERT_FALSE(std::isfinite(x)) << i << "," << j;
        }
      }
    }
  }
}

TEST_P(OrderedGemm, BatchesRunEveryItemWithItsStrides) {
  constexpr int64_t kBatch = 5;
  // The second: few rows, and enough of B for several threads.
  for (const auto& [m, n, k, transpose_b] :
       {std::tuple<int64_t, int64_t, int64_t, bool>{9, 35, 21, false}, {3, 450, 601, true}}) {
    for (const int threads : {1, 2, 8}) {
      const int before = omp_get_max_threads();
      omp_set_num_threads(threads);
      const Problem p{kBatch * m,     n,     k,    false, transpose_b, GetParam().in,
                      GetParam().out, false, false};
      Data d = make(p);
      attach(d, false);
      d.args.m = m;
      d.args.batch = kBatch;
      d.args.stride_a = m * k;
      d.args.stride_b = 0;
      d.args.stride_c = m * n;
      run(d.args);
      omp_set_num_threads(before);
      Data whole = make(p);
      attach(whole, false);
      run(whole.args);
      EXPECT_EQ(d.c.bytes(), whole.c.bytes()) << threads << " threads, " << m << " rows";
    }
  }
}

TEST_P(OrderedGemm, OfALowerTriangleHasTheBitsOfTheWholeAndLeavesOutTheRest) {
  const auto size = static_cast<int64_t>(element_size(GetParam().out));
  for (const auto& [n, k, batch] : {std::tuple<int64_t, int64_t, int64_t>{1, 3, 1},
                                    {33, 40, 1},
                                    {500, 90, 1},
                                    {1100, 40, 1},
                                    {230, 900, 3}}) {
    for (const int threads : {1, 2, 5}) {
      const int before = omp_get_max_threads();
      omp_set_num_threads(threads);
      const auto product = [&](bool lower) {
        Data d = make({batch * n, n, k, false, true, GetParam().in, GetParam().out, false, false});
        attach(d, false);
        d.args.m = n;
        d.args.batch = batch;
        d.args.stride_a = n * k;
        d.args.stride_c = n * n;
        d.args.lower = lower;
        run(d.args);
        return d;
      };
      Data whole = product(false), half = product(true);
      omp_set_num_threads(before);
      for (int64_t i = 0; i < batch * n; ++i) {
        const auto row = [&](Data& d) {
          return static_cast<const char*>(d.c.data()) + i * n * size;
        };
        ASSERT_EQ(std::memcmp(row(whole), row(half), static_cast<size_t>((i % n + 1) * size)), 0)
            << "row " << i << " of " << n << ", " << threads << " threads";
      }
      if (n < 500 || GetParam().entry == "widened") continue; // which works by large panels
      EXPECT_TRUE(std::isnan(half.c.get(0, n - 1))) << "computed, " << threads << " threads";
    }
  }
}

TEST_P(OrderedGemm, RunsInsideAParallelRegionAndOnManyThreadsAtOnce) {
  Data expected = make({40, 70, 300, false, true, GetParam().in, GetParam().out, false, false});
  attach(expected, false);
  run(expected.args);
  std::vector<std::thread> threads;
  std::vector<Data> results;
  for (int t = 0; t < 4; ++t)
    results.push_back(
        make({40, 70, 300, false, true, GetParam().in, GetParam().out, false, false}));
  for (Data& d : results) {
    attach(d, false);
    threads.emplace_back([this, &d] {
      for (int i = 0; i < 20; ++i) run(d.args);
    });
  }
  for (std::thread& t : threads) t.join();
  for (Data& d : results) EXPECT_EQ(d.c.bytes(), expected.c.bytes());
#pragma omp parallel for num_threads(2)
  for (int t = 0; t < 4; ++t) run(results[static_cast<size_t>(t)].args);
  for (Data& d : results) EXPECT_EQ(d.c.bytes(), expected.c.bytes());
}

/// Adds two rows whose columns are the pairs of `first` and `second`, again and again, in every
/// entry that takes the type: in fewer columns than a vector, in whole tiles and beyond them.
void expect_sums(DType dtype, const std::vector<float>& first, const std::vector<float>& second,
                 const std::vector<float>& expected) {
  const auto bits = dtype == DType::kBFloat16 ? bf16_bits : fp16_bits;
  const auto value = dtype == DType::kBFloat16 ? from_bf16 : from_fp16;
  const uint16_t a[2] = {bits(1), bits(1)};
  for (const Entry<GemmArgs>& entry : gemm_entries()) {
    for (const int64_t n : {static_cast<int64_t>(first.size()), int64_t{48}, int64_t{83}}) {
      const auto pair = [&](int64_t j) { return static_cast<size_t>(j) % first.size(); };
      std::vector<uint16_t> b(static_cast<size_t>(2 * n)), c(static_cast<size_t>(n));
      for (int64_t j = 0; j < n; ++j) {
        b[static_cast<size_t>(j)] = bits(first[pair(j)]);
        b[static_cast<size_t>(n + j)] = bits(second[pair(j)]);
      }
      const GemmArgs args{.m = 1,
                          .n = n,
                          .k = 2,
                          .in_dtype = dtype,
                          .out_dtype = dtype,
                          .a = a,
                          .lda = 2,
                          .b = b.data(),
                          .ldb = n,
                          .c = c.data(),
                          .ldc = n};
      if (!entry.refuse(args, {}).empty()) continue;
      entry.run(args, {});
      for (int64_t j = 0; j < n; ++j)
        ASSERT_EQ(value(c[static_cast<size_t>(j)]), expected[pair(j)])
            << entry.name << ", column " << j << " of " << n;
    }
  }
}

TEST(GemmBf16, RoundsOnceToNearestEven) {
  // 1 + e for e = 2^-8 (tie, to even: 1), 3 2^-8 (tie, to even: 1 + 2^-6), just above a tie, and a
  // sum that only fp32 holds.
  constexpr float e = 0x1p-8F;
  expect_sums(DType::kBFloat16, {1, 1, 1, 256, 2}, {e, 3 * e, e * 1.0078125F, -255, 0},
              {1, 1 + 0x1p-6F, 1 + 0x1p-7F, 1, 2});
}

TEST(GemmFp16, RoundsOnceToNearestEvenAndOverflowsToInfinity) {
  // 1 + e for e = 2^-11 (tie, to even: 1), 3 2^-11 (to even: 1 + 2^-9); 65504 + 15 stays, 65504 +
  // 16 does not; a result that is not normal.
  expect_sums(DType::kFloat16, {1, 1, 65504, 65504, 0x1p-24F},
              {0x1p-11F, 3 * 0x1p-11F, 15, 16, 0x1p-23F},
              {1, 1 + 0x1p-9F, 65504, kFloatInf, 3 * 0x1p-24F});
}

TEST(GemmReference, TakesFloat64) {
  const double a[2] = {1.0 + 1e-15, 2}, b[2] = {3, 4};
  double c = 5;
  gemm({.m = 1,
        .n = 1,
        .k = 2,
        .in_dtype = DType::kFloat64,
        .out_dtype = DType::kFloat64,
        .a = a,
        .lda = 2,
        .b = b,
        .ldb = 1,
        .c = &c,
        .ldc = 1,
        .accumulate = true});
  EXPECT_DOUBLE_EQ(c, 5 + 3 * (1.0 + 1e-15) + 8);
}

TEST(GemmReference, AgreesWithTheFirstEntry) {
  for (const auto& [in, out] : {std::pair{DType::kFloat32, DType::kFloat32},
                                {DType::kBFloat16, DType::kBFloat16},
                                {DType::kFloat16, DType::kFloat16}}) {
    Data x = make({17, 23, 31, true, true, in, out, true, true}),
         y = make({17, 23, 31, true, true, in, out, true, true});
    attach(x, true);
    attach(y, true);
    gemm(x.args);
    gemm_reference(y.args, {});
    const float bound = out == DType::kBFloat16 ? 0.01F : out == DType::kFloat16 ? 1e-3F : 1e-5F;
    for (int64_t i = 0; i < 17; ++i) {
      for (int64_t j = 0; j < 23; ++j)
        EXPECT_NEAR(x.c.get(i, j), y.c.get(i, j), bound * (1 + std::abs(y.c.get(i, j))));
    }
  }
}

TEST(GemmErrors, NameTheContradiction) {
  float x[64] = {};
  GemmArgs args{.m = 4, .n = 4, .k = 4, .a = x, .lda = 3, .b = x, .ldb = 4, .c = x, .ldc = 4};
  EXPECT_THROW(gemm(args), ShapeError);
  args.lda = 4;
  args.out_dtype = DType::kBFloat16;
  EXPECT_EQ(gemm_entry(args), "none");
  try {
    gemm(args);
    FAIL() << "float32 to bfloat16 is not in the contract";
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("float32"), std::string::npos) << e.what();
  }
  args.in_dtype = args.out_dtype = DType::kFloat64;
  EXPECT_FALSE(gemm_supported(args));
  EXPECT_EQ(gemm_entry(args), "reference");
}

TEST(GemmBuffers, AreKeptBetweenCallsAndGivenBack) {
  GemmArgs args;
  if (!gemm_supported(args)) GTEST_SKIP() << "the reference needs no buffers";
  Data d = make({64, 64, 64});
  attach(d, false);
  gemm_release_buffers();
  EXPECT_EQ(gemm_buffer_bytes(), 0);
  gemm(d.args);
  const int64_t held = gemm_buffer_bytes();
  EXPECT_GT(held, 0);
  for (int i = 0; i < 10; ++i) gemm(d.args);
  EXPECT_EQ(gemm_buffer_bytes(), held);
  gemm_release_buffers();
  EXPECT_EQ(gemm_buffer_bytes(), 0);
}

} // namespace
} // namespace pentatron::kernels
