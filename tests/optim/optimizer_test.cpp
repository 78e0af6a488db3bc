// Optimizer steps against the formulas, parameter by parameter.
#include "pentatron/optim/optimizer.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

/// A matrix, a bias of odd length, a norm weight and a scalar-like vector in one store.
struct Model {
  explicit Model(at::ScalarType dtype, const std::string& frozen = "") {
    for (const auto& [name, shape] : std::map<std::string, std::vector<int64_t>>{
             {"a.weight", {5, 7}}, {"b.bias", {5}}, {"c.norm", {65}}, {"d.weight", {3, 2}}})
      params.add({.name = name, .shape = shape}, nn::Init::normal(1.0), dtype, {}).trainable =
          name != frozen;
    store = std::make_unique<nn::ResidentStore>(params, at::kCPU);
    for (nn::Param& param : params) param.initialize(3);
  }
  /// Writes the gradients of step `step` and returns them in fp64.
  std::map<std::string, at::Tensor> set_gradients(int64_t step) {
    std::map<std::string, at::Tensor> out;
    uint64_t seed = static_cast<uint64_t>(100 * step);
    for (nn::Param& param : params) {
      if (!param.trainable) continue;
      at::Tensor gradient = param.main_grad();
      gradient.copy_(test::randn(param.shape(), ++seed));
      out[param.name()] = gradient.to(at::kDouble);
    }
    return out;
  }
  nn::ParamList params;
  std::unique_ptr<nn::ResidentStore> store;
};

constexpr double kLr = 0.01, kDecay = 0.3, kScale = 0.5;

bool decays(const at::Tensor& weight) {
  return weight.dim() >= 2;
}

TEST(AdamW, DecaysTheMatricesOfAStackAndNotItsVectors) {
  nn::ParamList params;
  params.add({.name = "fc.bias", .shape = {2, 3}, .stacked_dims = 1}, nn::Init::normal(1.0),
             at::kDouble, {});
  params.add({.name = "fc.weight", .shape = {2, 3, 4}, .stacked_dims = 1}, nn::Init::normal(1.0),
             at::kDouble, {});
  const nn::ResidentStore store(params, at::kCPU);
  for (nn::Param& param : params) {
    param.initialize(3);
    param.main_grad().zero_();
  }
  const at::Tensor bias = params.find("fc.bias").value().clone(),
                   weight = params.find("fc.weight").value().clone();
  Optimizer(OptimizerConfig(), store.shards()).step(kLr, kDecay, kScale);
  test::expect_close(params.find("fc.bias").value(), bias, {0, 0});
  test::expect_close(params.find("fc.weight").value(), weight * (1 - kLr * kDecay), {1e-15, 1e-15});
}

TEST(AdamW, IsTheFormulaWithDecayOnMatricesOnly) {
  Model model(at::kDouble);
  Optimizer optimizer({.adam_beta1 = 0.8, .adam_beta2 = 0.9, .adam_eps = 1e-3},
                      model.store->shards());
  std::map<std::string, at::Tensor> weight, m, v;
  for (const nn::Param& p : model.params) {
    weight[p.name()] = p.value().clone();
    m[p.name()] = v[p.name()] = at::zeros_like(p.value());
  }
  for (int64_t step = 1; step <= 4; ++step) {
    const auto gradients = model.set_gradients(step);
    optimizer.step(kLr, kDecay, kScale);
    for (auto& [name, w] : weight) {
      const at::Tensor g = gradients.at(name) * kScale;
      m[name] = m[name] * 0.8 + g * 0.2;
      v[name] = v[name] * 0.9 + g * g * 0.1;
      const at::Tensor mean = m[name] / (1 - std::pow(0.8, step));
      const at::Tensor square = v[name] / (1 - std::pow(0.9, step));
      w = w * (decays(w) ? 1 - kLr * kDecay : 1.0) - kLr * mean / (square.sqrt() + 1e-3);
      test::expect_close(model.params.find(name).value(), w, {.rtol = 1e-12, .atol = 1e-14});
    }
  }
  EXPECT_EQ(optimizer.steps(), 4);
}

class Sgd : public testing::TestWithParam<std::tuple<double, bool>> {};

TEST_P(Sgd, IsTheFormula) {
  const auto [momentum, nesterov] = GetParam();
  Model model(at::kDouble);
  Optimizer optimizer(
      {.optimizer = OptimizerKind::kSgd, .sgd_momentum = momentum, .sgd_nesterov = nesterov},
      model.store->shards());
  std::map<std::string, at::Tensor> weight, velocity;
  for (const nn::Param& p : model.params) {
    weight[p.name()] = p.value().clone();
    velocity[p.name()] = at::zeros_like(p.value());
  }
  for (int64_t step = 1; step <= 3; ++step) {
    const auto gradients = model.set_gradients(step);
    optimizer.step(kLr, kDecay, kScale);
    for (auto& [name, w] : weight) {
      // torch.optim.SGD: decay joins the gradient, the first velocity is the gradient.
      const at::Tensor g = gradients.at(name) * kScale + (decays(w) ? kDecay : 0.0) * w;
      at::Tensor& u = velocity[name];
      u = momentum * u + g;
      w = w - kLr * (nesterov ? g + momentum * u : u);
      test::expect_close(model.params.find(name).value(), w, {.rtol = 1e-12, .atol = 1e-14});
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Sgd,
                         testing::Values(std::tuple(0.0, false), std::tuple(0.9, false),
                                         std::tuple(0.9, true)));

TEST(Lion, IsTheFormulaWithDecayOnMatricesOnly) {
  Model model(at::kDouble);
  Optimizer optimizer({.optimizer = OptimizerKind::kLion, .lion_beta1 = 0.7, .lion_beta2 = 0.95},
                      model.store->shards());
  std::map<std::string, at::Tensor> weight, m;
  for (const nn::Param& p : model.params) {
    weight[p.name()] = p.value().clone();
    m[p.name()] = at::zeros_like(p.value());
  }
  for (int64_t step = 1; step <= 4; ++step) {
    auto gradients = model.set_gradients(step);
    if (step == 1) { // nothing at all: the sign is 0
      gradients["c.norm"].zero_();
      model.params.find("c.norm").main_grad().zero_();
    }
    optimizer.step(kLr, kDecay, kScale);
    for (auto& [name, w] : weight) {
      const at::Tensor g = gradients.at(name) * kScale;
      w = w * (decays(w) ? 1 - kLr * kDecay : 1.0) - kLr * (0.7 * m[name] + 0.3 * g).sign();
      m[name] = 0.95 * m[name] + 0.05 * g;
      test::expect_close(model.params.find(name).value(), w, {.rtol = 1e-12, .atol = 1e-14});
    }
  }
}

TEST(Adam, WithAPenaltyAddsTheDecayToTheGradient) {
  Model model(at::kDouble), other(at::kDouble);
  Optimizer optimizer({.decoupled_weight_decay = false}, model.store->shards());
  Optimizer plain({}, other.store->shards());
  for (int64_t step = 1; step <= 3; ++step) {
    model.set_gradients(step);
    other.set_gradients(step);
    for (nn::Param& p : other.params) {
      at::Tensor gradient = p.main_grad();
      gradient.mul_(kScale);
      if (decays(p.value())) gradient.add_(p.value(), kDecay);
    }
    optimizer.step(kLr, kDecay, kScale);
    plain.step(kLr, 0, 1);
    for (const nn::Param& p : other.params)
      test::expect_close(model.params.find(p.name()).value(), p.value(), {.rtol = 1e-12});
  }
}

TEST(ParamGroups, MultiplyLearningRateAndDecay) {
  const OptimizerConfig config{
      .optimizer = OptimizerKind::kSgd,
      .sgd_momentum = 0,
      .param_groups = {"* lr_mult=0.5", "[bc].* wd_mult=2", "d.* lr_mult=0 wd_mult=0"}};
  Model model(at::kDouble);
  Optimizer optimizer(config, model.store->shards());
  std::map<std::string, at::Tensor> before;
  for (const nn::Param& p : model.params) before[p.name()] = p.value().clone();
  const auto gradients = model.set_gradients(1);
  optimizer.step(kLr, kDecay, kScale);
  for (const auto& [name, lr, decay] :
       std::vector<std::tuple<std::string, double, double>>{{"a.weight", kLr / 2, kDecay},
                                                            {"b.bias", kLr, 2 * kDecay},
                                                            {"c.norm", kLr, 2 * kDecay},
                                                            {"d.weight", 0, 0}})
    test::expect_close(model.params.find(name).value(),
                       before[name] * (1 - lr * decay) - lr * kScale * gradients.at(name),
                       {.rtol = 1e-12, .atol = 1e-14});
}

TEST(ParamGroups, AreRefusedIfTheySayNothing) {
  for (const char* text : {"", "a.*", "a.* lr_mult", "a.* lr_mult=", "a.* lr_mult=-1", "lr_mult=2",
                           "a.* lr_mult=1x", "a.* lr=2", "a.* lr_mult=inf"})
    EXPECT_FALSE(parse_param_group(text).has_value()) << text;
  const auto group = parse_param_group("  layers.*  wd_mult=0  lr_mult=2.5 ");
  ASSERT_TRUE(group.has_value());
  EXPECT_EQ(group->pattern, "layers.*");
  EXPECT_EQ(group->lr_mult, 2.5);
  EXPECT_EQ(group->wd_mult, 0);
  EXPECT_FALSE(parse_param_group("a lr_mult=2")->wd_mult.has_value());
}

/// Names and bytes of an element's state, by rule.
TEST(Rules, DescribeTheirState) {
  struct Case {
    OptimizerConfig config;
    std::vector<std::string> names;
    double bytes_fp32, bytes_bf16;
  };
  const std::vector<Case> cases = {
      {{}, {"exp_avg", "exp_avg_sq"}, 8, 12},
      {{.optimizer = OptimizerKind::kSgd}, {"momentum_buffer"}, 4, 8},
      {{.optimizer = OptimizerKind::kSgd, .sgd_momentum = 0}, {}, 0, 4},
      {{.optimizer = OptimizerKind::kLion}, {"exp_avg"}, 4, 8}};
  const nn::ShardSpec matrix{.name = {}, .shape = {5, 7}}, norm{.name = {}, .shape = {5}};
  EXPECT_EQ(state_bytes({.optimizer = OptimizerKind::kMuon}, norm, at::kFloat), 8);
  EXPECT_EQ(state_bytes({.optimizer = OptimizerKind::kMuon}, matrix, at::kFloat), 4);
  EXPECT_EQ(state_bytes({.optimizer = OptimizerKind::kMuon}, matrix, at::kBFloat16), 8);
  for (const Case& c : cases) {
    SCOPED_TRACE(config::to_string(c.config.optimizer));
    const nn::ShardSpec vector{.name = {}, .shape = {5}};
    EXPECT_EQ(state_bytes(c.config, vector, at::kFloat), c.bytes_fp32);
    EXPECT_EQ(state_bytes(c.config, vector, at::kDouble), 2 * c.bytes_fp32);
    EXPECT_EQ(state_bytes(c.config, vector, at::kBFloat16), c.bytes_bf16);
    Model model(at::kFloat);
    Optimizer optimizer(c.config, model.store->shards());
    std::vector<std::string> names;
    optimizer.for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                                 const at::Tensor& data) {
      EXPECT_EQ(data.numel(), piece.param->numel());
      EXPECT_EQ(data.abs().sum().item<double>(), 0);
      if (piece.param->name() == "b.bias") names.push_back(what);
    });
    EXPECT_EQ(names, c.names);
  }
}

TEST(Rules, AreNamedByFamilies) {
  Model model(at::kDouble);
  plan_rules(model.params, {.optimizer = OptimizerKind::kSgd});
  for (const nn::Param& param : model.params) EXPECT_EQ(param.rule, "sgd");
  const at::Tensor before = model.params.find("a.weight").value().clone();
  const auto gradients = model.set_gradients(1);
  // The family's rule, not the configuration's.
  Optimizer optimizer(OptimizerConfig{.sgd_momentum = 0}, model.store->shards());
  optimizer.step(kLr, 0, 1);
  test::expect_close(model.params.find("a.weight").value(), before - kLr * gradients.at("a.weight"),
                     {.rtol = 1e-12, .atol = 1e-14});
  model.params.find("a.weight").rule = "unknown";
  EXPECT_NE(test::error_of([&] { Optimizer({}, model.store->shards()); }).find("unknown"),
            std::string::npos);
}

TEST(Frozen, ParametersHaveNoStateAndStay) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    Model model(dtype, "a.weight"), all(dtype);
    Optimizer optimizer({}, model.store->shards());
    optimizer.for_each_state([](const nn::Shard&, const nn::Piece& piece, const std::string&,
                                const at::Tensor&) { EXPECT_NE(piece.param->name(), "a.weight"); });
    const at::Tensor before = model.params.find("a.weight").value().clone();
    all.set_gradients(1);
    double squares = 0;
    for (const nn::Param& param : all.params) {
      if (param.name() == "a.weight") continue;
      at::Tensor(model.params.find(param.name()).main_grad()).copy_(param.main_grad());
      squares += param.main_grad().to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(counted_sum_of_squares(model.store->shards()).item<double>(), squares,
                (dtype == at::kDouble ? 1e-12 : 1e-6) * squares);
    EXPECT_EQ(first_nonfinite_gradient(model.store->shards()), "");
    Optimizer other({}, all.store->shards());
    optimizer.step(kLr, kDecay, kScale);
    other.step(kLr, kDecay, kScale);
    for (const nn::Param& param : model.params)
      EXPECT_TRUE(at::equal(param.value(), param.name() == "a.weight"
                                               ? before
                                               : all.params.find(param.name()).value()))
          << param.name();
  }
}

TEST(FirstSteps, CountFromWhereAParameterBeginsToTrain) {
  Model late(at::kDouble), fresh(at::kDouble);
  Optimizer resumed({}, late.store->shards()), begun({}, fresh.store->shards());
  resumed.set_steps(7, {{"a.weight", 7}, {"of another rank", 3}});
  late.set_gradients(1);
  fresh.set_gradients(1);
  resumed.step(kLr, kDecay, kScale);
  begun.step(kLr, kDecay, kScale);
  EXPECT_EQ(resumed.steps(), 8);
  EXPECT_EQ(resumed.first_steps().size(), 2u);
  for (const nn::Param& param : late.params)
    EXPECT_EQ(at::equal(param.value(), fresh.params.find(param.name()).value()),
              param.name() == "a.weight")
        << param.name();
}

/// Rules and types whose step may be decided on the device.
class Queued : public testing::TestWithParam<std::tuple<OptimizerKind, at::ScalarType>> {};

TEST_P(Queued, StepsAreThoseOfTheHostAndSkippedOnesChangeNothing) {
  const auto [kind, dtype] = GetParam();
  for (const bool remainders : {false, true}) {
    if (remainders && dtype != at::kBFloat16) continue;
    const OptimizerConfig config{.optimizer = kind, .store_param_remainders = remainders};
    Model model(dtype), other(dtype);
    Optimizer queued(config, model.store->shards()), known(config, other.store->shards());
    const Optimizer::FirstSteps first = {{"a.weight", 3}};
    queued.set_steps(4, first);
    known.set_steps(4, first);
    ASSERT_TRUE(queued.can_queue());
    for (int64_t step = 1; step <= 6; ++step) {
      model.set_gradients(step);
      other.set_gradients(step);
      const bool applied = step % 3 != 0;
      if (!applied) model.params.find("c.norm").main_grad().fill_(std::nan(""));
      queued.queue_step(
          kLr, kDecay,
          at::tensor({applied ? kScale : std::nan(""), applied ? 1.0 : 0.0}, at::kDouble));
      if (applied) known.step(kLr, kDecay, kScale);
      for (const nn::Param& p : other.params)
        EXPECT_TRUE(at::equal(model.params.find(p.name()).value(), p.value()))
            << p.name() << " after step " << step;
    }
    EXPECT_EQ(known.steps(), 8);
    EXPECT_EQ(queued.steps(), 8);
    std::vector<at::Tensor> states;
    known.for_each_state([&](const auto&, const auto&, const auto&, const at::Tensor& state) {
      states.push_back(state);
    });
    size_t next = 0;
    queued.for_each_state(
        [&](const auto&, const auto&, const std::string& what, const at::Tensor& state) {
          EXPECT_TRUE(at::equal(state, states.at(next++))) << what;
        });
    model.set_gradients(7);
    other.set_gradients(7);
    queued.step(kLr, kDecay, kScale); // after queued ones
    known.step(kLr, kDecay, kScale);
    EXPECT_EQ(queued.steps(), 9);
    for (const nn::Param& p : other.params)
      EXPECT_TRUE(at::equal(model.params.find(p.name()).value(), p.value())) << p.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Queued,
                         testing::Combine(testing::Values(OptimizerKind::kAdam, OptimizerKind::kSgd,
                                                          OptimizerKind::kLion),
                                          testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

TEST(QueuedSteps, AreRefusedByWhatNeedsTheHost) {
  for (const OptimizerConfig& config :
       {OptimizerConfig{.optimizer = OptimizerKind::kMuon},
        OptimizerConfig{.optimizer = OptimizerKind::kAdafactor}, OptimizerConfig{.ema_decay = 0.9},
        OptimizerConfig{.decoupled_weight_decay = false},
        OptimizerConfig{.exp_avg_dtype = StateDtype::kFp8},
        OptimizerConfig{.adam_beta2 = 0.999, .exp_avg_sq_dtype = StateDtype::kBf16}}) {
    Model model(at::kFloat);
    EXPECT_FALSE(Optimizer(config, model.store->shards()).can_queue());
  }
  Model model(at::kFloat);
  const OptimizerConfig nearest{.adam_beta2 = 0.98, .exp_avg_sq_dtype = StateDtype::kBf16};
  EXPECT_TRUE(Optimizer(nearest, model.store->shards()).can_queue());
}

TEST(MasterWeights, KeepWhatBf16WouldLose) {
  Model model(at::kBFloat16);
  Optimizer optimizer({}, model.store->shards());
  std::map<std::string, at::Tensor> master;
  const auto collect = [&] {
    optimizer.for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                                 const at::Tensor& t) {
      const nn::Param& p = *piece.param;
      EXPECT_EQ(piece.param_begin, 0);
      if (what == "master") master[p.name()] = t.view(p.shape()).clone();
    });
  };
  collect();
  const auto before = master;
  for (int64_t step = 1; step <= 5; ++step) {
    model.set_gradients(step);
    optimizer.step(1e-6, 0, 1.0); // far below a bf16 rounding step
  }
  collect();
  for (const nn::Param& p : model.params) {
    EXPECT_EQ(master.at(p.name()).scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(master.at(p.name()), before.at(p.name()))) << p.name();
    EXPECT_TRUE(at::equal(master.at(p.name()).to(at::kBFloat16), p.value())) << p.name();
  }
}

TEST(GradNorm, IsTheNormOfAllGradientsAndClipsToIt) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    Model model(dtype);
    double squares = 0;
    for (const auto& [name, g] : model.set_gradients(1)) squares += (g * g).sum().item<double>();
    // Gradients of fp32 and bf16 models are fp32; their squares are summed in fp64 too.
    EXPECT_NEAR(counted_sum_of_squares(model.store->shards()).item<double>(), squares,
                (dtype == at::kDouble ? 1e-12 : 1e-6) * squares);
    EXPECT_EQ(first_nonfinite_gradient(model.store->shards()), "");
    model.params.find("c.norm").main_grad()[64].fill_(INFINITY);
    EXPECT_EQ(first_nonfinite_gradient(model.store->shards()), "c.norm");
    EXPECT_FALSE(std::isfinite(counted_sum_of_squares(model.store->shards()).item<double>()));
  }
  EXPECT_EQ(clip_coefficient(1.0, 0.5), 1.0);
  EXPECT_EQ(clip_coefficient(0.0, 50.0), 1.0) << "0 clips nothing";
  EXPECT_NEAR(clip_coefficient(1.0, 4.0) * 4.0, 1.0, 1e-6);
  EXPECT_EQ(clip_coefficient(1.0, 0.0), 1.0);
}

} // namespace
} // namespace pentatron::optim
