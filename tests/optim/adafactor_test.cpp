// Adafactor against formulas, and with matrices split over ranks.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/optim/matrix_grid.h"
#include "pentatron/optim/optimizer.h"
#include "tests/optim/fused_model.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

const std::map<std::string, std::vector<int64_t>> kShapes = {
    {"m", {6, 5}}, {"n", {3, 7}}, {"v", {5}}};

/// As gen_adafactor.py makes starts and gradients.
at::Tensor numbers(const std::string& name, double step, bool gradient) {
  const std::vector<int64_t>& shape = kShapes.at(name);
  at::Tensor x = at::empty(shape, at::kDouble);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double n = static_cast<double>(i) + 1, shift = name.front();
    x.data_ptr<double>()[i] =
        gradient ? std::sin(0.37 * n * step + shift) : 0.5 * std::cos(0.7 * n + shift);
  }
  return x;
}

TEST(Adafactor, IsTheFormulasOfTorchAndTransformers) {
  const MappedFile file(std::filesystem::path(PENTATRON_TEST_DATA) / "optimizers/adafactor.json");
  const Json golden = parse_json(file.text(), "adafactor.json");
  ASSERT_EQ(golden.at("cases").size(), 4u);
  for (const Json& one : golden.at("cases")) {
    OptimizerConfig config{.optimizer = OptimizerKind::kAdafactor};
    config.adafactor_beta1 = one.value("beta1", 0.0);
    config.adafactor_clip_threshold = one.value("clip", 1.0);
    config.adafactor_relative_step = one.value("relative", false);
    config.adafactor_scale_parameter = one.value("scale", true);
    const double lr = one.at("lr").get<double>(), decay = one.value("weight_decay", 0.0);
    config.param_groups = {"* wd_mult=1"};
    nn::ParamList params;
    for (const auto& [name, shape] : kShapes)
      params.add({.name = name, .shape = shape}, nn::Init::normal(1), at::kDouble, {});
    plan_rules(params, config);
    nn::ResidentStore store(params, at::kCPU);
    for (nn::Param& p : params) at::Tensor(p.value()).copy_(numbers(p.name(), 0, false));
    Optimizer optimizer(config, store.shards());
    for (int step = 1; step <= 20; ++step) {
      for (nn::Param& p : params)
        p.main_grad().copy_(numbers(p.name(), step, true) * 4); // and 1/4 of it is taken
      optimizer.step(lr, decay, 0.25);
    }
    for (const nn::Param& p : params) {
      const auto weights = one.at("weights").at(p.name()).get<std::vector<double>>();
      test::expect_close(p.value().flatten(), at::tensor(weights, at::kDouble),
                         {.rtol = 1e-12, .atol = 1e-13});
    }
  }
}

/// Algorithm 4 of Shazeer & Stern 2018 (arXiv:1804.04235), with an eps that padding would add to.
TEST(Adafactor, CountsNoPadding) {
  OptimizerConfig config{.optimizer = OptimizerKind::kAdafactor};
  config.adafactor_eps = 0.1;
  nn::ParamList params;
  params.add({.name = "table",
              .shape = {5, 3},
              .shard_multiple = 8,
              .table = true,
              .placements = {{"tp", nn::Placement::shard(0)}}},
             nn::Init::normal(1), at::kDouble, {});
  plan_rules(params, config);
  nn::ResidentStore store(params, at::kCPU);
  nn::Param& table = params.find("table");
  ASSERT_EQ(table.shape(), (std::vector<int64_t>{8, 3}));
  table.initialize(3);
  Optimizer optimizer(config, store.shards());
  at::Tensor weight = table.value().narrow(0, 0, 5).clone();
  at::Tensor rows = at::zeros({5, 1}, at::kDouble), columns = at::zeros({1, 3}, at::kDouble);
  const auto rms = [](const at::Tensor& x) { return x.square().mean().sqrt().item<double>(); };
  for (int step = 1; step <= 4; ++step) {
    const at::Tensor g = test::randn({5, 3}, static_cast<uint64_t>(step)).to(at::kDouble);
    test::load_gradient(table, g);
    optimizer.step(0.02, 0, 1);
    const double kept = 1 - std::pow(step, -0.8);
    const at::Tensor squares = g.square() + 0.1;
    rows = kept * rows + (1 - kept) * squares.mean(1, /*keepdim=*/true);
    columns = kept * columns + (1 - kept) * squares.mean(0, /*keepdim=*/true);
    const at::Tensor update = g / (rows * columns / rows.mean()).sqrt();
    weight = weight - 0.02 * std::max(1e-3, rms(weight)) * update / std::max(1.0, rms(update));
    test::expect_close(table.value().narrow(0, 0, 5), weight, {.rtol = 1e-12, .atol = 1e-13});
  }
  EXPECT_EQ(table.value().narrow(0, 5, 3).abs().max().item<double>(), 0);
}

TEST(Adafactor, KeepsARowAndAColumnOfEachMatrix) {
  const nn::ShardSpec matrix{.name = {}, .shape = {40, 50}};
  const OptimizerConfig config{.optimizer = OptimizerKind::kAdafactor};
  EXPECT_NEAR(state_bytes(config, matrix, at::kFloat), 4.0 * (40 + 50) / 2000, 1e-12);
  EXPECT_EQ(state_bytes(config, {.name = {}, .shape = {50}}, at::kFloat), 4);
}

/// Weights after some steps, in global tensors, of this rank's part.
std::map<std::string, at::Tensor> trained(const OptimizerConfig& config, const comm::Group& tp) {
  test::Fused model({tp.rank(), tp.size()});
  plan_rules(model.params, config);
  nn::ResidentStore store(model.params, at::kCPU);
  std::vector<nn::Shard> shards = store.shards();
  for (nn::Shard& shard : shards) shard.tensor = tp;
  for (nn::Param& p : model.params) p.initialize(3);
  Optimizer optimizer(config, shards, tp);
  for (uint64_t step = 1; step <= 4; ++step) {
    for (nn::Param& p : model.params)
      test::load_gradient(p, test::randn(p.spec().shape, 40 * step + p.name().size()));
    optimizer.step(0.02, 0.1, 0.7);
  }
  std::map<std::string, at::Tensor> values;
  for (const nn::Param& p : model.params) {
    values[p.name()] = at::zeros(p.spec().shape, at::kDouble);
    nn::store_global(p, p.value(), values[p.name()]);
  }
  return values;
}

TEST(RulesOfMatrices, GiveTheSameWithMatricesSplitOverRanks) {
  OptimizerConfig adafactor{.optimizer = OptimizerKind::kAdafactor};
  adafactor.adafactor_beta1 = 0.9;
  adafactor.adafactor_eps = 0.1; // padding that is counted would show
  OptimizerConfig adamuon{.optimizer = OptimizerKind::kAdaptiveMuon}, normuon = adamuon;
  normuon.adaptive_muon_moment2_method = Moment2Method::kNorMuon;
  OptimizerConfig narrow;
  narrow.exp_avg_dtype = StateDtype::kFp8;
  narrow.exp_avg_sq_dtype = StateDtype::kFp16;
  OptimizerConfig slow = narrow;
  slow.adam_beta1 = 0.95;
  slow.adam_beta2 = 0.999;
  slow.exp_avg_sq_dtype = StateDtype::kFp8;
  for (const OptimizerConfig& config : {adafactor, adamuon, normuon, narrow, slow}) {
    SCOPED_TRACE(config::to_string(config.optimizer));
    const auto one = trained(config, {});
    for (const int ranks : {2, 4})
      test::run_ranks(ranks, [&](const comm::Group& tp) {
        for (const auto& [name, value] : trained(config, tp)) {
          const at::Tensor held = value.ne(0);
          test::expect_close(value, at::where(held, one.at(name), 0.0),
                             {.rtol = 1e-10, .atol = 1e-12});
          EXPECT_GT(held.sum().item<int64_t>(), 0) << name;
        }
      });
  }
}

} // namespace
} // namespace pentatron::optim
