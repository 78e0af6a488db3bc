// qk-clip against a plain loop in PyTorch, and where it does not apply.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layout_runs.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kClipData = PENTATRON_TEST_DATA;

/// Two models of the tests' data with fewer and as many key heads, one of them with biases; one
/// with latents.
class QkClipGolden : public testing::TestWithParam<std::string> {};

TEST_P(QkClipGolden, FiveStepsGiveTheWeightsOfAPlainLoopOverHeads) {
  const test::Scratch scratch;
  const fs::path model = kClipData / "hf_tiny" / GetParam(), golden = kClipData / "qk_clip";
  const Json expected = read_json(golden / (GetParam() + ".json"));
  Config base;
  base.model = checkpoint::read_hf_config(model).config;
  base.checkpoint.load = "hf:" + model.string();
  const Config config = load_config(
      std::nullopt,
      {"dtype=fp64",
       "kernels=order",
       "dataset.type=batches",
       "dataset.path=" + (golden / "tokens.safetensors").string(),
       "train.train_iters=5",
       "train.global_batch_size=4",
       "train.micro_batch_size=2",
       "optimizer.lr=2e-2",
       "optimizer.min_lr=2e-2",
       "optimizer.adam_beta1=0.9",
       "optimizer.adam_beta2=0.95",
       "optimizer.adam_eps=1e-6",
       "optimizer.weight_decay=0.1",
       "optimizer.clip_grad=1.0",
       "scheduler.lr_decay_style=constant",
       "optimizer.qk_clip=true",
       fmt::format("optimizer.qk_clip_threshold={}", expected["threshold"].get<double>()),
       fmt::format("optimizer.qk_clip_alpha={}", expected["alpha"].get<double>()),
       "logger.dir=" + (scratch / "log"),
       "logger.peak_tflops=1",
       "checkpoint.export_hf=true",
       "checkpoint.save=" + (scratch / "run")},
      base, 1);
  const test::Trace run = test::run(config);
  ASSERT_EQ(run.steps.size(), 5u);
  bool some = false;
  for (size_t i = 0; i < 5; ++i) {
    for (const auto& [ours, theirs] :
         {std::pair{"loss", "loss"}, std::pair{"max_attention_logit", "max_logit"}}) {
      const double reference = expected[theirs][i].get<double>();
      EXPECT_NEAR(run.steps[i].at(ours).get<double>(), reference, 1e-11 * reference) << ours << i;
    }
    const auto clipped = run.steps[i].at("clipped_heads").get<int64_t>();
    EXPECT_EQ(clipped, expected["clipped_heads"][i].get<int64_t>()) << i;
    some = some || (clipped > 0 && clipped < expected["heads"].get<int64_t>());
  }
  EXPECT_TRUE(some) << "no step clips some heads and leaves others";
  const SafetensorsFile ours(fs::path(scratch / "run") / "hf/step_00000005/model.safetensors"),
      theirs(golden / (GetParam() + ".safetensors"));
  EXPECT_GE(theirs.tensors().size(), 4u);
  for (const auto& [name, entry] : theirs.tensors()) {
    const at::Tensor reference = checkpoint::to_tensor(entry),
                     weight = checkpoint::to_tensor(ours.at(name));
    ASSERT_EQ(weight.scalar_type(), at::kDouble);
    EXPECT_LE((weight - reference).norm().item<double>(), 1e-12 * reference.norm().item<double>())
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, QkClipGolden, testing::Values("llama", "qwen2", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

class QkClipRun : public testing::Test {
 protected:
  Config config(std::vector<std::string> more) const {
    static int run = 0;
    more.insert(more.begin(), "logger.dir=" + (scratch / fmt::format("log{}", run++)));
    return test::tiny(data, std::move(more));
  }
  test::Scratch scratch;
  std::string data = test::write_documents(scratch / "data.jsonl", 100);
};

TEST_F(QkClipRun, BringsTheLogitsOfTheSameBatchDownToTheThreshold) {
  // With a learning rate near 0 the second step sees the clipped model on other data.
  const std::vector<std::string> keys = {
      "optimizer.lr=1e-9",        "optimizer.min_lr=0",
      "optimizer.qk_clip=true",   "optimizer.qk_clip_threshold=0.3",
      "optimizer.weight_decay=0", "train.train_iters=8"};
  for (const char* more : {"model.add_qkv_bias=true", "model.attention_dropout=0.1",
                           "model.attn_logit_softcapping=5", "model.window_size=4"}) {
    std::vector<std::string> all = keys;
    all.emplace_back(more);
    const test::Trace run = test::run(config(all));
    EXPECT_GT(run.steps[0]["clipped_heads"].get<int64_t>(), 0) << more;
    EXPECT_GT(run.steps[0]["max_attention_logit"].get<double>(), 0.4) << more;
    EXPECT_LT(run.steps[7]["max_attention_logit"].get<double>(), 0.35) << more;
  }
}

TEST_F(QkClipRun, EveryImplementationFindsTheSameLogits) {
  const auto largest = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"logger.log_max_attention_logit=true", "train.train_iters=1"});
    return test::run(config(more)).steps[0].at("max_attention_logit").get<double>();
  };
  const double exact = largest({"dtype=fp64"});
  EXPECT_NEAR(largest({"dtype=fp32"}), exact, 1e-5 * exact); // the fused kernel
  EXPECT_NEAR(largest({"dtype=fp32", "model.attention_dropout=0.1"}), exact, 1e-5 * exact);
  EXPECT_NEAR(largest({"dtype=fp32", "model.softmax_type=learnable"}), exact, 1e-5 * exact);
  EXPECT_NEAR(largest({"dtype=fp32", "model.attn_logit_softcapping=2"}), exact, 1e-5 * exact);
  EXPECT_NEAR(largest({"dtype=bf16"}), exact, 2e-2 * exact);
}

TEST_F(QkClipRun, MeasuringAloneChangesNothing) {
  const test::Trace plain = test::run(config({})),
                    measured = test::run(config({"logger.log_max_attention_logit=true"})),
                    idle = test::run(config({"optimizer.qk_clip=true"}));
  for (const auto& [name, weight] : plain.weights) {
    EXPECT_TRUE(at::equal(weight, measured.weights.at(name))) << name;
    EXPECT_TRUE(at::equal(weight, idle.weights.at(name))) << name << ": no logit is above 100";
  }
  EXPECT_FALSE(plain.steps[0].contains("max_attention_logit"));
  EXPECT_FALSE(measured.steps[0].contains("clipped_heads"));
  EXPECT_EQ(idle.steps[0].at("clipped_heads"), 0);
}

TEST_F(QkClipRun, RefusesWhatItCannotClip) {
  const auto error = [&](std::vector<std::string> more) {
    more.emplace_back("optimizer.qk_clip=true");
    return test::error_of([&] { config(more); });
  };
  EXPECT_THAT(error({"model.qk_layernorm=true"}),
              AllOf(HasSubstr("model.qk_layernorm=true normalizes"),
                    HasSubstr("try: optimizer.qk_clip=false")));
  EXPECT_THAT(error({"peft.type=lora"}), HasSubstr("peft.type=lora does not train them"));
  EXPECT_THAT(error({"train.freeze=[\"layers.*\"]"}),
              HasSubstr("train.freeze freezes all of them"));
  EXPECT_THAT(test::error_of([&] { config({"optimizer.qk_clip_alpha=0.2"}); }),
              HasSubstr("try: optimizer.qk_clip_alpha=0.5"));
}

TEST(QkClipWorks, ClipSomeHeadsInSomeSteps) {
  for (const test::Work& work : test::works()) {
    if (!work.name.starts_with("clipped")) continue;
    std::vector<int64_t> clipped;
    test::train_layout(work.name, 1, " dtype=fp64 train.train_iters=8", [&](const Json& step) {
      clipped.push_back(step.at("clipped_heads").get<int64_t>());
    });
    std::ranges::sort(clipped);
    EXPECT_GT(clipped.back(), 0) << work.name;
    EXPECT_LT(clipped[2], work.name == "clipped_t5"        ? 36
                          : work.name == "clipped_windows" ? 12
                                                           : 16)
        << work.name;
  }
}

} // namespace
} // namespace pentatron::trainer
