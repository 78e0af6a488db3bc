#include "pentatron/parallelize/parallelize.h"

#include "pentatron/base/error.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

namespace pentatron::parallelize {
namespace {

models::ModelConfig small() {
  models::ModelConfig c;
  c.num_layers = 2;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.vocab_size = 70;
  c.max_position_embeddings = 32;
  return c;
}

TEST(MakeModel, GivesEveryParameterStorageOfItsType) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    RankModel model =
        make_model({.config = small(), .build = {.dtype = dtype}, .max_sequence = 8}, {});
    int64_t total = 0;
    for (const nn::Param& param : model.model->params()) {
      EXPECT_EQ(param.value().scalar_type(), dtype);
      EXPECT_EQ(param.main_grad().scalar_type(), nn::acc_dtype(dtype));
      EXPECT_EQ(param.main_grad().sizes(), param.value().sizes());
      total += param.spec().numel();
    }
    EXPECT_EQ(total, small().num_parameters());
  }
}

TEST(MakeModel, OneSeedIsOneModel) {
  const auto values = [](uint64_t seed) {
    RankModel model = make_model({.config = small(), .max_sequence = 8}, {});
    model.model->initialize(seed);
    return model.store->values();
  };
  EXPECT_TRUE(test::same_bits(values(3), values(3)));
  EXPECT_FALSE(test::same_bits(values(3), values(4)));
}

TEST(MakeModel, WithoutGradientsForEvaluation) {
  RankModel model = make_model({.config = small(), .max_sequence = 8, .gradients = false}, {});
  EXPECT_FALSE(model.store->gradients().defined());
}

TEST(MakeModel, SplitsOverTheTensorGroupAlone) {
  test::run_ranks(2, [](const comm::Group& world) {
    const RankModel split =
        make_model({.config = small(), .build = {.tp = world}, .max_sequence = 8},
                   make_groups(world, {.tensor_model_parallel_size = 2}, nullptr, small(), {}));
    const parallel::DdpConfig ddp;
    const RankModel copy = make_model({.config = small(), .max_sequence = 8},
                                      make_groups(world, {}, &ddp, small(), {}));
    const auto& qkv = split.model->params().find("layers.0.attention.qkv.weight");
    EXPECT_EQ(qkv.shape()[0] * 2, qkv.spec().shape[0]);
    const auto& whole = copy.model->params().find("layers.0.attention.qkv.weight");
    EXPECT_EQ(whole.shape(), whole.spec().shape);
  });
}

/// "tp pp dp* shared:embedding.word.weight(0 3)"; * marks groups whose exchanges lie beside
/// kernels.
std::string needed(const ParallelConfig& parallel, const parallel::DdpConfig* ddp, bool tied,
                   int world_size) {
  models::ModelConfig config = small();
  config.untie_embeddings_and_output_weights = !tied;
  const PipelinePlan plan = plan_pipeline(parallel, config);
  std::vector<std::string> texts;
  for (const comm::NeededGroup& group : needed_groups(parallel, ddp, config, plan, world_size)) {
    std::string parts;
    for (const std::vector<int>& part : group.parts)
      parts += fmt::format("({})", fmt::join(part, " "));
    const bool beside = group.use == comm::GroupUse::kBackground;
    texts.push_back(group.name + (beside ? "*" : "") + parts);
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

TEST(PipelinePlan, ByCostCountsTheLengthOfEachStream) {
  models::ModelConfig config = models::ModelConfig::default_of(models::ModelType::kT5);
  config.num_layers = 8;
  config.hidden_size = 64;
  config.vocab_size = 128;
  const auto first_stage = [&](std::vector<int64_t> lengths) {
    const PipelinePlan plan = plan_pipeline(
        {.pipeline_model_parallel_size = 2, .pipeline_balance = PipelineBalance::kCost}, config,
        std::move(lengths));
    return plan.stages.at(0).end;
  };
  // Segment 0 is the encoder's embedding. A decoder of few tokens costs little, one of many more
  // than the encoder.
  EXPECT_LT(first_stage({256, 8}), 7);
  EXPECT_GT(first_stage({256, 512}), 9);
}

TEST(PipelinePlan, ByCostCountsTheTokensWithATarget) {
  models::ModelConfig config = models::ModelConfig::default_of(models::ModelType::kBert);
  config.num_layers = 8;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.ffn_hidden_size = 256;
  config.vocab_size = 4096;
  const auto first_stage = [&](double targets) {
    const PipelinePlan plan = plan_pipeline(
        {.pipeline_model_parallel_size = 2, .pipeline_balance = PipelineBalance::kCost}, config,
        {128}, targets);
    return plan.stages.at(0).end;
  };
  // With few masked tokens the output layer costs half a layer, with all of them four.
  EXPECT_GT(first_stage(1), first_stage(0.1) + 1);
  EXPECT_EQ(first_stage(1), first_stage(0.8)) << "too many to leave out the others";
}

TEST(NeededGroups, AreThoseThatTheRunUses) {
  parallel::DdpConfig ddp;
  EXPECT_EQ(needed({}, nullptr, true, 1), "tp pp dp");
  EXPECT_EQ(needed({}, &ddp, true, 4), "tp pp dp*");
  // Two key-value heads on four ranks; the two ends of the pipeline hold the table.
  EXPECT_EQ(needed({.tensor_model_parallel_size = 4}, &ddp, true, 4),
            "tp pp dp* tp-replicas(0 1)(2 3)");
  EXPECT_EQ(needed({.pipeline_model_parallel_size = 3,
                    .num_layers_in_first_pipeline_stage = 1,
                    .num_layers_in_last_pipeline_stage = 0},
                   &ddp, true, 3),
            "tp pp pp-channel-0(0 1) pp-channel-1(1 0) pp-channel-2(1 2) pp-channel-3(2 1) dp* "
            "shared:embedding.word.weight(0 2)");
  EXPECT_EQ(needed({.pipeline_model_parallel_size = 2}, &ddp, false, 2),
            "tp pp pp-channel-0(0 1) pp-channel-1(1 0) dp*");
  EXPECT_EQ(needed({.context_parallel_size = 2}, &ddp, true, 4), "tp pp dp cp dp-cp*");
  EXPECT_EQ(needed({.context_parallel_size = 4,
                    .cp_comm_type = {parallel::ContextComm::kA2aP2p},
                    .hierarchical_context_parallel_sizes = {2, 2}},
                   &ddp, true, 4),
            "tp pp dp cp cp-inner(0 1)(2 3) cp-outer(0 2)(1 3) dp-cp*");
  // The V shape has both ends on one rank.
  EXPECT_EQ(needed({.pipeline_model_parallel_size = 2,
                    .pipeline_schedule = PipelineSchedule::kZbV,
                    .pipeline_model_parallel_layout = "Et|t||L"},
                   &ddp, true, 2),
            "tp pp pp-channel-0(0 1) pp-channel-1(1 0) dp*");
  ddp.zero_stage = 1;
  ddp.num_distributed_optimizer_instances = 2;
  EXPECT_EQ(needed({}, &ddp, true, 4), "tp pp dp* dp-shard*(0 1)(2 3) dp-replicas*(0 2)(1 3)");
}

TEST(MakeModel, WhatDoesNotFitIsAConfigErrorBeforeAnythingIsAllocated) {
  EXPECT_THROW(make_model({.config = small(), .max_sequence = 33}, {}), ConfigError);
  const std::string message = test::error_of([] {
    test::run_ranks(3, [](const comm::Group& world) { // four heads, two key-value heads
      make_model({.config = small(), .build = {.tp = world}, .max_sequence = 8},
                 make_groups(world, {.tensor_model_parallel_size = 3}, nullptr, small(), {}));
    });
  });
  EXPECT_NE(message.find("tp"), std::string::npos) << message;
  EXPECT_NE(message.find("try:"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::parallelize
