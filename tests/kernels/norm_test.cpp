#include "pentatron/kernels/norm/norm.h"

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

struct NormCase {
  NormKind kind = NormKind::kRmsNorm;
  DType dtype = DType::kFloat64;
  int64_t rows = 3;
  int64_t cols = 5;
  bool residual = false;
  bool zero_centered = false;
};

/// Inputs and outputs of one forward and backward, x in rows that are `pad` elements apart.
struct Norm {
  explicit Norm(const NormCase& c, int64_t pad = 0, DType weight_dtype = DType::kFloat32)
      : c(c), stride(c.cols + pad),
        weight_dtype(c.dtype == DType::kFloat64 ? c.dtype : weight_dtype),
        x(Array::random(c.dtype, c.rows * stride, 1, 2.0, 0.5)),
        residual(Array::random(c.dtype, c.rows * c.cols, 2)),
        weight(Array::random(this->weight_dtype, c.cols, 3)),
        bias(Array::random(this->weight_dtype, c.cols, 4)),
        dy(Array::random(c.dtype, c.rows * c.cols, 5)),
        dsum(Array::random(c.dtype, c.rows * c.cols, 6)), sum(c.dtype, c.rows * c.cols),
        y(c.dtype, c.rows * c.cols), dx(c.dtype, c.rows * c.cols), mean(acc_dtype(c.dtype), c.rows),
        rstd(acc_dtype(c.dtype), c.rows), dweight(acc_dtype(c.dtype), c.cols, 0.25),
        dbias(acc_dtype(c.dtype), c.cols, -0.5) {}

  NormForward forward() {
    return {.kind = c.kind,
            .dtype = c.dtype,
            .weight_dtype = weight_dtype,
            .rows = c.rows,
            .cols = c.cols,
            .x = x.data(),
            .residual = c.residual ? residual.data() : nullptr,
            .sum = c.residual ? sum.data() : nullptr,
            .weight = weight.data(),
            .bias = c.kind == NormKind::kLayerNorm ? bias.data() : nullptr,
            .y = y.data(),
            .mean = mean.data(),
            .rstd = rstd.data(),
            .x_rows = {.stride = stride},
            .eps = 1e-5,
            .zero_centered = c.zero_centered};
  }
  NormBackward backward() {
    return {.kind = c.kind,
            .dtype = c.dtype,
            .weight_dtype = weight_dtype,
            .rows = c.rows,
            .cols = c.cols,
            .dy = dy.data(),
            .x = c.residual ? sum.data() : x.data(),
            .weight = weight.data(),
            .mean = mean.data(),
            .rstd = rstd.data(),
            .dsum = c.residual ? dsum.data() : nullptr,
            .dx = dx.data(),
            .dweight = dweight.data(),
            .dbias = c.kind == NormKind::kLayerNorm ? dbias.data() : nullptr,
            .x_rows = {.stride = c.residual ? 0 : stride},
            .zero_centered = c.zero_centered};
  }

  NormCase c;
  int64_t stride;
  DType weight_dtype;
  Array x, residual, weight, bias, dy, dsum, sum, y, dx, mean, rstd, dweight, dbias;
};

constexpr NormKind kNormKinds[] = {NormKind::kRmsNorm, NormKind::kLayerNorm};

TEST(NormReference, ForwardIsItsClosedForm) {
  for (const NormKind kind : kNormKinds)
    for (const bool zero_centered : {false, true}) {
      Norm n(
          {.kind = kind, .rows = 4, .cols = 7, .residual = true, .zero_centered = zero_centered});
      norm_forward(n.forward());
      for (int64_t r = 0; r < 4; ++r) {
        double mean = 0, square = 0;
        for (int64_t i = 0; i < 7; ++i) mean += (n.x[r * 7 + i] + n.residual[r * 7 + i]) / 7;
        if (kind == NormKind::kRmsNorm) mean = 0;
        for (int64_t i = 0; i < 7; ++i)
          square += std::pow(n.x[r * 7 + i] + n.residual[r * 7 + i] - mean, 2) / 7;
        const double rstd = 1 / std::sqrt(square + 1e-5);
        EXPECT_NEAR(n.rstd[r], rstd, 1e-13);
        for (int64_t i = 0; i < 7; ++i) {
          const double s = n.x[r * 7 + i] + n.residual[r * 7 + i];
          const double w = n.weight[i] + (zero_centered ? 1 : 0);
          const double b = kind == NormKind::kLayerNorm ? n.bias[i] : 0;
          EXPECT_EQ(n.sum[r * 7 + i], s);
          EXPECT_NEAR(n.y[r * 7 + i], w * (s - mean) * rstd + b, 1e-12);
        }
      }
    }
}

/// sum(dy * y) + sum(dsum * sum) as a function of one input: what the backward differentiates.
double objective(Norm& n) {
  norm_forward(n.forward());
  double total = 0;
  for (int64_t i = 0; i < n.y.size(); ++i) total += n.dy[i] * n.y[i] + n.dsum[i] * n.sum[i];
  return total;
}

void expect_slope(Norm& n, Array& input, int64_t i, double gradient) {
  const double x = input[i], h = 1e-6;
  input.set(i, x + h);
  const double plus = objective(n);
  input.set(i, x - h);
  const double minus = objective(n);
  input.set(i, x);
  EXPECT_NEAR((plus - minus) / (2 * h), gradient, 2e-8);
}

TEST(NormReference, BackwardMatchesFiniteDifferences) {
  for (const NormKind kind : kNormKinds)
    for (const bool zero_centered : {false, true}) {
      Norm n(
          {.kind = kind, .rows = 3, .cols = 5, .residual = true, .zero_centered = zero_centered});
      norm_forward(n.forward());
      norm_backward(n.backward());
      const Array dx = n.dx, dweight = n.dweight, dbias = n.dbias;
      for (int64_t i = 0; i < 15; ++i) {
        expect_slope(n, n.x, i, dx[i]);
        expect_slope(n, n.residual, i, dx[i]);
      }
      for (int64_t i = 0; i < 5; ++i) {
        expect_slope(n, n.weight, i, dweight[i] - 0.25);
        if (kind == NormKind::kLayerNorm) {
          expect_slope(n, n.bias, i, dbias[i] + 0.5);
        }
      }
    }
}

/// Forward and backward by `name`; the statistics of the backward come from the reference.
void run_both(Norm& n, std::string_view name) {
  const auto run = [&](auto entries, const auto& args) {
    for (const auto& entry : entries)
      if (entry.name == name) entry.run(args, {});
  };
  run(norm_forward_entries(), n.forward());
  run(norm_backward_entries(), n.backward());
}

/// Every entry gives what the reference gives.
void compare_entries(const NormCase& c) {
  const int64_t pad =
      c.cols % 8 == 0 ? 8 : 3; // packs of 16 bytes are aligned in all rows or in none
  for (const DType weight_dtype : {DType::kFloat32, c.dtype}) {
    Norm expected(c, pad, weight_dtype);
    run_both(expected, "reference");
    for (const auto& entry : fast_entries(norm_forward_entries(), expected.forward())) {
      Norm n(c, pad, weight_dtype);
      run_both(n, entry.name);
      const std::string what =
          fmt::format("{} {} cols={} rows={}", entry.name, name(c.dtype), c.cols, c.rows);
      const double e = epsilon(c.dtype);
      EXPECT_TRUE(n.sum.same_bits(expected.sum)) << what;
      expect_close(n.mean, expected.mean, 1e-5, 1e-6, what + " mean");
      expect_close(n.rstd, expected.rstd, 1e-5, 0, what + " rstd");
      // LayerNorm of one column is 0 / sqrt(eps): its rounding noise is amplified by 1 / sqrt(eps).
      expect_close(n.y, expected.y, 2 * e, 2e-5, what + " y");
      expect_close(n.dx, expected.dx, 2 * e, c.cols == 1 ? 1e-2 : 5e-5, what + " dx");
      expect_close(n.dweight, expected.dweight, 1e-4, 1e-4, what + " dweight");
      expect_close(n.dbias, expected.dbias, 1e-5, 1e-5, what + " dbias");
    }
  }
}

TEST(NormSimd, EqualsTheReference) {
  for (const DType dtype : kFastTypes)
    for (const NormKind kind : kNormKinds)
      for (const int64_t cols : {1, 2, 7, 8, 15, 16, 17, 64, 65, 127, 300})
        for (const int64_t rows : {1, 16, 19})
          for (const bool residual : {false, true}) {
            // 16 rows: the first is aligned to vectors, the others only if their size is.
            if (rows == 16 && cols != 17 && cols != 64) continue;
            compare_entries({.kind = kind,
                             .dtype = dtype,
                             .rows = rows,
                             .cols = cols,
                             .residual = residual,
                             .zero_centered = cols % 2 == 0});
          }
}

/// Rows that a GPU deals to a warp, to blocks of different sizes, and reads again for each sum.
TEST(NormSimd, OfLongRowsEqualsTheReference) {
  for (const DType dtype : kFastTypes)
    for (const NormKind kind : kNormKinds)
      for (const auto& [cols, rows] :
           {std::pair<int64_t, int64_t>{520, 35}, {1025, 3}, {2048, 17}, {4104, 2}, {16392, 1}}) {
        // Narrow types do rows in scalars, in packs, and those that are read again: few of each.
        if (dtype != DType::kFloat32 && rows > 3) continue;
        compare_entries({.kind = kind,
                         .dtype = dtype,
                         .rows = rows,
                         .cols = cols,
                         .residual = cols == 4104 || rows == 3,
                         .zero_centered = rows == 35});
      }
}

/// Without a weight, and where only some of the gradients are wanted, in place or apart.
TEST(NormSimd, PartsOfABackwardEqualTheReference) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const NormKind kind : kNormKinds)
      for (const int64_t cols : {64, 1040})
        for (int wanted = 1; wanted < 8; ++wanted)
          for (const bool weight : {true, false}) {
            if (!weight && wanted != 7) continue;
            const NormCase c{.kind = kind, .dtype = dtype, .rows = 18, .cols = cols};
            const auto run = [&](std::string_view name, bool in_place, Norm& n) {
              norm_forward(n.forward()); // the same statistics for all
              NormBackward args = n.backward();
              if (!weight) args.weight = nullptr;
              if ((wanted & 1) == 0) args.dx = nullptr;
              if ((wanted & 2) == 0) args.dweight = nullptr;
              if ((wanted & 4) == 0) args.dbias = nullptr;
              if (in_place && args.dx != nullptr) args.dx = n.dy.data();
              std::vector<std::byte> workspace(workspace_bytes(args, Device::kCuda));
              for (const auto& entry : norm_backward_entries())
                if (entry.name == name) entry.run(args, {.workspace = workspace});
            };
            Norm expected(c, 8);
            run("reference", false, expected);
            for (const auto& entry : fast_entries(norm_backward_entries(), expected.backward()))
              for (const bool in_place : {false, true}) {
                Norm n(c, 8);
                run(entry.name, in_place, n);
                const std::string what =
                    fmt::format("{} {} cols={} wanted={} in place {}", entry.name, name(dtype),
                                cols, wanted, in_place);
                if ((wanted & 1) != 0)
                  expect_close(in_place ? n.dy : n.dx, expected.dx, 2 * epsilon(dtype), 5e-5, what);
                expect_close(n.dweight, expected.dweight, 1e-4, 1e-4, what);
                expect_close(n.dbias, expected.dbias, 1e-5, 1e-5, what);
              }
          }
}

TEST(NormSimd, NormalisesHeadsInsideAFusedBuffer) {
  // [tokens, 3 heads of 8 inside rows of 40], the first 2 heads are normalised in place.
  const int64_t tokens = 5;
  Array buffer = Array::random(DType::kFloat32, tokens * 40, 1),
        packed(DType::kFloat32, tokens * 16);
  const Array before = buffer;
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < 16; ++i) packed.set(t * 16 + i, buffer[t * 40 + i]);
  const RowLayout heads{.stride = 8, .group_rows = 2, .group_stride = 40};
  norm_forward({.rows = tokens * 2,
                .cols = 8,
                .x = buffer.data(),
                .y = buffer.data(),
                .x_rows = heads,
                .y_rows = heads});
  norm_forward({.rows = tokens * 2, .cols = 8, .x = packed.data(), .y = packed.data()});
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < 40; ++i)
      EXPECT_EQ(buffer[t * 40 + i], i < 16 ? packed[t * 16 + i] : before[t * 40 + i]);
}

TEST(Norm, BackwardWorksInPlaceOfTheGradient) {
  for (const DType dtype : kAllTypes) {
    const NormCase c{
        .kind = NormKind::kLayerNorm, .dtype = dtype, .rows = 33, .cols = 19, .residual = true};
    Norm apart(c), in_place(c);
    norm_forward(apart.forward());
    norm_forward(in_place.forward());
    norm_backward(apart.backward());
    NormBackward args = in_place.backward();
    args.dx = in_place.dy.data();
    norm_backward(args);
    EXPECT_TRUE(in_place.dy.same_bits(apart.dx));
    EXPECT_TRUE(in_place.dweight.same_bits(apart.dweight));
  }
}

TEST(Norm, DoesNotDependOnThreads) {
  for (const DType dtype : kAllTypes)
    for (const NormKind kind : kNormKinds) {
      const NormCase c{.kind = kind, .dtype = dtype, .rows = 517, .cols = 97};
      Norm one(c), many(c);
      const auto run = [](Norm& n) {
        norm_forward(n.forward());
        norm_backward(n.backward());
      };
      with_threads(1, [&] { run(one); });
      with_threads(5, [&] { run(many); });
      EXPECT_TRUE(many.y.same_bits(one.y));
      EXPECT_TRUE(many.dx.same_bits(one.dx));
      EXPECT_TRUE(many.dweight.same_bits(one.dweight));
      EXPECT_TRUE(many.dbias.same_bits(one.dbias));
    }
}

TEST(Norm, KeepsNaNAndInfinityInTheirRow) {
  for (const DType dtype : kAllTypes)
    for (const NormKind kind : kNormKinds)
      for (const double bad : {kNaN, kInf, -kInf}) {
        Norm n({.kind = kind, .dtype = dtype, .rows = 3, .cols = 21});
        n.x.set(21 + 20, bad);
        norm_forward(n.forward());
        for (int64_t i = 0; i < 63; ++i)
          if (i / 21 != 1) {
            EXPECT_TRUE(std::isfinite(n.y[i]));
          }
        EXPECT_TRUE(std::isnan(n.y[21 + 20])); // infinity * rstd = inf * 0
        EXPECT_EQ(std::isnan(n.y[21]), kind == NormKind::kLayerNorm || std::isnan(bad));
        norm_backward(n.backward());
        EXPECT_TRUE(std::isnan(n.dx[21 + 20]));
        EXPECT_TRUE(std::isfinite(n.dx[0]));
        EXPECT_TRUE(std::isnan(n.dweight[20]));
      }
}

TEST(Norm, TakesScratchFromTheWorkspace) {
  Norm a({.kind = NormKind::kLayerNorm, .dtype = DType::kFloat32, .rows = 100, .cols = 33}), b(a.c);
  norm_forward(a.forward());
  norm_forward(b.forward());
  norm_backward(a.backward());
  std::vector<std::byte> workspace(workspace_bytes(b.backward(), Device::kCpu));
  EXPECT_GT(workspace.size(), 0u);
  norm_backward(b.backward(), {.workspace = workspace});
  EXPECT_TRUE(a.dweight.same_bits(b.dweight));
  EXPECT_TRUE(a.dbias.same_bits(b.dbias));
}

TEST(Norm, RefusesWhatItCannotCompute) {
  Norm n({.rows = 2, .cols = 3});
  NormForward args = n.forward();
  args.cols = 0;
  EXPECT_THROW(norm_forward(args), ShapeError);
  args = n.forward();
  args.y = nullptr;
  EXPECT_THROW(norm_forward(args), ShapeError);
  NormBackward backward = n.backward();
  backward.rstd = nullptr;
  EXPECT_THROW(norm_backward(backward), ShapeError);
  args = n.forward();
  args.rows = 0;
  EXPECT_NO_THROW(norm_forward(args));
}

} // namespace

} // namespace pentatron::kernels
