#include "pentatron/kernels/optimizer/optimizer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/lerp.h>

#include "pentatron/base/error.h"
#include "pentatron/kernels/optimizer/buffer.h"
#include "tests/kernels/array.h"

namespace pentatron::kernels {
namespace {

using namespace testing;

struct State {
  Array p, g, m, v, copy;
  State(DType dtype, int64_t n, DType copy_dtype)
      : p(dtype, n), g(dtype, n, 0, 2), m(dtype, n, 0, 3), v(dtype, n), copy(copy_dtype, n) {
    p.fill_random(1);
    g.fill_random(2);
    m.fill_random(3, 0.1);
    v.fill([&](int64_t i) { return m[i] * m[i] * 1.5; });
  }
  AdamWArgs adamw(int64_t step) {
    return {.dtype = p.dtype(),
            .n = p.size(),
            .param = p.data(),
            .grad = g.data(),
            .exp_avg = m.data(),
            .exp_avg_sq = v.data(),
            .param_copy = nullptr,
            .copy_dtype = copy.dtype(),
            .lr = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .grad_scale = 0.37,
            .step = step};
  }
  SgdArgs sgd(bool nesterov) {
    return {.dtype = p.dtype(),
            .n = p.size(),
            .param = p.data(),
            .grad = g.data(),
            .momentum_buffer = m.data(),
            .param_copy = nullptr,
            .copy_dtype = copy.dtype(),
            .lr = 3e-3,
            .momentum = 0.9,
            .nesterov = nesterov,
            .weight_decay = 0.1,
            .grad_scale = 0.37};
  }
  LionArgs lion() {
    return {.dtype = p.dtype(),
            .n = p.size(),
            .param = p.data(),
            .grad = g.data(),
            .exp_avg = m.data(),
            .param_copy = nullptr,
            .copy_dtype = copy.dtype(),
            .lr = 3e-3,
            .beta1 = 0.9,
            .beta2 = 0.99,
            .weight_decay = 0.1,
            .grad_scale = 0.37};
  }
};

at::Tensor tensor(Array& b) {
  return at::from_blob(b.data(), {b.size()},
                       b.dtype() == DType::kFloat64 ? at::kDouble : at::kFloat)
      .clone();
}

/// max |a - b| / |b|
double relative(const Array& a, const at::Tensor& b) {
  const at::Tensor d = b.to(at::kDouble);
  double worst = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double expected = d.data_ptr<double>()[i];
    worst = std::max(worst, std::abs(a[i] - expected) / std::max(std::abs(expected), 1e-300));
  }
  return worst;
}

TEST(AdamW, FollowsTorchStepForStep) {
  // torch/optim/adamw.py, _single_tensor_adamw, written with the operators it calls.
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    State s(dtype, 1001, DType::kBFloat16);
    for (int64_t step = 1; step <= 5; ++step) {
      s.g.fill_random(static_cast<uint64_t>(10 + step));
      at::Tensor p = tensor(s.p), g = tensor(s.g) * 0.37, m = tensor(s.m), v = tensor(s.v);
      p.mul_(1 - 3e-3 * 0.1);
      m.lerp_(g, 1 - 0.9);
      v.mul_(0.95).addcmul_(g, g, 1 - 0.95);
      const double correction1 = 1 - std::pow(0.9, step), correction2 = 1 - std::pow(0.95, step);
      const at::Tensor denominator = (v.sqrt() / std::sqrt(correction2)).add_(1e-8);
      p.addcdiv_(m, denominator, -(3e-3 / correction1));
      adamw(s.adamw(step));
      // Sums of numbers of either sign cancel: the bound on p and m is relative to their terms, all
      // of order 1e-2 to 1.
      const double unit = epsilon(dtype) / 2;
      EXPECT_LE((at::from_blob(s.p.data(), {1001}, p.options()) - p).abs().max().item<double>(),
                2 * unit)
          << step;
      EXPECT_LE((at::from_blob(s.m.data(), {1001}, p.options()) - m).abs().max().item<double>(),
                2 * unit)
          << step;
      EXPECT_LE(relative(s.v, v), 4 * unit) << step;
    }
  }
}

TEST(AdamW, AgreesWithTorchsFusedKernel) {
  State s(DType::kFloat64, 777, DType::kBFloat16);
  s.m.fill(0.0);
  s.v.fill(0.0);
  std::vector<at::Tensor> p = {tensor(s.p)}, m = {tensor(s.m)}, v = {tensor(s.v)};
  std::vector<at::Tensor> step_count = {at::zeros({}, at::kFloat)};
  for (int64_t step = 1; step <= 20; ++step) {
    s.g.fill_random(static_cast<uint64_t>(step));
    std::vector<at::Tensor> g = {tensor(s.g) * 0.37};
    step_count[0].add_(1);
    at::_fused_adamw_(p, g, m, v, {}, step_count, 3e-3, 0.9, 0.95, 0.1, 1e-8, false, false, {}, {});
    adamw(s.adamw(step));
  }
  EXPECT_LE((at::from_blob(s.p.data(), {777}, at::kDouble) - p[0]).abs().max().item<double>(),
            1e-14);
}

TEST(Steps, RoundTiesOfBf16AwayFromZero) {
  const std::pair<uint32_t, uint16_t> cases[] = {
      {0x3F808000, 0x3F81}, {0x3F818000, 0x3F82}, {0x3F807FFF, 0x3F80},
      {0x3F808001, 0x3F81}, {0xBF808000, 0xBF81}, {0xBF818000, 0xBF82},
      {0x00008000, 0x0001}, {0x80008000, 0x8001}, {0x7F7F8000, 0x7F80}};
  constexpr int64_t kCases = 9, kN = kCases * 3;
  const auto check = [&](const auto& entries, const auto& arguments) {
    State first(DType::kFloat32, kN, DType::kBFloat16);
    for (const auto& e : entries_for(entries, arguments(first))) {
      State s(DType::kFloat32, kN, DType::kBFloat16);
      for (int64_t i = 0; i < kN; ++i) {
        s.p.set(i, std::bit_cast<float>(cases[i % kCases].first));
        for (Array* zero : {&s.g, &s.m, &s.v}) zero->set(i, 0);
      }
      auto a = arguments(s);
      a.param_copy = s.copy.data();
      a.lr = a.weight_decay = 0;
      e.run(a, {});
      for (int64_t i = 0; i < kN; ++i)
        EXPECT_EQ(static_cast<const uint16_t*>(s.copy.data())[i], cases[i % kCases].second)
            << e.name << " " << i;
    }
  };
  check(adamw_entries(), [](State& s) { return s.adamw(1); });
  check(sgd_entries(), [](State& s) { return s.sgd(0); });
  check(lion_entries(), [](State& s) { return s.lion(); });
}

TEST(AdamW, EveryEntryGivesTheReferencesBits) {
  for (const int64_t n : {1, 15, 16, 33, 20011}) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      for (const DType copy : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
        State expected(dtype, n, copy);
        expected.g.set(0, kNaN);
        AdamWArgs a = expected.adamw(3);
        a.param_copy = expected.copy.data();
        reference_of(adamw_entries()).run(a, {});
        for (const auto& e : entries_for(adamw_entries(), a)) {
          State s(dtype, n, copy);
          s.g.set(0, kNaN);
          AdamWArgs b = s.adamw(3);
          b.param_copy = s.copy.data();
          e.run(b, {});
          EXPECT_TRUE(std::isnan(s.p[0]) && std::isnan(s.copy[0]));
          for (State* x : {&s, &expected}) { // the sign of a NaN is nobody's promise
            for (Array* t : {&x->p, &x->m, &x->v, &x->copy}) t->set(0, 0);
          }
          EXPECT_TRUE(s.p.same_bits(expected.p)) << e.name << " " << n << " " << name(dtype);
          EXPECT_TRUE(s.m.same_bits(expected.m)) << e.name << " " << n;
          EXPECT_TRUE(s.v.same_bits(expected.v)) << e.name << " " << n;
          EXPECT_TRUE(s.copy.same_bits(expected.copy)) << e.name << " " << n << " " << name(copy);
        }
      }
    }
  }
}

TEST(AdamW, MayBeCutAnywhere) {
  State whole(DType::kFloat32, 50000, DType::kBFloat16),
      cut(DType::kFloat32, 50000, DType::kBFloat16);
  adamw(whole.adamw(2));
  const int64_t edges[] = {0, 1, 18, 16385, 16401, 49999, 50000};
  for (size_t k = 0; k + 1 < std::size(edges); ++k) {
    AdamWArgs a = cut.adamw(2);
    const int64_t i = edges[k];
    a.n = edges[k + 1] - i;
    a.param = cut.p.at(i);
    a.grad = cut.g.at(i);
    a.exp_avg = cut.m.at(i);
    a.exp_avg_sq = cut.v.at(i);
    adamw(a);
  }
  EXPECT_TRUE(whole.p.same_bits(cut.p));
}

TEST(AdamW, RefusesImpossibleArguments) {
  State s(DType::kFloat32, 4, DType::kBFloat16);
  AdamWArgs a = s.adamw(0);
  EXPECT_THROW(adamw(a), ShapeError);
  a.step = 1;
  a.dtype = DType::kBFloat16;
  EXPECT_THROW(adamw(a), ShapeError);
}

TEST(Sgd, FollowsTorchStepForStep) {
  for (const bool nesterov : {false, true}) {
    State s(DType::kFloat64, 300, DType::kBFloat16);
    s.m.fill(0.0);
    at::Tensor p = tensor(s.p), buffer;
    for (int64_t step = 1; step <= 5; ++step) {
      s.g.fill_random(static_cast<uint64_t>(step));
      at::Tensor g = (tensor(s.g) * 0.37).add(p, 0.1);
      buffer = step == 1 ? g.clone() : buffer.mul_(0.9).add_(g);
      g = nesterov ? g.add(buffer, 0.9) : buffer;
      p.add_(g, -3e-3);
      sgd(s.sgd(nesterov));
    }
    EXPECT_LE((at::from_blob(s.p.data(), {300}, at::kDouble) - p).abs().max().item<double>(),
              1e-15);
  }
}

TEST(Sgd, EveryEntryGivesTheReferencesBits) {
  for (const int64_t n : {1, 17, 20011}) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      for (const bool momentum : {false, true}) {
        const auto args = [&](State& s) {
          SgdArgs a = s.sgd(true);
          if (!momentum) {
            a.momentum = 0;
            a.momentum_buffer = nullptr;
          }
          if (dtype == DType::kFloat32) a.param_copy = s.copy.data();
          return a;
        };
        State expected(dtype, n, DType::kBFloat16);
        const SgdArgs a = args(expected);
        reference_of(sgd_entries()).run(a, {});
        for (const auto& e : entries_for(sgd_entries(), a)) {
          State s(dtype, n, DType::kBFloat16);
          e.run(args(s), {});
          EXPECT_TRUE(s.p.same_bits(expected.p)) << e.name << " " << n;
          EXPECT_TRUE(s.m.same_bits(expected.m)) << e.name << " " << n;
          EXPECT_TRUE(s.copy.same_bits(expected.copy)) << e.name << " " << n;
        }
      }
    }
  }
}

TEST(Sgd, MomentumAndItsBufferComeTogether) {
  State s(DType::kFloat32, 4, DType::kBFloat16);
  SgdArgs a = s.sgd(false);
  a.momentum_buffer = nullptr;
  EXPECT_THROW(sgd(a), ShapeError);
}

TEST(Lion, IsTheFormulaStepForStep) {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    State s(dtype, 1001, DType::kBFloat16);
    for (int64_t step = 1; step <= 5; ++step) {
      s.g.fill_random(static_cast<uint64_t>(10 + step));
      at::Tensor p = tensor(s.p), g = tensor(s.g) * 0.37, m = tensor(s.m);
      const at::Tensor c = 0.9 * m + (1 - 0.9) * g;
      p.mul_(1 - 3e-3 * 0.1).sub_(3e-3 * c.sign());
      m.mul_(0.99).add_((1 - 0.99) * g);
      lion(s.lion());
      const double unit = epsilon(dtype) / 2;
      EXPECT_LE((at::from_blob(s.p.data(), {1001}, p.options()) - p).abs().max().item<double>(),
                4 * unit)
          << step;
      EXPECT_LE((at::from_blob(s.m.data(), {1001}, p.options()) - m).abs().max().item<double>(),
                4 * unit)
          << step;
    }
  }
}

TEST(Lion, EveryEntryGivesTheReferencesBits) {
  for (const int64_t n : {1, 17, 20011}) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
      const auto args = [&](State& s) {
        s.m.set(n / 2, 0);
        s.g.set(n / 2, 0); // a sign of 0
        LionArgs a = s.lion();
        if (dtype == DType::kFloat32) a.param_copy = s.copy.data();
        return a;
      };
      State expected(dtype, n, DType::kBFloat16);
      const LionArgs a = args(expected);
      reference_of(lion_entries()).run(a, {});
      for (const auto& e : entries_for(lion_entries(), a)) {
        State s(dtype, n, DType::kBFloat16);
        e.run(args(s), {});
        EXPECT_TRUE(s.p.same_bits(expected.p)) << e.name << " " << n;
        EXPECT_TRUE(s.m.same_bits(expected.m)) << e.name << " " << n;
        EXPECT_TRUE(s.copy.same_bits(expected.copy)) << e.name << " " << n;
        s.g.set(0, kNaN);
        e.run(s.lion(), {});
        EXPECT_TRUE(std::isnan(s.p[0])) << e.name << ": what is not a number stays visible";
      }
    }
  }
}

/// What the device decides is what the host would have passed; nothing is written if it decides
/// against it.
TEST(Control, ReplacesScaleAndStepInEveryEntry) {
  const int64_t n = 20011;
  for (const DType dtype : {DType::kFloat64, DType::kFloat32}) {
    const auto check = [&](const auto& entries, const auto& args, const auto& run_known) {
      for (const auto& e : entries) {
        for (const bool apply : {true, false}) {
          const auto control = std::make_unique<UpdateControl>( // a GPU does not reach the stack
              UpdateControl{.grad_scale = 0.37, .apply = apply ? 1.0 : 0.0, .steps = 8});
          State s(dtype, n, DType::kBFloat16), expected(dtype, n, DType::kBFloat16);
          if (apply) run_known(e, expected);
          auto a = args(s);
          a.grad_scale = kNaN;
          a.control = control.get();
          e.run(a, {});
          const std::string what = fmt::format("{} {} {}", e.name, name(dtype), apply);
          // A GPU's powers of the betas may differ from the host's in the last of 53 bits.
          if (e.name == std::string_view("cuda") && testing::pages_of_gpu != nullptr &&
              dtype == DType::kFloat64)
            expect_close(s.p, expected.p, 1e-14, 1e-15, what);
          else
            EXPECT_TRUE(s.p.same_bits(expected.p)) << what;
          EXPECT_TRUE(s.m.same_bits(expected.m)) << what;
          EXPECT_TRUE(s.v.same_bits(expected.v)) << what;
          EXPECT_TRUE(s.copy.same_bits(expected.copy)) << what;
        }
      }
    };
    State any(dtype, n, DType::kBFloat16);
    check(
        entries_for(adamw_entries(), any.adamw(1)),
        [](State& s) {
          AdamWArgs a = s.adamw(1);
          a.first_step = 3;
          return a;
        },
        [](const auto& e, State& s) { e.run(s.adamw(5), {}); });
    check(
        entries_for(sgd_entries(), any.sgd(true)), [](State& s) { return s.sgd(true); },
        [](const auto& e, State& s) { e.run(s.sgd(true), {}); });
    check(
        entries_for(lion_entries(), any.lion()), [](State& s) { return s.lion(); },
        [](const auto& e, State& s) { e.run(s.lion(), {}); });
  }
}

double sum_of_squares_of(const Array& x) {
  double result = -1;
  sum_of_squares({.dtype = x.dtype(), .n = x.size(), .x = x.data(), .result = &result});
  return result;
}

TEST(SumOfSquares, IsExactForWholeNumbers) {
  for (const DType dtype : kAllTypes) {
    Array x(dtype, 100003);
    x.fill([](int64_t i) { return static_cast<double>(i % 13 - 6); });
    double expected = 0;
    for (int64_t i = 0; i < x.size(); ++i) expected += x[i] * x[i];
    EXPECT_EQ(sum_of_squares_of(x), expected) << name(dtype);
  }
}

TEST(SumOfSquares, EveryEntryAndThreadCountGiveTheSameBits) {
  for (const DType dtype : kAllTypes) {
    for (const int64_t n : {0, 1, 31, 32, 33, 32768, 32769, 200001}) {
      Array x(dtype, n);
      x.fill_random(5);
      double expected = -1;
      SumOfSquaresArgs a{.dtype = dtype, .n = n, .x = x.data(), .result = &expected};
      reference_of(sum_of_squares_entries()).run(a, {});
      for (const auto& e : entries_for(sum_of_squares_entries(), a)) {
        for (const int threads : {1, 2, 5}) {
          double result = -1;
          a.result = &result;
          with_threads(threads, [&] { e.run(a, {}); });
          EXPECT_EQ(result, expected) << e.name << " " << n << " " << name(dtype);
        }
      }
    }
  }
}

TEST(SumOfSquares, NeitherOverflowsNorHidesNaN) {
  Array x(DType::kFloat32, 1000);
  x.fill(1e30);
  const auto element = static_cast<double>(1e30F);
  EXPECT_NEAR(sum_of_squares_of(x) / (1000 * element * element), 1, 1e-12);
  x.set(999, kNaN);
  EXPECT_TRUE(std::isnan(sum_of_squares_of(x)));
  x.set(999, -kInf);
  EXPECT_EQ(sum_of_squares_of(x), kInf);
}

TEST(FindNonfinite, CountsAllAndNamesTheFirst) {
  for (const DType dtype : kAllTypes) {
    Array x(dtype, 70001);
    x.fill_random(7);
    x.set(3, std::numeric_limits<float>::denorm_min());
    x.set(4, dtype == DType::kFloat16 ? 65504 : 3.38e38);
    NonfiniteArgs a{.dtype = dtype, .n = x.size(), .x = x.data()};
    for (const auto& e : entries_for(find_nonfinite_entries(), a)) {
      const auto results = std::make_unique<int64_t[]>(2); // a GPU does not reach the stack
      int64_t &count = results[0] = -7, &first = results[1] = -7;
      a.count = &count;
      a.first_index = &first;
      e.run(a, {});
      EXPECT_EQ(count, 0) << e.name;
      EXPECT_EQ(first, -1) << e.name;
      Array y = x;
      y.set(70000, kNaN);
      y.set(20000, -kInf);
      y.set(20001, kInf);
      NonfiniteArgs b = a;
      b.x = y.data();
      e.run(b, {});
      EXPECT_EQ(count, 3) << e.name;
      EXPECT_EQ(first, 20000) << e.name;
    }
  }
}

TEST(Cast, RoundsAsTorchDoes) {
  // Every float whose low 16 bits are a tie, or next to one, for every upper half: NaN, infinities
  // and subnormals too.
  std::vector<uint32_t> bits;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      bits.push_back(high << 16 | low);
  }
  const auto n = static_cast<int64_t>(bits.size());
  const at::Tensor x = at::from_blob(bits.data(), {n}, at::kFloat);
  for (const auto& [dtype, torch_dtype] :
       {std::pair{DType::kBFloat16, at::kBFloat16}, std::pair{DType::kFloat16, at::kHalf}}) {
    const at::Tensor expected = x.to(torch_dtype).to(at::kFloat);
    std::vector<uint16_t> out(bits.size());
    const CastArgs a{
        .dtype = DType::kFloat32, .out_dtype = dtype, .n = n, .x = bits.data(), .out = out.data()};
    for (const auto& e : entries_for(cast_entries(), a)) {
      std::fill(out.begin(), out.end(), uint16_t{0});
      e.run(a, {});
      const at::Tensor y = at::from_blob(out.data(), {n}, torch_dtype).to(at::kFloat);
      const at::Tensor same = (y == expected) | (y.isnan() & expected.isnan());
      EXPECT_TRUE(same.all().item<bool>()) << e.name << " " << name(dtype);
      std::vector<float> wide(bits.size());
      e.run({.dtype = dtype,
             .out_dtype = DType::kFloat32,
             .n = n,
             .x = out.data(),
             .out = wide.data()},
            {});
      for (size_t i = 0; i < wide.size(); ++i) // the bits of a NaN are nobody's promise
        if (std::isnan(wide[i]) && std::isnan(y.data_ptr<float>()[i]))
          wide[i] = y.data_ptr<float>()[i];
      EXPECT_EQ(std::memcmp(wide.data(), y.data_ptr<float>(), wide.size() * 4), 0)
          << e.name << " widening is exact";
    }
  }
}

TEST(Cast, ServesEveryPairOfTypesAtOddSizes) {
  for (const DType from : kAllTypes) {
    for (const DType to : kAllTypes) {
      Array x(from, 1019), y(to, 1021);
      x.fill_random(11);
      y.fill(5.0);
      cast({.dtype = from, .out_dtype = to, .n = 1019, .x = x.data(), .out = y.data()});
      Array expected(to, 1);
      for (int64_t i = 0; i < 1019; ++i) {
        expected.set(0, x[i]);
        ASSERT_EQ(y[i], expected[0]) << name(from) << " " << name(to);
      }
      EXPECT_EQ(y[1019], 5.0) << "nothing is written past the end";
    }
  }
}

TEST(Scale, EveryEntryMultipliesEveryElementAndNoMore) {
  for (const DType dtype : kAllTypes) {
    Array x(dtype, 1003);
    x.fill([](int64_t i) { return static_cast<double>(i % 100); });
    const ScaleArgs a{.dtype = dtype, .n = 1001, .x = x.data(), .factor = 0.5};
    for (const auto& e : entries_for(scale_entries(), a)) {
      Array y = x;
      ScaleArgs b = a;
      b.x = y.data();
      e.run(b, {});
      for (int64_t i = 0; i < 1003; ++i) ASSERT_EQ(y[i], x[i] * (i < 1001 ? 0.5 : 1)) << e.name;
    }
  }
}

TEST(Zero, WritesItsBytesAndNoMore) {
  std::vector<char> x(3'000'001, 'x');
  zero({.bytes = 2'999'999, .x = x.data() + 1});
  EXPECT_EQ(x.front(), 'x');
  EXPECT_EQ(x.back(), 'x');
  EXPECT_EQ(std::count(x.begin(), x.end(), '\0'), 2'999'999);
}

} // namespace
} // namespace pentatron::kernels
