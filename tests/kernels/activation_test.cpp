#include "pentatron/kernels/activation/activation.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {

namespace {

using namespace testing;

constexpr Activation kKinds[] = {Activation::kGelu,        Activation::kGeluTanh,
                                 Activation::kQuickGelu,   Activation::kRelu,
                                 Activation::kSquaredRelu, Activation::kSilu};

/// The functions as their papers write them.
double closed_form(Activation kind, double x) {
  switch (kind) {
  case Activation::kGelu:
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  case Activation::kGeluTanh:
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
  case Activation::kQuickGelu:
    return x / (1 + std::exp(-1.702 * x));
  case Activation::kRelu:
    return std::max(x, 0.0);
  case Activation::kSquaredRelu:
    return std::pow(std::max(x, 0.0), 2);
  case Activation::kSilu:
    return x / (1 + std::exp(-x));
  }
  return kNaN;
}

/// Whether it is gated, and how.
struct Form {
  bool gated = false;
  GateOptions gate = {};
};
constexpr Form kForms[] = {
    {}, {.gated = true}, {.gated = true, .gate = {.limit = 1.25, .up_offset = 1}}};

double clamped(double x, const GateOptions& gate) {
  return std::clamp(x, -gate.limit, gate.limit);
}

/// Inputs and outputs of one forward and backward; rows of x are `pad` elements apart, so that
/// packs of 16 bytes are aligned in all rows or not in all.
struct Mlp {
  Mlp(Activation kind, Form form, DType dtype, int64_t rows, int64_t cols, bool with_bias)
      : kind(kind), gated(form.gated), gate(form.gate), dtype(dtype), rows(rows), cols(cols),
        width(gated ? 2 * cols : cols), pad(cols % 8 == 0 ? 8 : 3), with_bias(with_bias),
        x(Array::random(dtype, rows * (width + pad), 1, 2.0)),
        dy(Array::random(dtype, rows * cols, 2)),
        bias(Array::random(acc_dtype(dtype), width, 3, 0.5)), y(dtype, rows * cols),
        dx(dtype, rows * width), dbias(acc_dtype(dtype), width, 0.25) {}

  ActivationForward forward() {
    return {.kind = kind,
            .gated = gated,
            .gate = gate,
            .dtype = dtype,
            .bias_dtype = acc_dtype(dtype),
            .rows = rows,
            .cols = cols,
            .x = x.data(),
            .bias = with_bias ? bias.data() : nullptr,
            .y = y.data(),
            .x_stride = width + pad};
  }
  ActivationBackward backward() {
    return {.kind = kind,
            .gated = gated,
            .gate = gate,
            .dtype = dtype,
            .bias_dtype = acc_dtype(dtype),
            .rows = rows,
            .cols = cols,
            .dy = dy.data(),
            .x = x.data(),
            .bias = with_bias ? bias.data() : nullptr,
            .dx = dx.data(),
            .dbias = with_bias ? dbias.data() : nullptr,
            .x_stride = width + pad};
  }
  void run(std::string_view name) {
    for (const auto& entry : activation_forward_entries())
      if (entry.name == name) {
        ActivationForward args = forward();
        args.y_stride = cols;
        entry.run(args, {});
      }
    for (const auto& entry : activation_backward_entries())
      if (entry.name == name) {
        ActivationBackward args = backward();
        args.dy_stride = cols;
        args.dx_stride = width;
        entry.run(args, {});
      }
  }

  Activation kind;
  bool gated;
  GateOptions gate;
  DType dtype;
  int64_t rows, cols, width, pad;
  bool with_bias;
  Array x, dy, bias, y, dx, dbias;
};

TEST(ActivationReference, ForwardIsItsClosedForm) {
  for (const Activation kind : kKinds)
    for (const Form& form : kForms) {
      Mlp m(kind, form, DType::kFloat64, 5, 9, true);
      activation_forward(m.forward());
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t i = 0; i < 9; ++i) {
          const double in = m.x[r * (m.width + m.pad) + i] + m.bias[i];
          double expected = closed_form(kind, form.gated ? std::min(in, form.gate.limit) : in);
          if (form.gated)
            expected *= clamped(m.x[r * (m.width + m.pad) + 9 + i] + m.bias[9 + i], form.gate) +
                        form.gate.up_offset;
          EXPECT_NEAR(m.y[r * 9 + i], expected, 1e-13) << name(kind);
        }
    }
}

TEST(ActivationReference, BackwardMatchesFiniteDifferences) {
  for (const Activation kind : kKinds)
    for (const Form& form : kForms) {
      Mlp m(kind, form, DType::kFloat64, 3, 4, true);
      activation_backward(m.backward());
      const auto objective = [&] {
        activation_forward(m.forward());
        double total = 0;
        for (int64_t i = 0; i < m.y.size(); ++i) total += m.y[i] * m.dy[i];
        return total;
      };
      const auto slope = [&](Array& input, int64_t i) {
        const double value = input[i], h = 1e-6;
        input.set(i, value + h);
        const double plus = objective();
        input.set(i, value - h);
        const double minus = objective();
        input.set(i, value);
        return (plus - minus) / (2 * h);
      };
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t i = 0; i < m.width; ++i)
          EXPECT_NEAR(slope(m.x, r * (m.width + m.pad) + i), m.dx[r * m.width + i], 1e-7)
              << name(kind);
      for (int64_t i = 0; i < m.width; ++i)
        EXPECT_NEAR(slope(m.bias, i), m.dbias[i] - 0.25, 1e-7) << name(kind);
    }
}

TEST(ActivationSimd, EqualsTheReference) {
  for (const DType dtype : kFastTypes)
    for (const Activation kind : kKinds)
      for (const Form& form : kForms)
        for (const int64_t cols : {1, 7, 8, 16, 17, 100})
          for (const int64_t rows : {1, 19}) {
            Mlp expected(kind, form, dtype, rows, cols, cols % 2 == 1);
            expected.run("reference");
            for (const auto& entry :
                 fast_entries(activation_forward_entries(), expected.forward())) {
              Mlp m(kind, form, dtype, rows, cols, cols % 2 == 1);
              m.run(entry.name);
              const std::string what = fmt::format("{} {} {} cols={} rows={}", entry.name,
                                                   name(kind), name(dtype), cols, rows);
              const double rtol = dtype == DType::kFloat32 ? 2e-6 : epsilon(dtype);
              expect_close(m.y, expected.y, rtol, 1e-6, what + " y");
              expect_close(m.dx, expected.dx, rtol, 2e-6, what + " dx");
              expect_close(m.dbias, expected.dbias, 1e-5, 1e-4, what + " dbias");
            }
          }
}

/// GPT-OSS's: (up + 1) gate sigmoid(1.702 gate) with gate and up within 7, and its derivatives, at
/// and behind the limits too.
TEST(Activation, LimitedQuickGeGluIsItsClosedForm) {
  const std::vector<double> points = {-30, -7.5, -7, -1, 0, 0.5, 3, 7, 7.5, 30};
  const auto n = static_cast<int64_t>(points.size());
  std::vector<double> x;
  for (const double gate : points)
    for (int i = 0; i < 2 * n; ++i) x.push_back(i < n ? gate : points[static_cast<size_t>(i - n)]);
  const GateOptions gate{.limit = 7, .up_offset = 1};
  for (const DType dtype : kAllTypes) {
    const Array in = Array::of(dtype, x), dy(dtype, n * n, 1.0);
    for (const auto& entry : entries_for(activation_forward_entries(), {.dtype = dtype})) {
      Array y(dtype, n * n), dx(dtype, 2 * n * n);
      entry.run({.kind = Activation::kQuickGelu,
                 .gated = true,
                 .gate = gate,
                 .dtype = dtype,
                 .rows = n,
                 .cols = n,
                 .x = in.data(),
                 .y = y.data(),
                 .x_stride = 2 * n,
                 .y_stride = n},
                {});
      for (const auto& backward : entries_for(activation_backward_entries(), {.dtype = dtype}))
        if (backward.name == entry.name)
          backward.run({.kind = Activation::kQuickGelu,
                        .gated = true,
                        .gate = gate,
                        .dtype = dtype,
                        .rows = n,
                        .cols = n,
                        .dy = dy.data(),
                        .x = in.data(),
                        .dx = dx.data(),
                        .dy_stride = n,
                        .x_stride = 2 * n,
                        .dx_stride = 2 * n},
                       {});
      const double bound = dtype == DType::kFloat64   ? 1e-14
                           : dtype == DType::kFloat32 ? 2e-6
                                                      : epsilon(dtype);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < n; ++i) {
          const double g = points[static_cast<size_t>(r)], u = points[static_cast<size_t>(i)];
          const double low = std::min(g, 7.0), s = 1 / (1 + std::exp(-1.702 * low));
          const double factor = clamped(u, gate) + 1;
          const double d_gate = g > 7 ? 0 : factor * s * (1 + 1.702 * low * (1 - s));
          const double d_up = std::abs(u) > 7 ? 0 : low * s;
          const auto near = [&](double got, double wanted, const char* what) {
            EXPECT_NEAR(got, wanted, bound * std::max(1.0, std::abs(wanted)))
                << entry.name << " " << name(dtype) << " " << what << " gate=" << g << " up=" << u;
          };
          near(y[r * n + i], factor * low * s, "y");
          near(dx[r * 2 * n + i], d_gate, "d_gate");
          near(dx[r * 2 * n + n + i], d_up, "d_up");
        }
    }
  }
}

/// The largest relative error of y / x over every exponent of float, where the exact value is a
/// normal number.
double largest_error(const Entry<ActivationForward>& entry, Activation kind) {
  std::vector<double> points;
  for (double x = 1e-30; x < 1e30; x *= 1.0013) {
    points.push_back(x);
    points.push_back(-x);
  }
  for (double x = -20; x < 20; x += 0.00173) points.push_back(x);
  const Array x = Array::of(DType::kFloat32, points);
  Array y(DType::kFloat32, x.size());
  entry.run({.kind = kind,
             .rows = 1,
             .cols = x.size(),
             .x = x.data(),
             .y = y.data(),
             .x_stride = x.size(),
             .y_stride = x.size()},
            {});
  double worst = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double factor = kind == Activation::kGelu   ? std::erfc(-v * M_SQRT1_2) / 2
                          : kind == Activation::kSilu ? 1 / (1 + std::exp(-v))
                                                      : kNaN;
    if (std::abs(factor) < 0x1p-126 || std::abs(v * factor) < 0x1p-126) continue;
    worst = std::max(worst, std::abs(y[i] / (v * factor) - 1));
  }
  return worst;
}

TEST(ActivationSimd, GeluAndSiluAreAccurateOverTheWholeRange) {
  for (const auto& entry : fast_entries(activation_forward_entries(), ActivationForward{})) {
    EXPECT_LT(largest_error(entry, Activation::kGelu), 4.5e-7) << entry.name;
    EXPECT_LT(largest_error(entry, Activation::kSilu), 3e-7) << entry.name;
  }
}

TEST(ActivationSimd, TreatsNaNAndInfinityAsTheReference) {
  // As many as packs of 16 bytes take.
  const std::vector<double> values = {kNaN, kInf,  -kInf, 0.0,  -0.0,  1e20, -1e20, 90,
                                      -90,  1e-40, 3.0,   1e13, -1e13, 30,   -30,   -3.0};
  for (const DType dtype : kFastTypes)
    for (const Activation kind : kKinds) {
      const Array x = Array::of(dtype, values), dy(dtype, x.size(), 1.0);
      const int64_t n = x.size();
      const auto run = [&](std::string_view name, Array& y, Array& dx) {
        for (const auto& e : activation_forward_entries())
          if (e.name == name)
            e.run(
                {.kind = kind, .dtype = dtype, .rows = 1, .cols = n, .x = x.data(), .y = y.data()},
                {});
        for (const auto& e : activation_backward_entries())
          if (e.name == name)
            e.run({.kind = kind,
                   .dtype = dtype,
                   .rows = 1,
                   .cols = n,
                   .dy = dy.data(),
                   .x = x.data(),
                   .dx = dx.data()},
                  {});
      };
      Array y(dtype, n), dx(dtype, n);
      run("reference", y, dx);
      EXPECT_TRUE(std::isnan(y[0])) << name(kind);
      EXPECT_EQ(y[1], kInf) << name(kind);
      for (const auto& entry : fast_entries(activation_forward_entries(), ActivationForward{})) {
        Array fast_y(dtype, n), fast_dx(dtype, n);
        run(entry.name, fast_y, fast_dx);
        const std::string what = fmt::format("{} {} {}", entry.name, name(kind), name(dtype));
        // Of gelu_tanh(-3) three digits cancel, so the last bits are those of a library's tanh.
        const double digits = kind == Activation::kGeluTanh ? 4 : 1;
        expect_close(fast_y, y, digits * epsilon(dtype), 1e-35, what);
        expect_close(fast_dx, dx, epsilon(dtype), 1e-6, what);
      }
    }
}

TEST(Activation, BackwardWorksInPlaceOfTheInput) {
  for (const DType dtype : kAllTypes)
    for (const Form& form : kForms) {
      Mlp apart(Activation::kSilu, form, dtype, 19, 21, true),
          in_place(Activation::kSilu, form, dtype, 19, 21, true);
      activation_backward(apart.backward());
      ActivationBackward args = in_place.backward();
      args.dx = in_place.x.data();
      args.dx_stride = args.x_stride;
      activation_backward(args);
      for (int64_t r = 0; r < 19; ++r)
        for (int64_t i = 0; i < apart.width; ++i)
          ASSERT_EQ(in_place.x[r * (apart.width + apart.pad) + i], apart.dx[r * apart.width + i]);
    }
}

/// Rows times numbers: y and dx are those of the plain kernel times them, and the gradient of a
/// number is the sum of dy y over its row.
TEST(Activation, RowsTimesNumbersAreTheirProducts) {
  for (const DType dtype : kAllTypes)
    for (const Form& form : kForms)
      for (const auto& entry : activation_forward_entries()) {
        constexpr int64_t kRows = 19, kCols = 21;
        Mlp plain(Activation::kSilu, form, dtype, kRows, kCols, false),
            scaled(Activation::kSilu, form, dtype, kRows, kCols, false);
        const ActivationForward probe = plain.forward();
        if (!entry.refuse(probe, {}).empty()) continue;
        plain.run(entry.name);
        Array scale = Array::random(acc_dtype(dtype), kRows, 5), dscale(acc_dtype(dtype), kRows);
        ActivationForward forward = scaled.forward();
        forward.row_scale = scale.data();
        forward.y_stride = kCols;
        entry.run(forward, {});
        for (const auto& back : activation_backward_entries()) {
          if (back.name != entry.name) continue;
          ActivationBackward backward = scaled.backward();
          backward.row_scale = scale.data();
          backward.drow_scale = dscale.data();
          backward.dy_stride = kCols;
          backward.dx_stride = scaled.width;
          back.run(backward, {});
        }
        const double eps = 2 * epsilon(dtype),
                     least = dtype == DType::kFloat16 ? 1e-7 : 1e-30; // not normal
        for (int64_t r = 0; r < kRows; ++r) {
          double sum = 0, size = 0;
          for (int64_t i = 0; i < kCols; ++i) {
            const double y = plain.y[r * kCols + i];
            EXPECT_NEAR(scaled.y[r * kCols + i], y * scale[r],
                        eps * std::abs(y * scale[r]) + least);
            sum += y * plain.dy[r * kCols + i];
            size += std::abs(y * plain.dy[r * kCols + i]);
          }
          for (int64_t i = 0; i < plain.width; ++i) {
            const double dx = plain.dx[r * plain.width + i] * scale[r];
            EXPECT_NEAR(scaled.dx[r * plain.width + i], dx, eps * std::abs(dx) + least);
          }
          EXPECT_NEAR(dscale[r], sum, eps * size + least);
        }
      }
}

TEST(Activation, DoesNotDependOnThreads) {
  for (const DType dtype : kAllTypes) {
    Mlp one(Activation::kGelu, {.gated = true}, dtype, 300, 97, true),
        many(Activation::kGelu, {.gated = true}, dtype, 300, 97, true);
    const auto run = [](Mlp& m) {
      activation_forward(m.forward());
      activation_backward(m.backward());
    };
    with_threads(1, [&] { run(one); });
    with_threads(7, [&] { run(many); });
    EXPECT_TRUE(many.y.same_bits(one.y));
    EXPECT_TRUE(many.dx.same_bits(one.dx));
    EXPECT_TRUE(many.dbias.same_bits(one.dbias));
  }
}

TEST(Activation, RefusesWhatItCannotCompute) {
  Mlp m(Activation::kSilu, {.gated = true}, DType::kFloat32, 2, 3, true);
  ActivationForward args = m.forward();
  args.rows = -1;
  EXPECT_THROW(activation_forward(args), ShapeError);
  args = m.forward();
  args.gate.limit = 0;
  EXPECT_THROW(activation_forward(args), ShapeError);
  args = m.forward();
  args.x = nullptr;
  EXPECT_THROW(activation_forward(args), ShapeError);
  args.cols = 0;
  EXPECT_NO_THROW(activation_forward(args));
}

} // namespace

} // namespace pentatron::kernels
