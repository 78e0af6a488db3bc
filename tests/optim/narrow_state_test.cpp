// State of the optimizer in fewer bytes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/remainder.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

TEST(Remainder, GivesEveryBitBack) {
  // All exponents and signs with mantissas around the points where bf16 rounds.
  std::vector<int32_t> bits;
  for (int64_t upper = 0; upper < 0x10000; upper += 7)
    for (const int64_t lower : {0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF})
      bits.push_back(static_cast<int32_t>(static_cast<uint32_t>(upper << 16 | lower)));
  const at::Tensor all = at::tensor(bits, at::kInt), master = all.view(at::kFloat);
  const at::Tensor values = at::empty(all.sizes(), at::kBFloat16),
                   remainder = at::empty(all.sizes(), at::kShort);
  split_master(master, values, remainder);
  const at::Tensor back = joined(values, remainder), nan = master.isnan();
  EXPECT_TRUE(back.view(at::kInt).eq(all).logical_or(nan).all().item<bool>());
  EXPECT_TRUE(at::equal(back.isnan(), nan));
  const at::Tensor half = all.bitwise_and(0xFFFF).eq(0x8000), plain = at::isfinite(master);
  const at::Tensor nearest = master.to(at::kBFloat16);
  EXPECT_TRUE(
      values.eq(nearest).logical_or(half).logical_or(plain.logical_not()).all().item<bool>());
  const at::Tensor away = values.to(at::kFloat).abs().ge(master.abs());
  EXPECT_TRUE(
      away.logical_or(half.logical_not()).logical_or(plain.logical_not()).all().item<bool>());
}

/// Matrices and vectors in bf16 with an optimizer.
struct Narrow {
  explicit Narrow(const OptimizerConfig& config, at::ScalarType dtype = at::kBFloat16) {
    for (const auto& [name, shape] : std::map<std::string, std::vector<int64_t>>{
             {"a", {40, 33}}, {"b", {129}}, {"c", {3, 700}}, {"d", {1}}})
      params.add({.name = name, .shape = shape}, nn::Init::normal(1), dtype, {});
    plan_rules(params, config);
    store = std::make_unique<nn::ResidentStore>(params, at::kCPU);
    for (nn::Param& param : params) param.initialize(3);
    optimizer = std::make_unique<Optimizer>(config, store->shards());
  }
  void step(uint64_t seed) {
    for (nn::Param& param : params)
      param.main_grad().copy_(test::randn(param.shape(), seed + 1000 * param.name().front()));
    optimizer->step(0.01, 0.1, 0.5);
  }
  std::map<std::string, at::Tensor> state(const std::string& which) {
    std::map<std::string, at::Tensor> found;
    optimizer->for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                                  const at::Tensor& data) {
      if (what == which) found[piece.param->name()] = data;
    });
    return found;
  }
  nn::ParamList params;
  std::unique_ptr<nn::ResidentStore> store;
  std::unique_ptr<Optimizer> optimizer;
};

const std::vector<OptimizerKind> kKinds = {OptimizerKind::kAdam, OptimizerKind::kSgd,
                                           OptimizerKind::kLion, OptimizerKind::kMuon};

TEST(Remainder, TrainsTheMasterWeightsOfFp32ToTheBitFor1000Steps) {
  for (const OptimizerKind kind : kKinds) {
    SCOPED_TRACE(config::to_string(kind));
    OptimizerConfig config{.optimizer = kind};
    Narrow whole(config);
    config.store_param_remainders = true;
    Narrow split(config);
    EXPECT_TRUE(split.state("master").empty());
    for (uint64_t step = 1; step <= 1000; ++step) {
      whole.step(step);
      split.step(step);
      if (step % 50 != 1) continue;
      const auto masters = whole.state("master"), remainders = split.state("remainder");
      for (const auto& [name, master] : masters) {
        const at::Tensor values = split.params.find(name).value().flatten();
        ASSERT_TRUE(at::equal(joined(values, remainders.at(name)), master)) << name << " " << step;
      }
    }
  }
}

TEST(Remainder, OfAnyNumberGivesItsBitsBackAndTheValueOfAMasterWeight) {
  std::vector<int64_t> bits = {0,          1,          0x8000,     0x7FFF,
                               0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF,
                               0x7F7FFFFF, 0x7F7F8000, 0x7F800000, 0x7FC00000,
                               0x7FFFFFFF, 0x7F800001, 0x00018000, 0x007F8000};
  const size_t positive = bits.size();
  for (size_t i = 0; i < positive; ++i) bits.push_back(bits[i] | 0x80000000);
  const at::Tensor master =
      at::tensor(bits, at::kLong).to(at::kInt).view(at::kFloat); // wraps around
  const int64_t n = master.numel();
  const at::Tensor values = at::empty({n}, at::kBFloat16), rounded = at::empty({n}, at::kBFloat16),
                   strided = at::empty({n, 2}, at::kBFloat16).select(1, 0),
                   remainder = at::empty({n}, at::kShort);
  split_master(master, values, remainder);
  round_master(rounded, master);
  round_master(strided, master);
  const at::Tensor back = joined(values, remainder), nan = master.isnan();
  EXPECT_TRUE(at::equal(back.isnan(), nan));
  EXPECT_TRUE(at::equal(values.isnan(), nan)) << "a NaN is not hidden";
  const auto numbers = [&](const at::Tensor& x) { return x.masked_select(nan.logical_not()); };
  EXPECT_TRUE(at::equal(numbers(back.view(at::kInt)), numbers(master.view(at::kInt))));
  for (const at::Tensor& other : {rounded, strided.contiguous()}) {
    EXPECT_TRUE(at::equal(other.isnan(), nan));
    EXPECT_TRUE(at::equal(numbers(other.view(at::kShort)), numbers(values.view(at::kShort))));
  }
  EXPECT_EQ(values[4].item<float>(), 1.0078125F) << "away from zero, and not to even";
  // As on devices, operator by operator.
  const at::Tensor far_values = at::empty({n, 2}, at::kBFloat16).select(1, 0),
                   far_remainder = at::empty({n, 2}, at::kShort).select(1, 0);
  split_master(master, far_values, far_remainder);
  EXPECT_TRUE(at::equal(far_values.contiguous().view(at::kShort), values.view(at::kShort)));
  EXPECT_TRUE(at::equal(far_remainder, remainder));
  EXPECT_TRUE(at::equal(joined(far_values, far_remainder).view(at::kInt), back.view(at::kInt)));
}

TEST(NarrowState, IsRoundedAfterEveryStep) {
  for (const OptimizerKind kind : kKinds) {
    SCOPED_TRACE(config::to_string(kind));
    OptimizerConfig config{.optimizer = kind};
    Narrow wide(config, at::kFloat);
    config.exp_avg_dtype = config.exp_avg_sq_dtype = StateDtype::kBf16;
    Narrow narrow(config, at::kFloat);
    for (uint64_t step = 1; step <= 5; ++step) {
      // Both begin the step with the same state.
      for (const char* what : {"exp_avg", "exp_avg_sq", "momentum_buffer"})
        for (const auto& [name, data] : wide.state(what)) {
          const at::Tensor rounded = narrow.state(what).at(name);
          EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
          at::Tensor(data).copy_(rounded);
        }
      wide.step(step);
      narrow.step(step);
      for (const nn::Param& p : wide.params)
        EXPECT_TRUE(at::equal(p.value(), narrow.params.find(p.name()).value())) << p.name();
      for (const char* what : {"exp_avg", "exp_avg_sq", "momentum_buffer"})
        for (const auto& [name, data] : wide.state(what))
          EXPECT_TRUE(at::equal(narrow.state(what).at(name), data.to(at::kBFloat16))) << name;
    }
  }
}

TEST(NarrowState, NeedsFewerBytes) {
  const nn::ShardSpec matrix{.name = {}, .shape = {5, 7}};
  OptimizerConfig config;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 12);
  config.exp_avg_dtype = StateDtype::kBf16;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 10);
  config.exp_avg_sq_dtype = StateDtype::kBf16;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 8);
  config.store_param_remainders = true;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 6);
  EXPECT_EQ(state_bytes(config, matrix, at::kFloat), 4);
  config.optimizer = OptimizerKind::kMuon;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 4);
}

TEST(NarrowState, WithScalesIsTheNearestNumberOfTheType) {
  for (const OptimizerKind kind : kKinds) {
    SCOPED_TRACE(config::to_string(kind));
    OptimizerConfig config{.optimizer = kind, .lion_beta2 = 0.9, .muon_momentum = 0.9};
    Narrow wide(config, at::kFloat);
    config.exp_avg_dtype = StateDtype::kFp8;
    config.exp_avg_sq_dtype = StateDtype::kFp16;
    Narrow narrow(config, at::kFloat);
    const auto scale_of = [&](const std::string& name, const char* what, at::ScalarType type) {
      return state_scale(narrow.optimizer->bounds().of(name + "/" + what), type);
    };
    for (uint64_t step = 1; step <= 6; ++step) {
      for (const char* what : {"exp_avg", "exp_avg_sq", "momentum_buffer"})
        for (const auto& [name, data] : wide.state(what)) {
          const at::Tensor codes = narrow.state(what).at(name);
          EXPECT_EQ(c10::elementSize(codes.scalar_type()),
                    what[3] == '_' && what[7] == '_' ? 2 : 1);
          at::Tensor(data).copy_(codes.to(at::kFloat) / scale_of(name, what, codes.scalar_type()));
        }
      wide.step(step);
      narrow.step(step);
      for (const nn::Param& p : wide.params)
        EXPECT_TRUE(at::equal(p.value(), narrow.params.find(p.name()).value())) << p.name();
      for (const char* what : {"exp_avg", "exp_avg_sq", "momentum_buffer"})
        for (const auto& [name, data] : wide.state(what)) {
          const at::Tensor codes = narrow.state(what).at(name);
          const double scale = scale_of(name, what, codes.scalar_type());
          const double most = codes.scalar_type() == at::kHalf ? 65504 : 448;
          EXPECT_TRUE(at::equal(codes.to(at::kFloat),
                                (data * scale).to(codes.scalar_type()).to(at::kFloat)))
              << name;
          EXPECT_LE((data * scale).abs().max().item<double>(), most) << name;
          // As large as it can be: the bound is not far from the mean.
          EXPECT_GT((data * scale).abs().max().item<double>(), most / 64) << name;
        }
    }
  }
}

TEST(NarrowState, ScalesArePowersOfTwoThatFit) {
  for (const double bound : {1e-30, 3e-9, 0.4, 1.0, 447.0, 448.0, 449.0, 1e9})
    for (const auto& [type, most] : {std::pair{at::kHalf, 65504.0}, {at::kFloat8_e4m3fn, 448.0}}) {
      const double scale = state_scale(bound, type);
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5);
      EXPECT_LE(bound * scale, most);
      EXPECT_GT(2 * bound * scale, most);
    }
  EXPECT_EQ(state_scale(0, at::kHalf), 1);
  EXPECT_EQ(state_scale(5, at::kBFloat16), 1);
}

/// Ranks with other parameters, and other rules of them, have the same bounds of all.
TEST(NarrowState, BoundsAreThoseOfAllRanks) {
  OptimizerConfig config{.optimizer = OptimizerKind::kMuon};
  config.exp_avg_dtype = StateDtype::kFp16;
  std::mutex mutex;
  std::vector<StateBounds::Bounds> bounds;
  test::run_ranks(2, [&](const comm::Group& world) {
    nn::ParamList params;
    const bool first = world.rank() == 0;
    params.add({.name = first ? "matrix" : "norm",
                .shape = first ? std::vector<int64_t>{3, 4} : std::vector<int64_t>{5}},
               nn::Init::normal(1), at::kFloat, {});
    params.add({.name = "both", .shape = {6}}, nn::Init::normal(1), at::kFloat, {});
    plan_rules(params, config);
    nn::ResidentStore store(params, at::kCPU);
    for (nn::Param& param : params) param.initialize(3);
    Optimizer optimizer(config, store.shards(), world);
    for (const double size : {1.0, 3.0}) {
      for (nn::Param& param : params) param.main_grad().fill_(size * (first ? -2 : 1));
      optimizer.step(0.01, 0, 0.5);
    }
    const std::lock_guard lock(mutex);
    bounds.push_back(optimizer.bounds().all());
  });
  ASSERT_EQ(bounds.size(), 2u);
  EXPECT_EQ(bounds[0], bounds[1]);
  const double mean = 0.9 * 0.1 * 1 + 0.1 * 3, momentum = 0.95 * 0.05 * 1 + 0.05 * 3;
  EXPECT_NEAR(bounds[0].at("both/exp_avg"), mean, 1e-12);
  EXPECT_NEAR(bounds[0].at("norm/exp_avg"), mean / 2, 1e-12);
  EXPECT_NEAR(bounds[0].at("matrix/momentum_buffer"), momentum, 1e-12);
}

TEST(NarrowState, OfL2IncludesTheWeights) {
  OptimizerConfig config{.decoupled_weight_decay = false};
  config.exp_avg_dtype = config.exp_avg_sq_dtype = StateDtype::kFp16;
  Narrow narrow(config, at::kFloat);
  for (nn::Param& param : narrow.params) param.main_grad().zero_();
  narrow.optimizer->step(0.01, 100, 1);
  const double scale = state_scale(narrow.optimizer->bounds().of("a/exp_avg"), at::kHalf);
  const at::Tensor mean = narrow.state("exp_avg").at("a").to(at::kFloat) / scale;
  EXPECT_GT(mean.abs().max().item<double>(), 10); // 0.1 * 100 |w|
  EXPECT_LT((mean.abs().max() * scale).item<double>(), 65504);
}

TEST(RunningMeanOfWeights, IsTheFormulaInFp32) {
  for (const bool remainders : {false, true}) {
    OptimizerConfig config{.store_param_remainders = remainders, .ema_decay = 0.75};
    Narrow model(config);
    std::map<std::string, at::Tensor> mean;
    const auto masters = [&] {
      std::map<std::string, at::Tensor> all;
      for (const auto& [name, data] : model.state(remainders ? "remainder" : "master"))
        all[name] = (remainders ? joined(model.params.find(name).value().flatten(), data) : data)
                        .to(at::kDouble);
      return all;
    };
    mean = masters();
    for (uint64_t step = 1; step <= 10; ++step) {
      model.step(step);
      for (const auto& [name, master] : masters()) mean[name] = 0.75 * mean[name] + 0.25 * master;
    }
    for (const auto& [name, data] : model.state("ema")) {
      EXPECT_EQ(data.scalar_type(), at::kFloat);
      test::expect_close(data.to(at::kDouble), mean.at(name), {.rtol = 1e-6, .atol = 1e-7});
    }
    // Swapped in and out again, nothing has changed.
    std::map<std::string, at::Tensor> before;
    for (const nn::Param& p : model.params) before[p.name()] = p.value().clone();
    model.optimizer->swap_average();
    for (const nn::Param& p : model.params)
      EXPECT_TRUE(
          at::equal(p.value().flatten(), model.state("ema").at(p.name()).to(at::kBFloat16)));
    model.optimizer->swap_average();
    for (const nn::Param& p : model.params) EXPECT_TRUE(at::equal(p.value(), before.at(p.name())));
    model.step(11);
  }
}

TEST(StateBytes, AreThoseOfTheTypes) {
  const nn::ShardSpec matrix{.name = {}, .shape = {5, 7}};
  OptimizerConfig config;
  config.exp_avg_dtype = StateDtype::kFp8;
  EXPECT_EQ(state_bytes(config, matrix, at::kFloat), 1 + 4);
  config.exp_avg_sq_dtype = StateDtype::kFp16;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 4 + 1 + 2);
  config.ema_decay = 0.9;
  EXPECT_EQ(state_bytes(config, matrix, at::kBFloat16), 4 + 1 + 2 + 4);
  config = {.optimizer = OptimizerKind::kAdaptiveMuon};
  EXPECT_EQ(state_bytes(config, matrix, at::kFloat), 8);
  config.adaptive_muon_moment2_method = Moment2Method::kNorMuon;
  EXPECT_NEAR(state_bytes(config, matrix, at::kFloat), 4 + 4.0 * (5 + 7) / 35, 1e-12);
}

TEST(NarrowState, IsRefusedWhereItHasNoBoundAndAtNoDecay) {
  const auto complaints = [](const OptimizerConfig& config) {
    config::Violations violations;
    config.validate(violations, "optimizer");
    return violations.text();
  };
  for (const OptimizerKind kind : kKinds)
    for (const StateDtype type : {StateDtype::kBf16, StateDtype::kFp16, StateDtype::kFp8})
      EXPECT_EQ(complaints({.optimizer = kind,
                            .adam_beta1 = 0.99,
                            .adam_beta2 = 0.9999,
                            .sgd_momentum = 0.999,
                            .lion_beta2 = 0.999,
                            .muon_momentum = 0.999,
                            .exp_avg_dtype = type,
                            .exp_avg_sq_dtype = type}),
                "");
  OptimizerConfig config{.optimizer = OptimizerKind::kAdafactor, .adafactor_beta1 = 0.999};
  config.exp_avg_dtype = StateDtype::kBf16;
  EXPECT_EQ(complaints(config), "");
  config.exp_avg_dtype = StateDtype::kFp16;
  EXPECT_NE(complaints(config).find("has no upper bound"), std::string::npos);
  config = {.optimizer = OptimizerKind::kAdaptiveMuon, .muon_tp_mode = MuonTensorMode::kBlockwise};
  EXPECT_NE(complaints(config).find("blockwise"), std::string::npos);
}

} // namespace
} // namespace pentatron::optim
