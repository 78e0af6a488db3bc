// The foundation carries parallelism: the same model on one rank, split by tensor, and split by
// data gives the same numbers.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <mutex>

#include "pentatron/base/error.h"
#include "pentatron/data/loader.h"
#include "pentatron/trainer/step.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

constexpr int64_t kSequence = 24, kBatch = 4, kSteps = 8;

/// Two layers with everything that is split differently: grouped heads, q/k norms, biases, dropout,
/// a vocabulary that does not divide.
models::GptConfig tiny(bool tied, bool learned_positions) {
  models::GptConfig c;
  c.num_layers = 2;
  c.hidden_size = 32;
  c.num_attention_heads = 4;
  c.num_query_groups = 2;
  c.vocab_size = 131;
  c.max_position_embeddings = kSequence;
  c.add_qkv_bias = c.add_attention_proj_bias = c.add_mlp_bias = true;
  c.hidden_dropout = c.attention_dropout = 0.1;
  c.untie_embeddings_and_output_weights = !tied;
  c.embedding_init_method_std = 0.5;
  if (learned_positions) {
    c.position_embedding_type = models::PositionEmbedding::kLearnedAbsolute;
    c.normalization = models::Normalization::kLayerNorm;
    c.activation_func = models::ActivationFunction::kGeluTanh;
  } else {
    c.qk_layernorm = true;
    c.softmax_type = models::SoftmaxType::kLearnable;
  }
  return c;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, at::Tensor> weights; // global
};

/// Trains on this rank; rank 0 collects. `tp` and `dp` are this rank's groups.
void train(const models::GptConfig& config, const build::Groups& groups, bool recompute,
           int64_t micro_batch, Trained& run, std::mutex& mutex, int64_t steps = kSteps) {
  build::RankModel model = build::make_model(
      {.config = config, .dtype = at::kDouble, .max_sequence = kSequence, .recompute = recompute},
      groups);
  model.gpt->initialize(7);
  optim::Optimizer optimizer({.lr = 1e-2}, *model.store);
  Stepper stepper(model, optimizer, groups);
  data::Loader loader(std::make_shared<data::MockDataset>(config.vocab_size, kSequence, 3),
                      {.global_batch_size = kBatch,
                       .micro_batch_size = micro_batch,
                       .rank = groups.dp.rank(),
                       .size = groups.dp.size()});
  std::vector<double> losses, norms;
  for (int64_t i = 0; i < steps; ++i) {
    const StepResult result = stepper.step(
        loader.next(), {.lr = 1e-2, .weight_decay = 0.1, .clip_grad = 1.0, .seed = 11});
    losses.push_back(result.loss);
    norms.push_back(result.grad_norm);
  }
  const std::lock_guard lock(mutex);
  for (nn::Param& param : model.gpt->params()) {
    EXPECT_EQ(param.outstanding_uses(), 0) << param.name();
    auto [entry, fresh] = run.weights.try_emplace(param.name());
    if (fresh) entry->second = at::zeros(param.spec().shape, at::kDouble);
    nn::store_global(param, param.value(), entry->second);
  }
  if (groups.world.rank() == 0) {
    run.losses = losses;
    run.norms = norms;
  } else {
    EXPECT_EQ(losses.size(), static_cast<size_t>(steps));
  }
}

Trained on_one_rank(const models::GptConfig& config, bool recompute = false,
                    int64_t micro_batch = kBatch, int64_t steps = kSteps) {
  Trained run;
  std::mutex mutex;
  train(config, {}, recompute, micro_batch, run, mutex, steps);
  return run;
}

Trained on_ranks(const models::GptConfig& config, int ranks, bool by_tensor, int64_t micro_batch) {
  Trained run;
  std::mutex mutex;
  test::run_ranks(ranks, [&](const comm::Group& world) {
    const build::Groups groups = by_tensor ? build::Groups{.world = world, .tp = world, .dp = {}}
                                           : build::Groups{.world = world, .tp = {}, .dp = world};
    train(config, groups, false, micro_batch, run, mutex);
  });
  return run;
}

void expect_same(const Trained& run, const Trained& oracle, double bound) {
  for (size_t i = 0; i < oracle.losses.size(); ++i) {
    EXPECT_NEAR(run.losses[i], oracle.losses[i], bound * oracle.losses[i]) << "loss of step " << i;
    EXPECT_NEAR(run.norms[i], oracle.norms[i], bound * oracle.norms[i])
        << "gradient norm of step " << i;
  }
  for (const auto& [name, weight] : oracle.weights) {
    const double difference =
        (run.weights.at(name) - weight).norm().item<double>() / weight.norm().item<double>();
    // Without rotary positions the key part of a qkv bias has no gradient, and Adam amplifies its
    // rounding noise.
    EXPECT_LT(difference, name.ends_with("qkv.bias") ? 1e-3 : bound) << name;
  }
}

class Layout : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  models::GptConfig config() const {
    return tiny(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

TEST_P(Layout, TwoRanksByTensorAreOneRank) {
  expect_same(on_ranks(config(), 2, true, kBatch), on_one_rank(config()), 1e-10);
}
TEST_P(Layout, TwoRanksByDataAreOneRank) {
  expect_same(on_ranks(config(), 2, false, 2), on_one_rank(config()), 1e-10);
}
TEST_P(Layout, FourRanksByDataAreOneRank) {
  expect_same(on_ranks(config(), 4, false, 1), on_one_rank(config()), 1e-10);
}
TEST_P(Layout, AccumulationIsOneBatch) {
  expect_same(on_one_rank(config(), false, 1), on_one_rank(config()), 1e-10);
}
TEST_P(Layout, RecomputationChangesNothing) {
  expect_same(on_one_rank(config(), true), on_one_rank(config()), 1e-14);
}

TEST_P(Layout, TrainingMovesTheWeights) {
  const Trained run = on_one_rank(config()), start = on_one_rank(config(), false, kBatch, 0);
  for (const auto& [name, weight] : start.weights)
    EXPECT_FALSE(at::equal(run.weights.at(name), weight)) << name;
}

INSTANTIATE_TEST_SUITE_P(Models, Layout, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "tied" : "untied") +
                                  (std::get<1>(info.param) ? "_learned" : "_rotary");
                         });

TEST(LayoutErrors, ARankThatThrowsEndsTheOthersWithItsReason) {
  const std::string message = test::error_of([] {
    test::run_ranks(2, [](const comm::Group& world) {
      if (world.rank() == 1) throw Error("the disk is on fire");
      Trained run;
      std::mutex mutex;
      train(tiny(true, false), {.world = world, .tp = world, .dp = {}}, false, kBatch, run, mutex);
    });
  });
  EXPECT_NE(message.find("rank 1 of 2: the disk is on fire"), std::string::npos) << message;
}

TEST(LayoutErrors, SizesThatDoNotDivideAreAnErrorBeforeAnythingRuns) {
  const std::string message = test::error_of([] {
    test::run_ranks(3, [](const comm::Group& world) {
      build::make_model(
          {.config = tiny(true, false), .dtype = at::kDouble, .max_sequence = kSequence},
          {.world = world, .tp = world, .dp = {}});
    });
  });
  EXPECT_NE(message.find("tp"), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::trainer
