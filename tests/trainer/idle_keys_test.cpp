// A key that was given and does nothing in this run is told, and only then.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include "pentatron/models/presets.h"
#include "pentatron/trainer/idle_keys.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Keys = std::vector<std::string>;

std::string told(Keys keys, const std::string& key, int ranks) {
  keys.push_back(key);
  return fmt::format("{}", fmt::join(idle_keys(test::tiny("unused", keys, ranks), ranks), "\n"));
}

/// `key` does nothing with the keys in `idle`, and something with those in `used`.
struct IdleCase {
  std::string key;
  Keys idle, used;
  int idle_ranks = 1, used_ranks = 1;
};

void check(const std::vector<IdleCase>& cases) {
  for (const IdleCase& c : cases) {
    SCOPED_TRACE(fmt::format("{} with [{}]", c.key, fmt::join(c.idle, ", ")));
    const std::string name = c.key.substr(0, c.key.find('='));
    const std::string text = told(c.idle, c.key, c.idle_ranks);
    EXPECT_THAT(text, AllOf(testing::ContainsRegex(name + "=[^:]+ has no effect: "),
                            HasSubstr("\n  try: remove " + name)));
    EXPECT_EQ(text.find(name + "="), text.rfind(name + "=")) << "told twice";
    EXPECT_THAT(told(c.used, c.key, c.used_ranks), Not(HasSubstr(name + "=")));
  }
}

const std::string kSave = "checkpoint.save=x", kSgd = "optimizer.optimizer=sgd",
                  kLion = "optimizer.optimizer=lion", kMuon = "optimizer.optimizer=muon",
                  kAdafactor = "optimizer.optimizer=adafactor", kMock = "dataset.type=mock",
                  kIndexed = "dataset.type=indexed", kSft = "dataset.type=sft",
                  kBatches = "dataset.type=batches",
                  kConstant = "scheduler.lr_decay_style=constant",
                  kSamples = "train.train_samples=12",
                  kPipeline = "parallel.pipeline_model_parallel_size=2";

TEST(IdleKeys, OfOtherData) {
  const Keys parts = {kIndexed, "dataset.path=", "dataset.train_data_path=a"};
  check({{"dataset.text_key=body", {kMock}, {}},
         {"dataset.text_key=body", {kIndexed}, {kSft}},
         {"dataset.text_key=body", {kBatches}, {}},
         {"dataset.text_key=body", {kIndexed}, {kIndexed, "logger.sample_prompts=[\"{}\"]"}},
         {"dataset.max_line_bytes=99", {kIndexed}, {}},
         {"dataset.max_line_bytes=99", {kMock}, {kSft}},
         {"dataset.on_bad_input=skip", {kIndexed}, {}},
         {"dataset.on_bad_input=skip", {kMock}, {kSft}},
         {"dataset.num_workers=4", {kIndexed}, {}},
         {"dataset.num_workers=4", {kMock}, {}},
         {"dataset.num_workers=4", {kSft}, {}},
         {"dataset.split=50,50", {kMock}, {kIndexed}},
         {"dataset.split=50,50", {kBatches}, {}},
         {"dataset.split=50,50", parts, {kSft}},
         {"dataset.split=50,50",
          {kSft, "dataset.path=", "dataset.train_data_path=a.jsonl"},
          {kSft}}});
}

TEST(IdleKeys, OfOtherOptimizers) {
  check({{"optimizer.adam_beta1=0.8", {kSgd}, {}},
         {"optimizer.adam_beta2=0.8", {kSgd}, {kMuon}},
         {"optimizer.adam_eps=1e-6", {kLion}, {kMuon}},
         {"optimizer.adam_eps=1e-6", {kAdafactor}, {"optimizer.optimizer=adaptive_muon"}},
         {"optimizer.exp_avg_sq_dtype=bf16", {kSgd}, {kMuon}},
         {"optimizer.exp_avg_sq_dtype=bf16", {kAdafactor}, {}},
         {"optimizer.decoupled_weight_decay=false", {kSgd}, {}},
         {"optimizer.decoupled_weight_decay=false", {kLion}, {kMuon}},
         {"optimizer.exp_avg_dtype=bf16", {kSgd, "optimizer.sgd_momentum=0"}, {kSgd}},
         {"optimizer.exp_avg_dtype=bf16",
          {kAdafactor},
          {kAdafactor, "optimizer.adafactor_beta1=0.9"}},
         {"optimizer.lion_beta1=0.8", {}, {kLion}}});
}

TEST(IdleKeys, OfPartsOfAnOptimizer) {
  const std::string latent = "model.multi_latent_attention=true",
                    unscaled = "optimizer.adafactor_scale_parameter=false";
  check({{"optimizer.muon_split_qkv=false", {kMuon, latent}, {kMuon}},
         {"optimizer.muon_split_qkv=false", {latent}, {kMuon}},
         {"optimizer.adafactor_min_scale=0.1", {kAdafactor, unscaled}, {kAdafactor}},
         {"optimizer.adafactor_min_scale=0.1", {}, {kAdafactor}},
         {"optimizer.ema_decay=0.9", {}, {kSave}},
         {"optimizer.ema_decay=0.9", {}, {"train.eval_weights=ema", "train.eval_interval=1"}}});
}

TEST(IdleKeys, OfOtherSchedules) {
  check(
      {{"optimizer.min_lr=1e-4", {kConstant}, {}},
       // The default minimum would be above the learning rate.
       {"optimizer.min_lr=1e-6", {kConstant}, {kConstant, "optimizer.lr=1e-5"}},
       {"scheduler.lr_decay_iters=2", {kConstant}, {}},
       {"scheduler.lr_decay_iters=2", {kConstant}, {kConstant, "scheduler.lr_warmup_fraction=0.5"}},
       // Without it, the warmup would be as long as the run.
       {"scheduler.lr_decay_iters=10", {kConstant}, {kConstant, "scheduler.lr_warmup_iters=3"}},
       {"scheduler.lr_decay_samples=8", {kConstant, kSamples}, {kSamples}},
       {"scheduler.lr_warmup_init=1e-3", {}, {"scheduler.lr_warmup_iters=2"}},
       {"scheduler.lr_warmup_init=1e-3", {}, {"scheduler.lr_warmup_fraction=0.5"}}});
}

TEST(IdleKeys, OfTheTrainingLoop) {
  const std::string evaluates = "train.eval_interval=1", all = "dataset.full_validation=true";
  check({{"train.train_iters=5", {kSamples}, {}},
         {"train.max_skipped_iterations=3", {}, {"train.on_nan=skip"}},
         {"train.eval_iters=3", {evaluates, all}, {evaluates}},
         {"train.eval_iters=3",
          {evaluates, all},
          {evaluates, all, kIndexed, "dataset.order=megatron"}},
         {"train.eval_iters=3", {}, {evaluates}},
         {"train.eval_weights=ema",
          {"optimizer.ema_decay=0.9"},
          {"optimizer.ema_decay=0.9", evaluates}}});
}

TEST(IdleKeys, OfCheckpoints) {
  const std::string all = "checkpoint.keep=0";
  check({{"checkpoint.keep=3", {}, {kSave}},
         {"checkpoint.on_error=continue", {}, {kSave}},
         {"checkpoint.async_save=true", {}, {kSave}},
         {"checkpoint.node_local=true", {}, {kSave}},
         {"checkpoint.keep_every=2", {kSave, all}, {kSave}},
         {"checkpoint.keep_best=2",
          {kSave, all, "checkpoint.keep_best_metric=loss"},
          {kSave, "checkpoint.keep_best_metric=loss"}},
         {"checkpoint.keep_best_metric=loss", {kSave}, {kSave, "checkpoint.keep_best=1"}}});
}

TEST(IdleKeys, OfAStartFromAModelWithoutARun) {
  const std::string model = "checkpoint.load=hf:" PENTATRON_TEST_DATA "/hf_tiny/gpt2";
  const auto text = [&](Keys keys) {
    keys.insert(keys.end(), {model, kMock, "train.seq_length=16"});
    return fmt::format("{}", fmt::join(idle_keys(load_config(std::nullopt, keys), 1), "\n"));
  };
  EXPECT_EQ(text({}), "") << "the keys of the model are not the user's";
  EXPECT_EQ(text({"checkpoint.strictness=log_all"}), "");
  for (const std::string key : {"checkpoint.finetune=true", "checkpoint.load_optimizer=false",
                                "checkpoint.check_tokenizer=false", "checkpoint.node_local=true"})
    EXPECT_THAT(text({key}), AllOf(HasSubstr(key + " has no effect: "),
                                   HasSubstr(model + " is a model without the state of a run")));
  EXPECT_EQ(text({"checkpoint.node_local=true", kSave}), "");
}

TEST(IdleKeys, OfRotaryPositions) {
  const std::string type = "model.rope_scaling.type=", factor = "model.rope_scaling.factor=2",
                    original = "model.rope_scaling.original_max_position_embeddings=64";
  check({{factor, {}, {type + "linear"}},
         {original, {}, {type + "llama3", factor}},
         {original, {type + "linear", factor}, {type + "yarn", factor}},
         {"model.rope_scaling.mscale_all_dim=1", {type + "linear"}, {type + "yarn", factor}},
         {"model.rope_scaling.long_factor=[1,1,1,1]",
          {type + "linear", factor},
          {type + "longrope", "model.rope_scaling.short_factor=[1,1,1,1]", "model.kv_channels=8"}},
         {"model.rope_local_scaling.factor=2",
          {"model.window_size=8", "model.rope_local_base_freq=100"},
          {"model.window_size=8", "model.rope_local_base_freq=100",
           "model.rope_local_scaling.type=linear"}},
         {"model.rope_scaling.beta_fast=16",
          {"model.position_embedding_type=learned_absolute"},
          {type + "yarn", factor}}});
}

TEST(IdleKeys, OfOneRank) {
  const std::string layers = "model.num_layers=3", bf16 = "dtype=bf16",
                    recipe = "mixed_precision.recipe=";
  check({{"ddp.overlap_grad_reduce=false", {}, {}, 1, 2},
         {"ddp.overlap_param_gather=false", {}, {}, 1, 2},
         {"ddp.overlap_grad_reduce=false", {kPipeline}, {}, 2, 2},
         {"ddp.overlap_grad_reduce=false",
          {"parallel.tensor_model_parallel_size=2"},
          {"parallel.context_parallel_size=2"},
          2,
          2},
         // Experts that are not split have replicas of their own.
         {"ddp.overlap_grad_reduce=false",
          {"parallel.tensor_model_parallel_size=2", "model.num_moe_experts=4"},
          {"parallel.tensor_model_parallel_size=2", "model.num_moe_experts=4",
           "parallel.expert_tensor_parallel_size=1"},
          2,
          2},
         {"dist.gpu_messages=host", {"device=cuda"}, {"device=cuda"}, 1, 2},
         {"dist.gpu_messages=host", {"device=cpu"}, {"device=cuda"}, 2, 2},
         {"deterministic=false", {"device=cpu", bf16}, {"device=cuda", bf16}},
         {"deterministic=false", {"device=cuda"}, {"device=cuda", bf16}},
         {"ddp.grad_reduce_in_fp32=false", {bf16}, {bf16}, 1, 2},
         {"ddp.grad_reduce_in_fp32=false", {}, {"dtype=fp16"}, 2, 2},
         {"ddp.grad_reduce_in_fp32=false", {recipe + "bf16_mixed"}, {recipe + "fp16_mixed"}, 1, 1},
         {"parallel.use_tp_pp_dp_mapping=true", {}, {kPipeline}, 2, 2},
         {"parallel.account_for_embedding_in_pipeline_split=true",
          {layers},
          {layers, kPipeline},
          1,
          2},
         {"parallel.account_for_loss_in_pipeline_split=true", {layers}, {layers, kPipeline}, 1, 2},
         {"parallel.pipeline_balance=cost", {}, {kPipeline}, 1, 2},
         // Stages that one rank has are cut too.
         {"parallel.pipeline_balance=cost", {}, {"parallel.pipeline_schedule=interleaved"}}});
}

TEST(IdleKeys, AreNoneWithoutKeys) {
  EXPECT_THAT(idle_keys(load_config(std::nullopt, {}), 1), IsEmpty());
  for (const std::string& name : models::preset_names())
    EXPECT_THAT(idle_keys(load_config(std::nullopt, {"model.preset=" + name}), 1), IsEmpty())
        << name;
}

TEST(MockData, OfAPathIsRefused) {
  const test::Scratch scratch;
  const auto told_of = [](const std::string& path) {
    return error_of([&] { load_config(std::nullopt, {kMock, "dataset.path=" + path}); });
  };
  EXPECT_THAT(told_of("a.jsonl"),
              AllOf(HasSubstr("dataset.path=a.jsonl has no effect with dataset.type=mock"),
                    HasSubstr("try: dataset.type=text")));
  EXPECT_THAT(told_of("a.safetensors"), HasSubstr("try: dataset.type=batches"));
  std::ofstream(scratch / "corpus.idx") << "\n";
  EXPECT_THAT(told_of(scratch / "corpus"), HasSubstr("try: dataset.type=indexed"));
  EXPECT_NO_THROW(load_config(std::nullopt, {kMock, "dataset.path="}));
}

} // namespace
} // namespace pentatron::trainer
