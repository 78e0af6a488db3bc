#include "pentatron/kernels/cross_entropy/cross_entropy.h"

#include <cmath>
#include <random>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/from_blob.h>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

/// Logits, targets and outputs of one problem, unaligned and with gaps between rows.
struct Problem {
  DType dtype, out_dtype;
  int64_t rows, columns, padded, stride, out_stride;
  Array logits, gradient, row_scale, lse, loss;
  std::vector<int64_t> target;
  double smoothing = 0, z_loss = 0;

  Problem(DType dtype, DType out_dtype, int64_t rows, int64_t columns)
      : dtype(dtype), out_dtype(out_dtype), rows(rows), columns(columns), padded(columns + 5),
        stride(columns + 7), out_stride(columns + 6), logits(dtype, rows * stride),
        gradient(out_dtype, rows * out_stride, 77, 3), row_scale(acc_dtype(dtype), rows),
        lse(acc_dtype(dtype), rows), loss(acc_dtype(dtype), rows),
        target(static_cast<size_t>(rows)) {
    // expect_close leaves no room for an fp16 subnormal that is rounded to its neighbour; among
    // these numbers there is none.
    std::mt19937_64 generator(1);
    std::normal_distribution<double> normal(0, 3);
    logits.fill([&](int64_t) { return normal(generator); });
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = columns; j < stride; ++j) logits.set(r * stride + j, kNaN);
      target[static_cast<size_t>(r)] = r % 4 == 3 ? -1 : (r * 7919) % columns;
    }
    row_scale.fill([](int64_t r) { return 0.25 + 0.5 * static_cast<double>(r % 3); });
  }

  double logit(int64_t r, int64_t j) const { return logits[r * stride + j]; }
  void set_logit(int64_t r, int64_t j, double x) { logits.set(r * stride + j, x); }
  double grad(int64_t r, int64_t j) const { return gradient[r * out_stride + j]; }
  double total() const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += loss[r] * row_scale[r];
    return sum;
  }

  CrossEntropyArgs args() {
    return {.dtype = dtype,
            .out_dtype = out_dtype,
            .rows = rows,
            .columns = columns,
            .padded_columns = padded,
            .row_stride = stride,
            .out_row_stride = out_stride,
            .logits = logits.data(),
            .target = target.data(),
            .row_scale = row_scale.data(),
            .label_smoothing = smoothing,
            .z_loss = z_loss,
            .lse = lse.data(),
            .loss = loss.data(),
            .gradient = gradient.data()};
  }
};

template <class Args>
const Entry<Args>& entry(std::span<const Entry<Args>> entries, std::string_view name) {
  for (const Entry<Args>& e : entries) {
    if (e.name == name) return e;
  }
  throw ShapeError("no such entry");
}

/// Every result of `p` is that of `q` to the roundings of their dtypes.
void expect_close(const Problem& p, const Problem& q) {
  const double acc = 4 * epsilon(acc_dtype(p.dtype));
  const double rounding = epsilon(p.out_dtype) / 2;
  // A subnormal of fp16; the cancellation at a target that is likely, which fp64 shows.
  const double least = p.out_dtype == DType::kFloat16   ? std::ldexp(1.0, -24)
                       : p.out_dtype == DType::kFloat64 ? 2 * acc
                                                        : 0;
  for (int64_t r = 0; r < p.rows; ++r) {
    ASSERT_NEAR(p.loss[r], q.loss[r], acc * (1 + std::abs(q.lse[r]))) << "row " << r;
    ASSERT_NEAR(p.lse[r], q.lse[r], acc * (1 + std::abs(q.lse[r]))) << "row " << r;
    for (int64_t j = 0; j < p.out_stride; ++j) {
      const double expected = q.grad(r, j);
      ASSERT_NEAR(p.grad(r, j), expected,
                  (3 * rounding + 2 * acc) * std::abs(expected) +
                      acc * 0.1 / static_cast<double>(p.columns) + acc * 0.01 + least)
          << "row " << r << " column " << j;
    }
  }
}

struct EntropyCase {
  const char* entry;
  DType dtype, out_dtype;
  int64_t columns;
};
class CrossEntropySimd : public ::testing::TestWithParam<EntropyCase> {};

TEST_P(CrossEntropySimd, AgreesWithReference) {
  const EntropyCase& c = GetParam();
  const Entry<CrossEntropyArgs>& e = entry(cross_entropy_entries(), c.entry);
  for (const double smoothing : {0.0, 0.1}) {
    Problem p(c.dtype, c.out_dtype, 9, c.columns), q(c.dtype, c.out_dtype, 9, c.columns);
    p.smoothing = q.smoothing = smoothing;
    p.z_loss = q.z_loss = smoothing * 1e-2;
    const CrossEntropyArgs a = p.args();
    if (const std::string reason = e.refuse(a, {}); !reason.empty()) GTEST_SKIP() << reason;
    e.run(a, {});
    entry(cross_entropy_entries(), "reference").run(q.args(), {});
    expect_close(p, q);
  }
}

TEST_P(CrossEntropySimd, StatsAndGradientAgreeWithReference) {
  const EntropyCase& c = GetParam();
  Problem p(c.dtype, c.out_dtype, 9, c.columns), q(c.dtype, c.out_dtype, 9, c.columns);
  const auto run = [&](Problem& x, const char* name) {
    Array max(acc_dtype(c.dtype), 9), sum_exp = max, target_logit = max, logit_sum = max;
    const CrossEntropyStatsArgs s{.dtype = c.dtype,
                                  .rows = 9,
                                  .columns = c.columns,
                                  .row_stride = x.stride,
                                  .logits = x.logits.data(),
                                  .target = x.target.data(),
                                  .vocab_offset = 0,
                                  .max = max.data(),
                                  .sum_exp = sum_exp.data(),
                                  .target_logit = target_logit.data(),
                                  .logit_sum = logit_sum.data()};
    const auto& stats = entry(cross_entropy_stats_entries(), name);
    if (!stats.refuse(s, {}).empty()) return false;
    stats.run(s, {});
    cross_entropy_loss({.dtype = acc_dtype(c.dtype),
                        .rows = 9,
                        .target = x.target.data(),
                        .max = max.data(),
                        .sum_exp = sum_exp.data(),
                        .target_logit = target_logit.data(),
                        .logit_sum = logit_sum.data(),
                        .global_vocab = c.columns,
                        .label_smoothing = 0.2,
                        .z_loss = 1e-3,
                        .lse = x.lse.data(),
                        .loss = x.loss.data()});
    entry(cross_entropy_gradient_entries(), name)
        .run({.dtype = c.dtype,
              .out_dtype = c.out_dtype,
              .rows = 9,
              .columns = c.columns,
              .padded_columns = x.padded,
              .row_stride = x.stride,
              .out_row_stride = x.out_stride,
              .logits = x.logits.data(),
              .target = x.target.data(),
              .vocab_offset = 0,
              .max = max.data(),
              .sum_exp = sum_exp.data(),
              .row_scale = x.row_scale.data(),
              .global_vocab = c.columns,
              .label_smoothing = 0.2,
              .z_loss = 1e-3,
              .gradient = x.gradient.data()},
             {});
    return true;
  };
  if (!run(p, c.entry)) GTEST_SKIP() << "refused";
  ASSERT_TRUE(run(q, "reference"));
  expect_close(p, q);
}

std::vector<EntropyCase> entropy_cases() {
  std::vector<EntropyCase> all;
  std::vector<const char*> names = {"avx2", "avx512"};
  for (const auto& entry : cross_entropy_stats_entries())
    if (entry.name == "cuda") names.push_back("cuda"); // emulated
  for (const char* name : names) {
    for (const int64_t columns : {1, 7, 16, 31, 130, 2049, 5003}) {
      // The gradient of one column is cancellation alone, and CUDA's terms round otherwise.
      if (columns == 1 && std::string_view(name) == "cuda") continue;
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        all.push_back({name, dtype, dtype, columns});
      }
      if (std::string_view(name) == "cuda")
        all.push_back({name, DType::kFloat64, DType::kFloat64, columns});
      all.push_back({name, DType::kFloat32, DType::kBFloat16, columns});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(, CrossEntropySimd, ::testing::ValuesIn(entropy_cases()),
                         [](const auto& info) {
                           return fmt::format("{}_{}_{}_{}", info.param.entry,
                                              name(info.param.dtype), name(info.param.out_dtype),
                                              info.param.columns);
                         });

/// The public calls, whichever entry they take, for every dtype.
class CrossEntropyOf : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, CrossEntropyOf,
                         ::testing::Values(DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                                           DType::kFloat16),
                         [](const auto& info) { return std::string(name(info.param)); });

TEST(CrossEntropy, UniformLogitsCostLogOfVocabulary) {
  Problem p(DType::kFloat64, DType::kFloat64, 1, 50);
  for (int64_t j = 0; j < 50; ++j) p.set_logit(0, j, -2.5);
  cross_entropy(p.args());
  EXPECT_DOUBLE_EQ(p.loss[0], std::log(50.0));
  EXPECT_NEAR(p.lse[0], std::log(50.0) - 2.5, 1e-15);
  EXPECT_NEAR(p.grad(0, 1), p.row_scale[0] / 50, 1e-16);
  EXPECT_NEAR(p.grad(0, 0), p.row_scale[0] * (1.0 / 50 - 1), 1e-16);
}

TEST(CrossEntropy, GradientIsTheFiniteDifferenceOfTheLoss) {
  Problem p(DType::kFloat64, DType::kFloat64, 4, 11);
  p.smoothing = 0.15;
  p.z_loss = 0.02;
  cross_entropy(p.args());
  Problem q(DType::kFloat64, DType::kFloat64, 4, 11);
  q.smoothing = 0.15;
  q.z_loss = 0.02;
  CrossEntropyArgs loss_only = q.args();
  loss_only.gradient = nullptr;
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t j = 0; j < 11; ++j) {
      const double x = q.logit(r, j), step = 1e-5;
      q.set_logit(r, j, x + step);
      cross_entropy(loss_only);
      const double up = q.total();
      q.set_logit(r, j, x - step);
      cross_entropy(loss_only);
      const double down = q.total();
      q.set_logit(r, j, x);
      EXPECT_NEAR(p.grad(r, j), (up - down) / (2 * step), 1e-9) << r << "," << j;
    }
  }
}

TEST(CrossEntropy, MatchesTorchWithSmoothingAndIgnoredRows) {
  const int64_t rows = 6, columns = 300;
  Problem p(DType::kFloat64, DType::kFloat64, rows, columns);
  p.smoothing = 0.1;
  p.row_scale.fill(1.0);
  const at::Tensor logits =
      at::from_blob(p.logits.data(), {rows, columns}, {p.stride, 1}, at::kDouble)
          .clone()
          .set_requires_grad(true);
  const at::Tensor target = at::from_blob(p.target.data(), {rows}, at::kLong);
  const at::Tensor loss = at::cross_entropy_loss(logits, target, {}, at::Reduction::None, -1, 0.1);
  loss.sum().backward();
  cross_entropy(p.args());
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_NEAR(p.loss[r], loss[r].item<double>(), 1e-13);
    for (int64_t j = 0; j < columns; ++j) {
      EXPECT_NEAR(p.grad(r, j), logits.grad()[r][j].item<double>(), 1e-15);
    }
  }
}

TEST_P(CrossEntropyOf, ShardsWithPaddingAndAnEmptyOneGiveTheWhole) {
  const DType dtype = GetParam();
  const DType acc = acc_dtype(dtype);
  const int64_t rows = 8, vocab = 700;
  Problem whole(dtype, dtype, rows, vocab), split(dtype, dtype, rows, vocab);
  whole.smoothing = 0.1;
  whole.z_loss = 1e-3;
  cross_entropy(whole.args());

  const std::vector<int64_t> edges = {0, 256, 512, 700, 700};
  struct Shard {
    Array max, sum_exp, target_logit, logit_sum;
  };
  std::vector<Shard> shards;
  Array max(acc, rows), sum_exp(acc, rows), target_logit(acc, rows), logit_sum(acc, rows);
  max.fill(-kInf);
  for (size_t s = 0; s + 1 < edges.size(); ++s) {
    Shard& shard = shards.emplace_back(Shard{max, max, max, max});
    cross_entropy_stats({.dtype = dtype,
                         .rows = rows,
                         .columns = edges[s + 1] - edges[s],
                         .row_stride = split.stride,
                         .logits = split.logits.at(edges[s]),
                         .target = split.target.data(),
                         .vocab_offset = edges[s],
                         .max = shard.max.data(),
                         .sum_exp = shard.sum_exp.data(),
                         .target_logit = shard.target_logit.data(),
                         .logit_sum = shard.logit_sum.data()});
  }
  for (const Shard& s : shards) max.fill([&](int64_t r) { return std::max(max[r], s.max[r]); });
  for (Shard& s : shards) {
    cross_entropy_rescale({.dtype = acc,
                           .rows = rows,
                           .local_max = s.max.data(),
                           .global_max = max.data(),
                           .sum_exp = s.sum_exp.data()});
    sum_exp.fill([&](int64_t r) { return sum_exp[r] + s.sum_exp[r]; });
    target_logit.fill([&](int64_t r) { return target_logit[r] + s.target_logit[r]; });
    logit_sum.fill([&](int64_t r) { return logit_sum[r] + s.logit_sum[r]; });
  }
  cross_entropy_loss({.dtype = acc,
                      .rows = rows,
                      .target = split.target.data(),
                      .max = max.data(),
                      .sum_exp = sum_exp.data(),
                      .target_logit = target_logit.data(),
                      .logit_sum = logit_sum.data(),
                      .global_vocab = vocab,
                      .label_smoothing = 0.1,
                      .z_loss = 1e-3,
                      .lse = split.lse.data(),
                      .loss = split.loss.data()});
  for (size_t s = 0; s + 1 < edges.size(); ++s) {
    const int64_t columns = edges[s + 1] - edges[s];
    Array part(dtype, rows * 256);
    part.fill(77.0);
    cross_entropy_gradient({.dtype = dtype,
                            .out_dtype = dtype,
                            .rows = rows,
                            .columns = columns,
                            .padded_columns = 256,
                            .row_stride = split.stride,
                            .out_row_stride = 256,
                            .logits = split.logits.at(edges[s]),
                            .target = split.target.data(),
                            .vocab_offset = edges[s],
                            .max = max.data(),
                            .sum_exp = sum_exp.data(),
                            .row_scale = split.row_scale.data(),
                            .global_vocab = vocab,
                            .label_smoothing = 0.1,
                            .z_loss = 1e-3,
                            .gradient = part.data()});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < 256; ++j) {
        const double g = part[r * 256 + j];
        if (j < columns) {
          split.gradient.set(r * split.out_stride + edges[s] + j, g);
        } else {
          ASSERT_EQ(g, 0.0) << "padding of shard " << s;
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = vocab; j < split.padded; ++j) split.gradient.set(r * split.out_stride + j, 0);
  }
  expect_close(split, whole);
}

TEST_P(CrossEntropyOf, InPlaceEqualsOutOfPlace) {
  Problem p(GetParam(), GetParam(), 5, 333), q(GetParam(), GetParam(), 5, 333);
  cross_entropy(p.args());
  CrossEntropyArgs a = q.args();
  a.gradient = q.logits.data();
  a.out_row_stride = a.row_stride;
  cross_entropy(a);
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t j = 0; j < p.padded; ++j) ASSERT_EQ(p.grad(r, j), q.logit(r, j));
  }
  EXPECT_TRUE(p.loss.same_bits(q.loss));
}

CrossEntropyGradientArgs gradient_args(Problem& p, const Array& max, const Array& sum_exp) {
  return {.dtype = p.dtype,
          .out_dtype = p.out_dtype,
          .rows = p.rows,
          .columns = p.columns,
          .padded_columns = p.padded,
          .row_stride = p.stride,
          .out_row_stride = p.out_stride,
          .logits = p.logits.data(),
          .target = p.target.data(),
          .max = max.data(),
          .sum_exp = sum_exp.data(),
          .row_scale = p.row_scale.data(),
          .gradient = p.gradient.data()};
}

/// Runs an entry with a gradient of 16 bits beside fp32 logits, and over them.
template <class Args>
void compare_in_place(const Entry<Args>& entry, Problem& p, Problem& q, const Args& apart,
                      Args over) {
  over.gradient = q.logits.data();
  over.out_row_stride = 2 * over.row_stride;
  // On a GPU the threads of a row would write over what others have not read.
  if (entry.name == "cuda" || !entry.refuse(over, {}).empty()) return;
  entry.run(apart, {});
  entry.run(over, {});
  const auto* wide = static_cast<const uint16_t*>(static_cast<const void*>(q.logits.data()));
  const auto* narrow = static_cast<const uint16_t*>(static_cast<const void*>(p.gradient.data()));
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t j = 0; j < p.padded; ++j) {
      ASSERT_EQ(wide[r * over.out_row_stride + j], narrow[r * p.out_stride + j])
          << entry.name << ": row " << r << " column " << j << " of " << p.columns;
    }
  }
}

TEST(CrossEntropyInPlace, ANarrowerGradientTakesThePlaceOfTheLogits) {
  Array max(DType::kFloat32, 5), sum_exp(DType::kFloat32, 5);
  max.fill(1);
  sum_exp.fill(20);
  for (const DType out : {DType::kBFloat16, DType::kFloat16}) {
    for (const int64_t columns : {1, 7, 64, 333, 5000}) {
      const auto problem = [&] { return Problem(DType::kFloat32, out, 5, columns); };
      for (const auto& entry : cross_entropy_entries()) {
        Problem p = problem(), q = problem();
        compare_in_place(entry, p, q, p.args(), q.args());
      }
      for (const auto& entry : cross_entropy_gradient_entries()) {
        Problem p = problem(), q = problem();
        compare_in_place(entry, p, q, gradient_args(p, max, sum_exp),
                         gradient_args(q, max, sum_exp));
      }
    }
  }
}

TEST(CrossEntropyInPlace, RowsThatLieOverUnreadOnesAreRefused) {
  Problem p(DType::kFloat32, DType::kBFloat16, 2, 8);
  CrossEntropyArgs a = p.args();
  a.gradient = p.logits.data();
  a.out_row_stride = a.row_stride;
  EXPECT_THROW(cross_entropy(a), ShapeError);
  a.out_row_stride = 2 * a.row_stride;
  EXPECT_NO_THROW(cross_entropy(a));
}

TEST_P(CrossEntropyOf, PaddingIsNotReadAndItsGradientIsZero) {
  Problem p(GetParam(), GetParam(), 4, 65); // columns past 65 hold NaN
  cross_entropy(p.args());
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(std::isfinite(p.loss[r]));
    for (int64_t j = 65; j < p.padded; ++j) EXPECT_EQ(p.grad(r, j), 0.0);
    EXPECT_EQ(p.grad(r, p.padded), 77.0) << "past the padding nothing is written";
  }
}

TEST_P(CrossEntropyOf, IgnoredRowsAreZeroWhateverTheyHold) {
  Problem p(GetParam(), GetParam(), 6, 50);
  p.target.assign(6, -100);
  for (int64_t j = 0; j < 50; ++j) {
    p.set_logit(1, j, kNaN);
    p.set_logit(2, j, kInf);
    p.set_logit(3, j, -kInf);
  }
  cross_entropy(p.args());
  for (int64_t r = 0; r < 6; ++r) {
    EXPECT_EQ(p.loss[r], 0.0);
    for (int64_t j = 0; j < p.padded; ++j) ASSERT_EQ(p.grad(r, j), 0.0);
  }
}

TEST_P(CrossEntropyOf, ExtremeLogitsStayExact) {
  Problem p(GetParam(), GetParam(), 3, 40);
  p.target = {5, 6, 7};
  p.row_scale.fill(1.0);
  for (int64_t j = 0; j < 40; ++j) {
    p.set_logit(0, j, j == 5 ? 1e4 : -1e4);
    p.set_logit(1, j, j == 5 ? 1e4 : -1e4);
    p.set_logit(2, j, 1e4);
  }
  cross_entropy(p.args());
  const double big = p.logit(0, 5); // 1e4 as the dtype holds it
  EXPECT_EQ(p.loss[0], 0.0);
  EXPECT_EQ(p.loss[1], 2 * big);
  EXPECT_NEAR(p.loss[2], std::log(40.0), GetParam() == DType::kFloat64 ? 1e-11 : 2e-3);
  EXPECT_EQ(p.grad(0, 5), 0.0);
  EXPECT_EQ(p.grad(1, 5), 1.0);
  EXPECT_EQ(p.grad(1, 6), -1.0);
  EXPECT_NEAR(p.grad(2, 3), 1.0 / 40, epsilon(GetParam()) / 2);
}

TEST_P(CrossEntropyOf, NotANumberSpoilsItsRowOnly) {
  for (const int64_t where : {0, 17, 2100}) {
    for (const double bad : {kNaN, kInf}) {
      Problem p(GetParam(), GetParam(), 3, 2101);
      p.target = {3, 4, 5};
      p.set_logit(1, where, bad);
      cross_entropy(p.args());
      EXPECT_TRUE(std::isnan(p.loss[1]));
      EXPECT_TRUE(std::isnan(p.grad(1, where)));
      EXPECT_TRUE(std::isnan(p.grad(1, 4)));
      for (const int64_t r : {0, 2}) {
        EXPECT_TRUE(std::isfinite(p.loss[r]));
        for (int64_t j = 0; j < 2101; ++j) ASSERT_TRUE(std::isfinite(p.grad(r, j)));
      }
    }
  }
}

TEST_P(CrossEntropyOf, MinusInfinityHasProbabilityZero) {
  Problem p(GetParam(), GetParam(), 2, 2100);
  p.target = {2099, 3};
  for (int64_t j = 0; j < 2099; ++j) p.set_logit(0, j, -kInf); // a whole tile of them first
  for (int64_t j = 0; j < 2100; ++j) p.set_logit(1, j, -kInf);
  cross_entropy(p.args());
  EXPECT_EQ(p.loss[0], 0.0);
  EXPECT_EQ(p.grad(0, 5), 0.0);
  EXPECT_EQ(p.grad(0, 2099), 0.0);
  EXPECT_TRUE(std::isnan(p.loss[1])) << "no probability to share out";
}

TEST_P(CrossEntropyOf, DoesNotDependOnTheNumberOfThreads) {
  Problem p(GetParam(), GetParam(), 13, 999);
  with_threads(1, [&] { cross_entropy(p.args()); });
  for (const int threads : {2, 5}) {
    Problem q(GetParam(), GetParam(), 13, 999);
    with_threads(threads, [&] { cross_entropy(q.args()); });
    EXPECT_TRUE(p.gradient.same_bits(q.gradient));
    EXPECT_TRUE(p.loss.same_bits(q.loss));
  }
}

TEST(CrossEntropy, VectorExponentialIsExactToThreeTenMillionths) {
  // With max = 0, sum_exp = 1 and the target elsewhere the gradient is exp(x).
  const int64_t n = 20000;
  Array x(DType::kFloat32, n), y(DType::kFloat32, n), max(DType::kFloat32, 1),
      one(DType::kFloat32, 1);
  x.fill(
      [&](int64_t i) { return -87.0 + 175.0 * static_cast<double>(i) / static_cast<double>(n); });
  one.set(0, 1);
  const int64_t target = n + 1;
  for (const char* isa : {"avx2", "avx512"}) {
    const CrossEntropyGradientArgs a{.dtype = DType::kFloat32,
                                     .out_dtype = DType::kFloat32,
                                     .rows = 1,
                                     .columns = n,
                                     .padded_columns = n,
                                     .row_stride = n,
                                     .out_row_stride = n,
                                     .logits = x.data(),
                                     .target = &target,
                                     .max = max.data(),
                                     .sum_exp = one.data(),
                                     .row_scale = one.data(),
                                     .gradient = y.data()};
    const auto& e = entry(cross_entropy_gradient_entries(), isa);
    if (!e.refuse(a, {}).empty()) continue;
    e.run(a, {});
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(y[i] / std::exp(x[i]) - 1));
    EXPECT_LE(worst, 2e-7) << isa;
  }
}

TEST(CrossEntropy, RefusesWhatItCannotDo) {
  Problem p(DType::kFloat64, DType::kFloat64, 2, 10);
  CrossEntropyArgs a = p.args();
  a.out_dtype = DType::kFloat32;
  EXPECT_THROW(cross_entropy(a), ShapeError);
  a = p.args();
  a.padded_columns = 9;
  EXPECT_THROW(cross_entropy(a), ShapeError);
  a = p.args();
  a.gradient = p.logits.data(); // other stride
  EXPECT_THROW(cross_entropy(a), ShapeError);
}

} // namespace
} // namespace pentatron::kernels
