#include "pentatron/parallelize/parallelize.h"

#include "pentatron/base/error.h"
#include "tests/nn/op_fixture.h"
#include "tests/support/ranks.h"

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
                   {.world = world, .tp = world, .dp = {}});
    const RankModel copy =
        make_model({.config = small(), .max_sequence = 8}, {.world = world, .tp = {}, .dp = world});
    const auto& qkv = split.model->params().find("layers.0.attention.qkv.weight");
    EXPECT_EQ(qkv.shape()[0] * 2, qkv.spec().shape[0]);
    const auto& whole = copy.model->params().find("layers.0.attention.qkv.weight");
    EXPECT_EQ(whole.shape(), whole.spec().shape);
  });
}

TEST(MakeModel, WhatDoesNotFitIsAConfigErrorBeforeAnythingIsAllocated) {
  EXPECT_THROW(make_model({.config = small(), .max_sequence = 33}, {}), ConfigError);
  const std::string message = test::error_of([] {
    test::run_ranks(3, [](const comm::Group& world) { // four heads, two key-value heads
      make_model({.config = small(), .build = {.tp = world}, .max_sequence = 8},
                 {.world = world, .tp = world, .dp = {}});
    });
  });
  EXPECT_NE(message.find("tp"), std::string::npos) << message;
  EXPECT_NE(message.find("try:"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::parallelize
