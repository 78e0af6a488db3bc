// State of the optimizer in fewer bytes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

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
  EXPECT_TRUE(at::equal(joined(values, remainder).view(at::kInt), all));
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
    const bool slow = kind == OptimizerKind::kMuon;
    OptimizerConfig config{.optimizer = kind};
    Narrow whole(config);
    config.store_param_remainders = true;
    Narrow split(config);
    EXPECT_TRUE(split.state("master").empty());
    for (uint64_t step = 1; step <= (slow ? 100 : 1000); ++step) {
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

TEST(NarrowState, IsRefusedWhereItCouldNotDecay) {
  const auto complaints = [](const OptimizerConfig& config) {
    config::Violations violations;
    config.validate(violations, "optimizer");
    return violations.text();
  };
  OptimizerConfig config{.adam_beta2 = 0.999};
  EXPECT_EQ(complaints(config), "");
  config.exp_avg_sq_dtype = StateDtype::kBf16;
  EXPECT_NE(complaints(config).find("optimizer.adam_beta2=0.999"), std::string::npos);
  config.adam_beta2 = 0.99;
  EXPECT_EQ(complaints(config), "");
  config = {.optimizer = OptimizerKind::kLion, .lion_beta2 = 0.999};
  config.exp_avg_dtype = StateDtype::kBf16;
  EXPECT_NE(complaints(config).find("optimizer.lion_beta2=0.999"), std::string::npos);
}

} // namespace
} // namespace pentatron::optim
