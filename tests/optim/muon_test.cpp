// Muon against singular value decompositions, matrix by matrix.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pentatron/comm/collectives.h"
#include "pentatron/optim/matrices.h"
#include "pentatron/optim/newton_schulz.h"
#include "pentatron/optim/optimizer.h"
#include "tests/optim/fused_model.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

/// U f(S) V^T, where f is what the polynomials make of a singular value.
at::Tensor by_singular_values(const at::Tensor& x, const std::vector<Quintic>& polynomials) {
  const auto [u, s, vh] = at::linalg_svd(x / x.norm(), /*full_matrices=*/false);
  at::Tensor f = s;
  for (const auto& [a, b, c] : polynomials) f = a * f + b * f.pow(3) + c * f.pow(5);
  return u.matmul(at::diag(f)).matmul(vh);
}

TEST(NewtonSchulz, AppliesThePolynomialsToSingularValues) {
  for (const auto type :
       {MuonCoefficients::kSimple, MuonCoefficients::kQuintic, MuonCoefficients::kPolarExpress})
    for (const int64_t steps : {1, 2, 5, 8})
      for (const auto& [rows, columns] :
           std::vector<std::pair<int64_t, int64_t>>{{6, 6}, {5, 7}, {4, 50}, {50, 4}, {1, 9}}) {
        const std::vector<Quintic> polynomials = quintics(type, steps);
        const at::Tensor x = test::randn({3, rows, columns}, 7).to(at::kDouble) * 100;
        const at::Tensor y = orthogonalized(x, polynomials, 1e-7);
        for (int64_t i = 0; i < 3; ++i)
          test::expect_close(y[i], by_singular_values(x[i], polynomials),
                             {.rtol = 1e-9, .atol = 1e-11});
      }
}

TEST(NewtonSchulz, OfLargeMatricesIsTheFormula) {
  const std::vector<std::pair<at::ScalarType, double>> types = {
      {at::kDouble, 1e-13}, {at::kFloat, 5e-6}, {at::kBFloat16, 0.05}};
  for (const auto& [type, bound] : types)
    for (const auto& [stack, rows, columns] : std::vector<std::array<int64_t, 3>>{{1, 523, 530},
                                                                                  {1, 1200, 523},
                                                                                  {2, 523, 1200},
                                                                                  {2, 530, 523},
                                                                                  {1, 30, 600},
                                                                                  {1, 512, 600}}) {
      const std::vector<Quintic> polynomials = quintics(MuonCoefficients::kSimple, 3);
      const at::Tensor x = test::randn({stack, rows, columns}, 7).to(type);
      const at::Tensor y = orthogonalized(x, polynomials, 1e-7).to(at::kDouble);
      for (int64_t i = 0; i < stack; ++i) {
        at::Tensor z = x[i].to(at::kDouble);
        z /= z.norm();
        for (const auto& [a, b, c] : polynomials) {
          const at::Tensor zzz = z.matmul(z.t()).matmul(z);
          z = a * z + b * zzz + c * z.matmul(z.t()).matmul(zzz);
        }
        const double error = ((y[i] - z).norm() / z.norm()).item<double>();
        EXPECT_LT(error, bound) << at::toString(type) << " " << rows << " x " << columns;
      }
    }
}

/// Of few tokens, or early in training: most singular values are zero, and stay so.
TEST(NewtonSchulz, OfDeficientRankStaysNearTheFormulaForManySteps) {
  const at::Tensor x = test::randn({64, 8}, 7).matmul(test::randn({8, 170}, 8));
  for (const auto type :
       {MuonCoefficients::kSimple, MuonCoefficients::kQuintic, MuonCoefficients::kPolarExpress})
    for (const int64_t steps : {5, 6, 8, 10, 15, 25}) {
      const std::vector<Quintic> polynomials = quintics(type, steps);
      const at::Tensor y = orthogonalized(x.to(at::kFloat), polynomials, 1e-7).to(at::kDouble),
                       exact = by_singular_values(x.to(at::kDouble), polynomials);
      const double error = ((y - exact).norm() / exact.norm()).item<double>();
      SCOPED_TRACE(testing::Message() << config::to_string(type) << ", " << steps << " steps");
      // Rounding grows by the first coefficient in each step, as it does in any such product.
      EXPECT_LT(error, steps <= 6 ? 1e-3 : steps <= 10 ? 0.03 : 4);
      EXPECT_LT(at::linalg_matrix_norm(y, 2).item<double>(), 1.5);
    }
}

TEST(NewtonSchulz, OfPolarExpressConverges) {
  const std::vector<Quintic> polynomials = quintics(MuonCoefficients::kPolarExpress, 10);
  for (const double s : {1.0, 0.5, 0.1, 0.01, 0.002}) {
    double y = s;
    for (const auto& [a, b, c] : polynomials) y = a * y + b * std::pow(y, 3) + c * std::pow(y, 5);
    EXPECT_NEAR(y, 1, 1e-6) << s;
  }
}

TEST(NewtonSchulz, OfNothingIsNothing) {
  const at::Tensor y =
      orthogonalized(at::zeros({3, 4}, at::kDouble), quintics(MuonCoefficients::kSimple, 5), 1e-7);
  EXPECT_EQ(y.abs().max().item<double>(), 0);
}

/// The matrices of its parameters: first rows and rows.
using Rows = std::vector<std::pair<int64_t, int64_t>>;
const std::map<std::string, Rows> kMatrices = {{"qkv", {{0, 8}, {8, 4}, {12, 4}}},
                                               {"fc1", {{0, 8}, {8, 8}}},
                                               {"fc2", {{0, 6}}},
                                               {"router", {{0, 3}}},
                                               {"experts", {{0, 4}, {4, 4}}},
                                               {"down", {{0, 6}}},
                                               {"vocab_b", {{0, 14}}}};

TEST(Muon, IsTheFormulaForEveryMatrixAndAdamWForTheRest) {
  struct Case {
    OptimizerConfig config;
    std::function<double(double, double)> scale;
  };
  const auto of = [](MuonScale mode, bool nesterov, bool split) {
    return OptimizerConfig{.optimizer = OptimizerKind::kMuon,
                           .muon_momentum = 0.9,
                           .muon_nesterov = nesterov,
                           .muon_scale_mode = mode,
                           .muon_extra_scale_factor = 1.5,
                           .muon_split_qkv = split};
  };
  const std::vector<Case> cases = {
      {of(MuonScale::kOriginal, true, true),
       [](double r, double c) { return std::sqrt(std::max(1.0, r / c)); }},
      {of(MuonScale::kMatchRmsAdamW, false, true),
       [](double r, double c) { return 0.2 * std::sqrt(std::max(r, c)); }},
      {of(MuonScale::kSpectral, true, false),
       [](double r, double c) { return std::sqrt(std::max(r, c)); }},
      {of(MuonScale::kUnitRmsNorm, false, false),
       [](double r, double c) { return std::sqrt(r / c); }}};
  for (const Case& c : cases) {
    test::Fused model;
    plan_rules(model.params, c.config);
    nn::ResidentStore store(model.params, at::kCPU);
    std::map<std::string, at::Tensor> weight, mean;
    for (nn::Param& p : model.params) {
      EXPECT_EQ(p.rule, kMatrices.contains(p.name()) ? "muon" : "adam") << p.name();
      EXPECT_EQ(p.whole, kMatrices.contains(p.name())) << p.name();
      p.initialize(3);
      weight[p.name()] = p.value().clone();
      mean[p.name()] = at::zeros_like(p.value());
    }
    Optimizer optimizer(c.config, store.shards());
    const std::vector<Quintic> polynomials = quintics(MuonCoefficients::kSimple, 5);
    for (uint64_t step = 1; step <= 3; ++step) {
      for (nn::Param& p : model.params)
        test::load_gradient(p, test::randn(p.spec().shape, 10 * step + p.name().size()));
      optimizer.step(0.02, 0.1, 0.5);
      for (const auto& [name, matrices] : kMatrices) {
        nn::Param& p = model.params.find(name);
        const at::Tensor g = p.main_grad() * 0.5;
        mean[name] = 0.9 * mean[name] + 0.1 * g;
        const at::Tensor u = c.config.muon_nesterov ? 0.1 * g + 0.9 * mean[name] : mean[name];
        at::Tensor o = at::zeros_like(u);
        const Rows all = {{0, 16}};
        const bool joined = name == "qkv" && !c.config.muon_split_qkv;
        const int64_t stack = u.dim() == 3 ? u.size(0) : 1;
        for (int64_t s = 0; s < stack; ++s)
          for (const auto& [begin, rows] : joined ? all : matrices) {
            const auto part = [&](const at::Tensor& t) {
              return (t.dim() == 3 ? t[s] : t).narrow(0, begin, rows);
            };
            const auto columns = static_cast<double>(u.size(-1));
            part(o).copy_(by_singular_values(part(u), polynomials) * 1.5 *
                          c.scale(static_cast<double>(rows), columns));
          }
        weight[name] = weight[name] * (1 - 0.02 * 0.1) - 0.02 * o;
        test::expect_close(p.value(), weight[name], {.rtol = 1e-9, .atol = 1e-11});
      }
    }
  }
}

/// As Megatron's adaptive_muon, matrix by matrix.
TEST(AdaptiveMuon, IsTheFormulaForEveryMatrix) {
  for (const Moment2Method method : {Moment2Method::kAdaMuon, Moment2Method::kNorMuon}) {
    OptimizerConfig config{.optimizer = OptimizerKind::kAdaptiveMuon,
                           .muon_momentum = 0.9,
                           .muon_scale_mode = MuonScale::kSpectral,
                           .muon_extra_scale_factor = 1.5,
                           .adaptive_muon_moment2_method = method,
                           .adaptive_muon_beta2 = 0.8,
                           .adaptive_muon_eps = 1e-3};
    test::Fused model;
    plan_rules(model.params, config);
    nn::ResidentStore store(model.params, at::kCPU);
    std::map<std::string, at::Tensor> weight, mean, moment;
    for (nn::Param& p : model.params) {
      p.initialize(3);
      weight[p.name()] = p.value().clone();
      mean[p.name()] = at::zeros_like(p.value());
    }
    Optimizer optimizer(config, store.shards());
    const std::vector<Quintic> polynomials = quintics(MuonCoefficients::kSimple, 5);
    for (uint64_t step = 1; step <= 4; ++step) {
      for (nn::Param& p : model.params)
        test::load_gradient(p, test::randn(p.spec().shape, 10 * step + p.name().size()));
      optimizer.step(0.02, 0.1, 0.5);
      for (const auto& [name, matrices] : kMatrices) {
        nn::Param& p = model.params.find(name);
        const at::Tensor g = p.main_grad() * 0.5;
        mean[name] = 0.9 * mean[name] + 0.1 * g;
        const at::Tensor u = 0.1 * g + 0.9 * mean[name];
        weight[name] = weight[name] * (1 - 0.02 * 0.1);
        for (int64_t s = 0; s < (u.dim() == 3 ? u.size(0) : 1); ++s)
          for (const auto& [begin, rows] : matrices) {
            const auto part = [&](const at::Tensor& t) {
              return (t.dim() == 3 ? t[s] : t).narrow(0, begin, rows);
            };
            at::Tensor o = by_singular_values(part(u), polynomials);
            at::Tensor& v = moment[name + std::to_string(s) + "/" + std::to_string(begin)];
            const bool elements = method == Moment2Method::kAdaMuon;
            const at::Tensor squares =
                elements ? o.square() : o.square().mean(rows >= o.size(1) ? 1 : 0, true);
            v = v.defined() ? 0.8 * v + 0.2 * squares : 0.2 * squares;
            const at::Tensor norm = o.norm();
            o = elements ? o / (v.sqrt() + 1e-3) : o / v.clamp_min(1e-3).sqrt();
            if (!elements) o = o * (norm / o.norm().clamp_min(1e-3));
            const double scale = 1.5 * std::sqrt(std::max<double>(static_cast<double>(rows),
                                                                  static_cast<double>(o.size(1))));
            part(weight[name]).sub_(o, 0.02 * scale);
          }
        test::expect_close(p.value(), weight[name], {.rtol = 1e-8, .atol = 1e-10});
      }
    }
  }
}

TEST(Muon, GivesTheSameWithMatricesSplitOverRanks) {
  const OptimizerConfig config{.optimizer = OptimizerKind::kMuon};
  const auto gradient = [](const nn::Param& p) {
    return test::randn(p.spec().shape, 40 + p.name().size()).to(at::kDouble);
  };
  const auto trained = [&](const comm::Group& tp) {
    test::Fused model({tp.rank(), tp.size()});
    plan_rules(model.params, config);
    nn::ResidentStore store(model.params, at::kCPU);
    std::vector<nn::Shard> shards = store.shards();
    for (nn::Shard& shard : shards) shard.tensor = tp;
    for (nn::Param& p : model.params) {
      p.initialize(3);
      test::load_gradient(p, gradient(p));
    }
    Optimizer optimizer(config, shards);
    for (int step = 0; step < 2; ++step) optimizer.step(0.02, 0.1, 1);
    std::map<std::string, at::Tensor> values;
    for (const nn::Param& p : model.params) {
      values[p.name()] = at::zeros(p.spec().shape, at::kDouble);
      nn::store_global(p, p.value(), values[p.name()]);
    }
    return values;
  };
  const auto one = trained({});
  for (const int ranks : {2, 4})
    test::run_ranks(ranks, [&](const comm::Group& tp) {
      for (const auto& [name, value] : trained(tp)) {
        const at::Tensor held = value.ne(0);
        test::expect_close(value, at::where(held, one.at(name), 0.0),
                           {.rtol = 1e-10, .atol = 1e-12});
        EXPECT_GT(held.sum().item<int64_t>(), 0) << name;
      }
    });
}

} // namespace
} // namespace pentatron::optim
