// Running means in narrow types whose decay is finer than the types can follow, and means of
// squares in the types of small range.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/rules.h"
#include "tests/optim/fused_model.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

using Codes = std::map<std::string, at::Tensor>; // by "<parameter>/<state>"

/// The bits of a narrow state as whole numbers.
at::Tensor bits_of(const at::Tensor& data) {
  return data.view(data.element_size() == 1 ? at::kByte : at::kShort).to(at::kLong);
}

/// The states of this rank's tensors.
Codes codes_of(Optimizer& optimizer) {
  Codes all;
  optimizer.for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                               const at::Tensor& data) {
    at::Tensor& whole = all[piece.param->name() + "/" + what];
    if (!whole.defined()) whole = at::zeros({piece.param->numel()}, at::kLong);
    whole.narrow(0, piece.param_begin, piece.size).copy_(bits_of(data));
  });
  return all;
}

void expect_same(const Codes& one, const Codes& other) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, codes] : one) EXPECT_TRUE(at::equal(codes, other.at(name))) << name;
}

OptimizerConfig in_fp8() {
  return {.adam_beta1 = 0.95,
          .adam_beta2 = 0.999,
          .exp_avg_dtype = StateDtype::kFp8,
          .exp_avg_sq_dtype = StateDtype::kFp8};
}

/// All states of a run with each of them are rounded by chance.
std::vector<OptimizerConfig> slow_configs() {
  return {in_fp8(),
          {.adam_beta1 = 0.997,
           .adam_beta2 = 0.999,
           .exp_avg_dtype = StateDtype::kBf16,
           .exp_avg_sq_dtype = StateDtype::kBf16},
          {.adam_beta1 = 0.9996,
           .adam_beta2 = 0.9999,
           .exp_avg_dtype = StateDtype::kFp16,
           .exp_avg_sq_dtype = StateDtype::kFp16},
          {.optimizer = OptimizerKind::kLion, .exp_avg_dtype = StateDtype::kFp8}};
}

TEST(SlowMeans, AreThoseThatRoundingKeepsFromDecreasing) {
  struct Case {
    at::ScalarType type;
    bool squared;
    double follows, stays; // decays
  };
  for (const Case& c : {Case{at::kBFloat16, false, 0.996, 0.9965},
                        {at::kHalf, true, 0.998, 0.9996},
                        {at::kFloat8_e4m3fn, false, 0.9375, 0.946},
                        {at::kFloat8_e4m3fn, true, 0.56, 0.9}}) {
    EXPECT_FALSE(rounds_by_chance(c.follows, c.type, c.squared)) << c.follows;
    EXPECT_TRUE(rounds_by_chance(c.stays, c.type, c.squared)) << c.stays;
    const bool root = stores_root(c.type, c.squared);
    for (const double decay : {c.follows, c.stays}) {
      // All numbers from 1 to 2; those just above 1 are the first to stay what they are.
      const at::Tensor stored = at::linspace(1, 2, 2049, at::kDouble).to(c.type);
      const at::Tensor next = at::empty_like(stored);
      store_narrow(next, widened(stored, 1, at::kDouble, root).mul_(decay), 1, c.squared);
      const bool stuck = next.to(at::kFloat).eq(stored.to(at::kFloat)).any().item<bool>();
      EXPECT_EQ(stuck, decay == c.stays) << at::toString(c.type) << " " << decay;
    }
  }
  EXPECT_FALSE(rounds_by_chance(0.999999, at::kFloat, true));
  EXPECT_FALSE(rounds_by_chance(0.999999, at::kDouble, false));
}

/// Of averages over the elements, after steps that let a mean grow and steps that let it decay.
struct Followed {
  double error, noise, exact;
};
Followed followed(at::ScalarType type, bool squared, bool chance) {
  constexpr int64_t n = 4096;
  constexpr double decay = 0.999;
  const bool root = stores_root(type, squared);
  const at::Tensor exact = at::zeros({n}, at::kDouble), stored = at::zeros({n}, at::dtype(type));
  double bound = 0;
  const auto scale = [&] { return state_scale(bound, type, root); };
  for (int64_t step = 1; step <= 600; ++step) {
    at::Tensor x = at::zeros({n}, at::kDouble);
    if (step <= 300) x = 1 + 0.5 * test::randn({n}, static_cast<uint64_t>(step));
    if (squared) x = x.square();
    const at::Tensor value =
        widened(stored, scale(), at::kFloat, root).mul(decay).add(x.to(at::kFloat), 1 - decay);
    at::Tensor(exact).mul_(decay).add_(x, 1 - decay);
    bound = decay * bound + (1 - decay) * x.abs().max().item<double>();
    if (chance)
      store_by_chance(stored, value, scale(), squared,
                      {.name = "w/mean",
                       .step = step,
                       .runs = {{.size = n, .local_step = n, .global_step = n}}});
    else
      store_narrow(stored, value, scale(), squared);
  }
  const at::Tensor error = widened(stored, scale(), at::kFloat, root).to(at::kDouble) - exact;
  return {error.mean().item<double>(), error.std().item<double>() / std::sqrt(n),
          exact.mean().item<double>()};
}

TEST(SlowMeans, FollowTheExactMeanOnAverageAndByRoundingToTheNearestDoNot) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn})
    for (const bool squared : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", at::toString(type), squared));
      const Followed chance = followed(type, squared, true),
                     nearest = followed(type, squared, false);
      EXPECT_LE(std::abs(chance.error), 5 * chance.noise);
      EXPECT_LE(5 * chance.noise, 0.05 * chance.exact) << "the bound says something";
      EXPECT_GT(std::abs(nearest.error), 50 * nearest.noise);
      EXPECT_GT(std::abs(nearest.error), 0.02 * nearest.exact);
    }
}

TEST(SlowMeans, AreRoundedByParameterStateStepAndElement) {
  nn::ParamList params;
  params.add({.name = "w", .shape = {6, 50}}, nn::Init::normal(1), at::kFloat, {});
  const OptimizerConfig config = in_fp8();
  plan_rules(params, config);
  const nn::ResidentStore store(params, at::kCPU);
  nn::Param& w = params.find("w");
  w.initialize(3);
  Optimizer optimizer(config, store.shards());
  optimizer.set_steps(10, {{"w", 4}}); // this one has made 6
  const at::Tensor g = test::randn({300}, 5).to(at::kFloat);
  w.main_grad().copy_(g.view({6, 50}));
  optimizer.step(0.01, 0.1, 1);
  EXPECT_FALSE(optimizer.can_queue());
  const Codes codes = codes_of(optimizer);
  const auto expected = [&](const std::string& state, const at::Tensor& value, bool squared,
                            const std::string& name, int64_t step) {
    const at::Tensor stored = at::zeros({300}, at::kFloat8_e4m3fn);
    store_by_chance(
        stored, value,
        state_scale(optimizer.bounds().of("w/" + state), at::kFloat8_e4m3fn, squared), squared,
        {.name = name, .step = step, .runs = nn::global_runs(w.spec(), w.where(), {0, 300})});
    return bits_of(stored);
  };
  const at::Tensor mean = g * (1 - config.adam_beta1), squares = g * (1 - config.adam_beta2) * g;
  EXPECT_TRUE(at::equal(codes.at("w/exp_avg"), expected("exp_avg", mean, false, "w/exp_avg", 7)));
  EXPECT_TRUE(at::equal(codes.at("w/exp_avg_sq"),
                        expected("exp_avg_sq", squares, true, "w/exp_avg_sq", 7)));
  for (const auto& [name, step] :
       {std::pair{"w/exp_avg", 11}, {"w/exp_avg_sq", 7}, {"v/exp_avg", 7}})
    EXPECT_FALSE(at::equal(codes.at("w/exp_avg"), expected("exp_avg", mean, false, name, step)));
}

/// Bits in the true shapes, and where this rank has any.
std::map<std::string, std::pair<at::Tensor, at::Tensor>> trained_on(const OptimizerConfig& config,
                                                                    const comm::Group& tp) {
  test::Fused model({tp.rank(), tp.size()}, at::kFloat);
  plan_rules(model.params, config);
  const nn::ResidentStore store(model.params, at::kCPU);
  for (nn::Param& p : model.params) p.initialize(3);
  Optimizer optimizer(config, store.shards(), tp);
  for (uint64_t step = 1; step <= 3; ++step) {
    for (nn::Param& p : model.params)
      test::load_gradient(p,
                          test::randn(p.spec().shape, 40 * step + p.name().size()).to(at::kFloat));
    optimizer.step(0.02, 0.1, 0.7);
  }
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> all;
  for (const auto& [name, codes] : codes_of(optimizer)) {
    const nn::Param& p = model.params.find(name.substr(0, name.find('/')));
    at::Tensor global = at::zeros(p.spec().shape, at::kLong), held = global.clone();
    nn::store_global(p, codes.view(p.shape()), global);
    nn::store_global(p, at::ones(p.shape(), at::kLong), held);
    all[name] = {global, held.to(at::kBool)};
  }
  return all;
}

TEST(SlowMeans, HaveTheBitsOfOneRankWhereTensorRanksSplitThem) {
  for (const OptimizerConfig& config : slow_configs()) {
    const auto one = trained_on(config, {});
    for (const int ranks : {2, 4})
      test::run_ranks(ranks, [&](const comm::Group& tp) {
        for (const auto& [name, state] : trained_on(config, tp)) {
          const auto& [codes, held] = state;
          EXPECT_TRUE(held.any().item<bool>()) << name;
          EXPECT_TRUE(at::equal(codes, one.at(name).first * held)) << name << " on " << ranks;
        }
      });
  }
}

/// Shards of these elements of a shard each.
std::vector<nn::Shard> cut_at(const nn::Shard& shard, const std::vector<int64_t>& places) {
  std::vector<nn::Shard> parts;
  for (size_t i = 0; i + 1 < places.size(); ++i) {
    const int64_t begin = places[i], end = places[i + 1];
    nn::Shard& part = parts.emplace_back(shard);
    part.values = shard.values.narrow(0, begin, end - begin);
    part.gradients = shard.gradients.narrow(0, begin, end - begin);
    part.pieces.clear();
    for (const nn::Piece& piece : shard.pieces) {
      const int64_t first = std::max(begin, piece.begin),
                    last = std::min(end, piece.begin + piece.size);
      if (first < last)
        part.pieces.push_back(
            {piece.param, piece.param_begin + first - piece.begin, first - begin, last - first});
    }
  }
  return parts;
}

TEST(SlowMeans, HaveTheSameBitsInEveryCut) {
  for (const OptimizerConfig& config : slow_configs())
    for (const nn::AxisPosition& tp : {nn::AxisPosition{}, {1, 2}}) {
      test::Fused model(tp, at::kFloat);
      plan_rules(model.params, config);
      const nn::ResidentStore store(model.params, at::kCPU);
      ASSERT_EQ(store.shards().size(), 1u);
      const nn::Shard whole = store.shards().front();
      const int64_t n = whole.values.numel();
      Optimizer one(config, {whole});
      Optimizer cut(config, cut_at(whole, {0, 1, 37, 101, n / 3 | 1, n / 2 | 1, n - 3, n}));
      for (uint64_t step = 1; step <= 3; ++step) {
        for (nn::Param& p : model.params)
          test::load_gradient(p, test::randn(p.spec().shape, 9 * step).to(at::kFloat));
        one.step(0.02, 0, 0.7);
        cut.step(0.02, 0, 0.7);
      }
      expect_same(codes_of(one), codes_of(cut));
    }
}

TEST(SlowMeans, GoOnBitForBit) {
  for (const OptimizerConfig& config : slow_configs()) {
    Codes whole;
    std::map<std::string, at::Tensor> values;
    for (const int64_t steps : {-1, 2, 5}) { // that a new optimizer is told behind the second step
      test::Fused model({}, at::kFloat);
      plan_rules(model.params, config);
      const nn::ResidentStore store(model.params, at::kCPU);
      for (nn::Param& p : model.params) p.initialize(3);
      auto optimizer = std::make_unique<Optimizer>(config, store.shards());
      for (uint64_t step = 1; step <= 4; ++step) {
        for (nn::Param& p : model.params)
          test::load_gradient(p, test::randn(p.spec().shape, step).to(at::kFloat));
        optimizer->step(0.02, 0.1, 0.7);
        if (step != 2 || steps < 0) continue;
        std::vector<at::Tensor> saved;
        const auto each = [&](const auto& visit) {
          optimizer->for_each_state([&](const nn::Shard&, const nn::Piece&, const std::string&,
                                        const at::Tensor& data) { visit(data); });
        };
        each([&](const at::Tensor& data) { saved.push_back(data.clone()); });
        const StateBounds::Bounds bounds = optimizer->bounds().all();
        optimizer = std::make_unique<Optimizer>(config, store.shards());
        optimizer->set_steps(steps);
        optimizer->set_bounds(bounds);
        size_t next = 0;
        each([&](const at::Tensor& data) { at::Tensor(data).copy_(saved.at(next++)); });
      }
      if (steps < 0) {
        whole = codes_of(*optimizer);
        for (const nn::Param& p : model.params) values[p.name()] = p.value().clone();
      } else if (steps == 2) {
        expect_same(codes_of(*optimizer), whole);
        for (const nn::Param& p : model.params)
          EXPECT_TRUE(at::equal(p.value(), values.at(p.name()))) << p.name();
      } else { // other steps have other random numbers
        const Codes other = codes_of(*optimizer);
        EXPECT_FALSE(at::equal(other.begin()->second, whole.begin()->second));
      }
    }
  }
}

TEST(MeansOfSquares, AreStoredAsRootsInFp8) {
  const at::Tensor v = at::exp2(-at::arange(0, 60, 0.25, at::kFloat));
  const at::Tensor stored = at::zeros(v.sizes(), at::kFloat8_e4m3fn);
  const double scale = state_scale(1, at::kFloat8_e4m3fn, true);
  EXPECT_EQ(scale, 256);
  EXPECT_EQ(state_scale(100, at::kFloat8_e4m3fn, true), 32) << "320 is 32 times the root";
  store_narrow(stored, v, scale, true);
  const at::Tensor back = widened(stored, scale, at::kFloat, true);
  const at::Tensor ratio = back / v;
  // Normal roots have four digits, the smallest ones fewer.
  EXPECT_LE(ratio.narrow(0, 0, 100).sub(1).abs().max().item<double>(), 0.14);
  EXPECT_GE(ratio.min().item<double>(), 0.4);
  EXPECT_EQ(back.min().item<double>(), std::pow(0x1p-9 / 256, 2)) << "and none is zero";
  const at::Tensor others = at::tensor({0.0F, NAN, INFINITY}), codes = stored.narrow(0, 0, 3);
  store_narrow(codes, others, scale, true);
  const at::Tensor numbers = codes.to(at::kFloat);
  EXPECT_EQ(numbers[0].item<float>(), 0);
  EXPECT_TRUE(std::isnan(numbers[1].item<float>()));
  EXPECT_EQ(numbers[2].item<float>(), 448);
}

TEST(NarrowState, IsWidenedAlsoFromWhatACheckpointRead) {
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kHalf, at::kBFloat16})
    for (const bool root : {false, true})
      for (const double scale : {1.0, 8.0, 0.25}) {
        const at::Tensor stored = at::linspace(0.5, 9, 40, at::kFloat).to(type);
        const at::Tensor expected = stored.to(at::kFloat) / scale;
        for (const at::ScalarType acc : {at::kFloat, at::kDouble})
          for (const at::Tensor& from : {stored, stored.to(at::kFloat), stored.to(at::kDouble)})
            EXPECT_TRUE(at::equal(widened(from, scale, acc, root).to(at::kFloat),
                                  root ? expected.square() : expected))
                << at::toString(type) << " " << root << " " << scale;
      }
}

TEST(MeansOfSquares, StayAboveZeroInFp16) {
  const at::Tensor v = at::tensor({0.0F, 1e-30F, 1e-8F, 1.0F});
  const at::Tensor stored = at::zeros({4}, at::kHalf);
  const std::vector<nn::GlobalRuns> runs = {{.size = 4, .local_step = 4, .global_step = 4}};
  for (const bool chance : {false, true}) {
    if (chance)
      store_by_chance(stored, v, 1, true, {.name = "w/v", .step = 1, .runs = runs});
    else
      store_narrow(stored, v, 1, true);
    const at::Tensor codes = bits_of(stored);
    EXPECT_EQ(codes[0].item<int64_t>(), 0);
    EXPECT_EQ(codes[1].item<int64_t>(), 1);
    EXPECT_EQ(codes[2].item<int64_t>(), 1);
    EXPECT_EQ(stored[3].item<float>(), 1);
  }
  store_narrow(stored, v, 1, false);
  EXPECT_EQ(bits_of(stored)[1].item<int64_t>(), 0) << "of other means as before";
}

TEST(MeansOfSquares, KeepUpdatesSmallWhereGradientsDifferByAMillion) {
  constexpr double kLr = 1e-3;
  const at::Tensor sizes = at::pow(10, -at::linspace(0, 6, 4096, at::kFloat)).view({64, 64});
  for (const auto& [beta2, type] :
       std::vector<std::pair<double, StateDtype>>{{0.999, StateDtype::kFp8},
                                                  {0.95, StateDtype::kFp8},
                                                  {0.85, StateDtype::kFp8},
                                                  {0.999, StateDtype::kFp16}}) {
    nn::ParamList params;
    params.add({.name = "w", .shape = {64, 64}}, nn::Init::constant(0), at::kFloat, {});
    const OptimizerConfig config{.adam_beta2 = beta2, .exp_avg_sq_dtype = type};
    plan_rules(params, config);
    const nn::ResidentStore store(params, at::kCPU);
    nn::Param& w = params.find("w");
    w.initialize(3);
    Optimizer optimizer(config, store.shards());
    double most = 0;
    for (uint64_t step = 1; step <= 100; ++step) {
      w.main_grad().copy_(test::randn({64, 64}, step).to(at::kFloat).mul_(sizes));
      const at::Tensor before = w.value().clone();
      optimizer.step(kLr, 0, 1);
      most = std::max(most, (w.value() - before).abs().max().item<double>());
    }
    EXPECT_LE(most, 3 * kLr) << beta2;
    EXPECT_GE(most, 0.9 * kLr) << beta2;
  }
}

TEST(MeansOfSquares, ThatForgetEverythingStayFiniteBesideACoarseMean) {
  const OptimizerConfig config{
      .adam_beta1 = 0.98, .adam_beta2 = 0, .exp_avg_dtype = StateDtype::kFp8};
  nn::ParamList params;
  params.add({.name = "w", .shape = {8, 8}}, nn::Init::constant(0), at::kFloat, {});
  plan_rules(params, config);
  const nn::ResidentStore store(params, at::kCPU);
  nn::Param& w = params.find("w");
  w.initialize(3);
  Optimizer optimizer(config, store.shards());
  for (uint64_t step = 1; step <= 3; ++step) {
    w.main_grad().copy_(test::randn({8, 8}, step));
    optimizer.step(1e-3, 0, 1);
  }
  EXPECT_TRUE(at::isfinite(w.value()).all().item<bool>());
}

TEST(MeansOfSquares, KeepUpdatesSmallBesideACoarseMean) {
  constexpr double kLr = 1e-3;
  const at::Tensor sizes = at::pow(10, -at::linspace(0, 7, 4096, at::kFloat)).view({64, 64});
  for (const StateDtype type : {StateDtype::kFp32, StateDtype::kBf16, StateDtype::kFp16}) {
    nn::ParamList params;
    params.add({.name = "w", .shape = {64, 64}}, nn::Init::constant(0), at::kFloat, {});
    const OptimizerConfig config{.adam_beta1 = 0.98,
                                 .adam_beta2 = 0.999,
                                 .exp_avg_dtype = StateDtype::kFp8,
                                 .exp_avg_sq_dtype = type};
    plan_rules(params, config);
    const nn::ResidentStore store(params, at::kCPU);
    nn::Param& w = params.find("w");
    w.initialize(3);
    Optimizer optimizer(config, store.shards());
    double most = 0, total = 0;
    for (uint64_t step = 1; step <= 200; ++step) {
      w.main_grad().copy_(test::randn({64, 64}, step).to(at::kFloat).mul_(sizes));
      const at::Tensor before = w.value().clone();
      optimizer.step(kLr, 0, 1);
      const at::Tensor moved = (w.value() - before).abs();
      most = std::max(most, moved.max().item<double>());
      total += moved.mean().item<double>();
    }
    EXPECT_LE(most, 4 * kLr) << config::to_string(type);
    EXPECT_GE(total, 5 * kLr) << config::to_string(type);
  }
}

} // namespace
} // namespace pentatron::optim
