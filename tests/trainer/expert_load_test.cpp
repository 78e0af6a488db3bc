// The load of experts: its figures, where they are shown, and who is told of experts without
// tokens.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "pentatron/base/json.h"
#include "pentatron/trainer/metrics/expert_load.h"
#include "pentatron/trainer/metrics/metrics_file.h"
#include "pentatron/trainer/notices.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

at::Tensor counts_of(const std::vector<int64_t>& numbers, int64_t experts) {
  return at::tensor(numbers, at::kLong).view({-1, experts + 1}).contiguous();
}

TEST(LayerLoads, HaveTheFiguresOfTheirDefinitions) {
  const auto loads = layer_loads({"layers.1.mlp", "layers.3.mlp"},
                                 counts_of({4, 4, 4, 4, 0, /**/ 8, 0, 6, 2, 4}, 4));
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].layer, "layers.1.mlp");
  EXPECT_DOUBLE_EQ(loads[0].largest, 1);
  EXPECT_DOUBLE_EQ(loads[0].entropy, 1);
  EXPECT_EQ(loads[0].unused, 0);
  EXPECT_EQ(loads[0].dropped, 0);
  EXPECT_THAT(loads[0].histogram, ElementsAre(0, 0, 0, 0, 4, 0, 0, 0));
  EXPECT_DOUBLE_EQ(loads[1].largest, 2);
  const double bits = 0.5 * 1 + 0.375 * std::log2(1 / 0.375) + 0.125 * 3;
  EXPECT_NEAR(loads[1].entropy, bits / 2, 1e-15);
  EXPECT_EQ(loads[1].unused, 1);
  EXPECT_DOUBLE_EQ(loads[1].dropped, 0.25);
  EXPECT_THAT(loads[1].histogram, ElementsAre(1, 0, 1, 0, 0, 1, 1, 0));
  EXPECT_TRUE(layer_loads({"layers.1.mlp"}, {}).empty());
}

TEST(ExpertWatchTest, NamesADeadExpertOnceAndAgainAfterALife) {
  ExpertWatch watch({"layers.0.mlp"}, 3);
  const auto step = [&](int64_t iteration, std::vector<int64_t> counts) {
    counts.push_back(0);
    return watch.step(iteration, layer_loads(watch.layers(), counts_of(counts, 3)));
  };
  EXPECT_TRUE(step(5, {1, 0, 0}).empty());
  EXPECT_TRUE(step(6, {1, 1, 0}).empty());
  EXPECT_THAT(step(7, {1, 0, 0}),
              ElementsAre("layers.0.mlp: expert 2 received no token in 3 steps"));
  EXPECT_TRUE(step(8, {1, 0, 0}).empty());
  EXPECT_THAT(step(9, {1, 0, 2}),
              ElementsAre("layers.0.mlp: expert 1 received no token in 3 steps"));
  step(10, {1, 1, 0});
  step(11, {1, 1, 0});
  EXPECT_THAT(step(12, {1, 1, 0}),
              ElementsAre("layers.0.mlp: expert 2 received no token in 3 steps"));
  EXPECT_EQ(watch.first(), 5);
  EXPECT_EQ(watch.last(), 12);
  EXPECT_NEAR(watch.loads()[0][0], 3 * 8.0 / 14, 1e-15);
  ExpertWatch off({"layers.0.mlp"}, 0);
  for (int64_t i = 1; i < 9; ++i)
    EXPECT_TRUE(off.step(i, layer_loads(off.layers(), counts_of({1, 0, 0, 0}, 3))).empty());
}

class MoeRun : public testing::Test {
 protected:
  Config config(const std::vector<std::string>& more) {
    test::write_documents(scratch / "data.jsonl", 100);
    std::vector<std::string> settings = {"model.num_moe_experts=4", "model.moe_layer_freq=[0,1]",
                                         "logger.dir=" + (scratch / "log")};
    settings.insert(settings.end(), more.begin(), more.end());
    return test::tiny(scratch / "data.jsonl", settings);
  }
  test::Scratch scratch;
};

TEST_F(MoeRun, ShowsTheLoadInMetricsAndAPicture) {
  const test::Trace trace = test::run(config(
      {"logger.plot=true", "model.moe_expert_capacity_factor=0.5", "model.moe_z_loss_coeff=0.01"}));
  ASSERT_FALSE(trace.steps.empty());
  for (const Json& step : trace.steps) {
    const Json& layers = step.at("experts");
    ASSERT_EQ(layers.size(), 1u);
    EXPECT_EQ(layers[0].at("layer"), "layers.1.mlp");
    EXPECT_GE(layers[0].at("max_load").get<double>(), 1);
    EXPECT_GE(layers[0].at("dropped").get<double>(), 0.5) << "half of the choices have room";
    int64_t experts = 0;
    for (const Json& n : layers[0].at("histogram")) experts += n.get<int64_t>();
    EXPECT_EQ(experts, 4);
    EXPECT_GT(step.at("z_loss").get<double>(), 0);
  }
  std::ifstream in(scratch / "log/experts.svg");
  const std::string svg(std::istreambuf_iterator<char>(in), {});
  EXPECT_THAT(svg, HasSubstr("load of experts, iterations 1 to 3"));
  EXPECT_THAT(svg, HasSubstr("layers.1.mlp, expert 3: "));
}

/// The reported loss is that of tokens alone, and evaluation knows no other.
TEST_F(MoeRun, AuxiliaryLossesAreNoPartOfTheLoss) {
  const test::Trace plain = test::run(config({"train.train_iters=1"})),
                    with = test::run(
                        config({"train.train_iters=1", "model.moe_z_loss_coeff=10",
                                "model.moe_aux_loss_coeff=10", "logger.dir=" + (scratch / "other"),
                                "model.moe_router_load_balancing_type=aux_loss"}));
  EXPECT_EQ(plain.steps[0].at("loss"), with.steps[0].at("loss"));
  EXPECT_GT(with.steps[0].at("grad_norm"), plain.steps[0].at("grad_norm"));
  EXPECT_FALSE(plain.steps[0].contains("z_loss"));
  EXPECT_NEAR(with.steps[0].at("load_balancing_loss").get<double>(), 1, 0.5);
}

TEST_F(MoeRun, SeveralLossesBalanceTogether) {
  const test::Trace trace =
      test::run(config({"model.moe_router_load_balancing_type=[seq_aux_loss,global_aux_loss]",
                        "model.moe_aux_loss_coeff=[0.5,0.25]"}));
  EXPECT_TRUE(trace.steps.at(1).contains("global_load_balancing_loss"));
  EXPECT_TRUE(trace.steps.at(1).contains("seq_load_balancing_loss"));
  const auto error = [&](const std::string& types, const std::string& coeffs) {
    return test::error_of([&] {
      config(
          {"model.moe_router_load_balancing_type=" + types, "model.moe_aux_loss_coeff=" + coeffs});
    });
  };
  EXPECT_THAT(error("[seq_aux_loss,aux_loss]", "0.5"),
              HasSubstr("has 1 value for the 2 of model.moe_router_load_balancing_type"));
  EXPECT_THAT(error("[aux_loss,sinkhorn]", "[1,1]"),
              HasSubstr("try: model.moe_router_load_balancing_type=sinkhorn"));
  EXPECT_THAT(error("[aux_loss,aux_loss]", "[1,1]"), HasSubstr("has aux_loss twice"));
}

/// It multiplies the scores of a step with the load of the step before.
TEST_F(MoeRun, TheFirstStepHasNoGlobalLoss) {
  const test::Trace trace = test::run(config({"model.moe_aux_loss_coeff=0.01"}));
  EXPECT_FALSE(trace.steps.at(0).contains("global_load_balancing_loss"));
  EXPECT_TRUE(trace.steps.at(1).contains("global_load_balancing_loss"));
}

TEST_F(MoeRun, LossesOfTheRouterAreBounded) {
  for (const char* key : {"model.moe_aux_loss_coeff", "model.moe_z_loss_coeff",
                          "model.moe_router_topk_scaling_factor"})
    for (const char* value : {"1e300", "inf"})
      EXPECT_THAT(test::error_of([&] { config({fmt::format("{}={}", key, value)}); }),
                  HasSubstr(fmt::format("try: {}=", key)))
          << value;
}

TEST_F(MoeRun, TellsOfExpertsWithoutTokens) {
  testing::internal::CaptureStderr();
  // A step that drives the router to few experts.
  test::run(config({"logger.dead_expert_steps=4", "train.train_iters=12", "optimizer.lr=1",
                    "optimizer.clip_grad=0", "model.num_moe_experts=32", "model.moe_router_topk=1",
                    "model.moe_router_pre_softmax=true"}));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text,
              HasSubstr("received no token in 4 steps\n  try: model.moe_aux_loss_coeff=0.01"));
  testing::internal::CaptureStderr();
  test::run(
      config({"logger.dead_expert_steps=1", "model.num_moe_experts=64", "model.moe_router_topk=1",
              "model.moe_router_pre_softmax=true", "train.micro_batch_size=1",
              "train.global_batch_size=1", "model.moe_router_enable_expert_bias=true",
              "train.seq_length=16", "logger.dir=" + (scratch / "biased")}));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("step\n  try: model.moe_router_bias_update_rate=0.002"));
}

/// Of a frozen layer the expert bias stays, too; and it can be frozen alone.
TEST_F(MoeRun, StepsMoveTheExpertBiasUnlessItIsFrozen) {
  const auto largest_bias = [&](const std::string& name, const std::string& freeze) {
    const test::Trace trace =
        test::run(config({"model.moe_router_enable_expert_bias=true",
                          "logger.dir=" + (scratch / name), "train.freeze=" + freeze}));
    return trace.weights.at("layers.1.mlp.router.expert_bias").abs().max().item<double>();
  };
  EXPECT_GT(largest_bias("free", "[]"), 0);
  EXPECT_EQ(largest_bias("layers", "[\"layers.*\"]"), 0);
  EXPECT_EQ(largest_bias("alone", "[\"*.router.expert_bias\"]"), 0);
}

TEST_F(MoeRun, SinkhornAndTheExpertBiasAreRefusedTogether) {
  const std::string message = test::error_of([&] {
    config({"model.moe_router_enable_expert_bias=true",
            "model.moe_router_load_balancing_type=sinkhorn"});
  });
  EXPECT_THAT(message, HasSubstr("both balance the selection"));
  EXPECT_THAT(message, HasSubstr("try: model.moe_router_load_balancing_type=none"));
}

TEST_F(MoeRun, WhatDoesNotTrainIsTold) {
  const auto told = [&](const std::string& key) {
    std::string all;
    for (const std::string& text : notices(config({"model.moe_layer_freq=1", key}), 1, true))
      all += text + "\n";
    return all;
  };
  EXPECT_THAT(told("model.moe_router_topk=1"), HasSubstr("does not train the router"));
  Config one = config({"model.moe_layer_freq=1", "model.moe_router_topk=1",
                       "model.moe_router_score_function=sigmoid"});
  EXPECT_FALSE(one.model.normalizes_topk()) << "of one, which would always be 1";
  EXPECT_THAT(notices(one, 1, true), Not(testing::Contains(HasSubstr("router"))));
  one.model.moe_router_norm_topk_prob = true;
  EXPECT_THAT(notices(one, 1, true),
              testing::Contains(HasSubstr("try: model.moe_router_norm_topk_prob=false")));
  one.model.moe_router_topk = 2;
  one.model.moe_router_norm_topk_prob.reset();
  EXPECT_TRUE(one.model.normalizes_topk());
  EXPECT_THAT(told("model.moe_layer_freq=[0,0]"), HasSubstr("leaves no layer with experts"));
  EXPECT_THAT(told("model.moe_router_topk=2"),
              Not(testing::AnyOf(HasSubstr("router"), HasSubstr("experts"))));
}

TEST_F(MoeRun, WhatHasNoEffectIsTold) {
  const auto told = [&](const std::string& key, const std::string& experts) {
    const Config c = config({"model.moe_layer_freq=1", key, "model.num_moe_experts=" + experts});
    return fmt::format("{}", fmt::join(notices(c, 1, true), "\n"));
  };
  EXPECT_THAT(told("logger.dead_expert_steps=7", "null"),
              HasSubstr("logger.dead_expert_steps=7 has no effect: the model has no experts"));
  EXPECT_THAT(told("logger.dead_expert_steps=7", "4"), Not(HasSubstr("dead_expert_steps")));
  EXPECT_THAT(told("parallel.hierarchical_context_parallel_sizes=[2,2]", "4"),
              HasSubstr("try: parallel.hierarchical_context_parallel_sizes=[]"));
}

TEST(KeysOfOneLayout, NamesWhatDependsOnRanks) {
  Config config;
  models::ModelConfig& model = config.model;
  EXPECT_EQ(keys_of_one_layout(config), "");
  model.num_moe_experts = 4;
  EXPECT_EQ(keys_of_one_layout(config), "");
  model.moe_expert_capacity_factor = 1.25;
  model.moe_router_load_balancing_type = {models::LoadBalancing::kSinkhorn};
  EXPECT_EQ(keys_of_one_layout(config), "model.moe_router_load_balancing_type=sinkhorn and "
                                        "model.moe_expert_capacity_factor=1.25");
  model = {};
  config.optimizer.optimizer = optim::OptimizerKind::kMuon;
  config.optimizer.muon_tp_mode = optim::MuonTensorMode::kBlockwise;
  EXPECT_EQ(keys_of_one_layout(config), "");
  config.parallel.tensor_model_parallel_size = 2;
  EXPECT_EQ(keys_of_one_layout(config), "optimizer.muon_tp_mode=blockwise");
  config.optimizer = {};
  config.mixed_precision.fp8 = Fp8Format::kHybrid;
  config.mixed_precision.fp8_recipe = Fp8Recipe::kDelayed;
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  EXPECT_EQ(keys_of_one_layout(config), "");
  model.num_query_groups = 1;
  EXPECT_EQ(keys_of_one_layout(config),
            "mixed_precision.fp8_recipe=delayed of key-value heads that "
            "several ranks share");
}

TEST_F(MoeRun, ForcedBalanceIsPerfect) {
  const test::Trace trace =
      test::run(config({"model.moe_router_force_load_balancing=true", "train.seq_length=16"}));
  for (const Json& step : trace.steps) EXPECT_EQ(step.at("experts")[0].at("max_load"), 1);
}

} // namespace
} // namespace pentatron::trainer
