// The models of tests/data/hf_tiny against what transformers computed for them, and training
// against PyTorch's curves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <fstream>

#include "pentatron/base/json.h"
#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/trainer/evaluate_hf.h"
#include "pentatron/trainer/score_text.h"
#include "pentatron/trainer/train.h"
#include "tests/support/ranks.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kData = PENTATRON_TEST_DATA;

fs::path scratch(const std::string& name) {
  const fs::path dir =
      fs::temp_directory_path() / ("pentatron_" + name + "_" + std::to_string(getpid()));
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

double relative(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

double max_abs(const at::Tensor& x) {
  return x.abs().max().item<double>();
}

/// Those that are expected, in fp64.
void expect_hidden(const fs::path& file, const SafetensorsFile& expected) {
  const SafetensorsFile hidden(file);
  for (const char* name : {"last_hidden_state", "encoder_last_hidden_state", "pooler_output"}) {
    if (expected.find(name) == nullptr) continue;
    const at::Tensor reference = checkpoint::to_tensor(expected.at(name));
    EXPECT_LE(max_abs(checkpoint::to_tensor(hidden.at(name)) - reference),
              1e-12 * max_abs(reference))
        << name;
  }
}

TEST(HfHidden, OfAModelWithoutHeadsAreThoseOfTransformers) {
  for (const char* name : {"bert_model", "roberta_model"}) {
    const fs::path folder = kData / "hf_tiny" / name, out = scratch("hf_hidden");
    EXPECT_FALSE(evaluate_hf({.model = folder,
                              .batches = folder / "expected.safetensors",
                              .hidden_out = out / "hidden.safetensors",
                              .dtype = Precision::kFp64,
                              .num_threads = 2}));
    const SafetensorsFile expected(folder / "expected.safetensors");
    EXPECT_NE(expected.find("pooler_output"), nullptr);
    expect_hidden(out / "hidden.safetensors", expected);
    fs::remove_all(out);
  }
}

/// A folder of the model as transformers saves the class `body`, without its output layer: without
/// `prefix` in the names of tensors, either.
void write_without_head(const fs::path& from, const fs::path& to, const std::string& body,
                        const std::string& prefix) {
  Json config = read_json(from / "config.json");
  config["architectures"] = {body};
  std::ofstream(to / "config.json") << config;
  std::map<std::string, at::Tensor> tensors;
  const SafetensorsFile file(from / "model.safetensors");
  for (const auto& [name, entry] : file.tensors())
    if (name != "lm_head.weight")
      tensors[name.starts_with(prefix) ? name.substr(prefix.size()) : name] =
          checkpoint::to_tensor(entry);
  checkpoint::write_tensors(to / "model.safetensors", tensors);
}

TEST(HfHidden, OfADecoderWithoutItsOutputLayerAreThoseOfTheWholeModel) {
  struct Case {
    const char *model, *body, *prefix;
    bool tied = false;
  };
  for (const auto& [model, body, prefix, tied] :
       {Case{"llama", "LlamaModel", "model."}, Case{"mixtral", "MixtralModel", "model."},
        Case{"qwen2", "Qwen2Model", "model.", true},
        Case{"gpt2", "GPT2Model", "transformer.", true},
        Case{"t5_v1_1_gated", "T5Model", "", true}}) {
    SCOPED_TRACE(body);
    const fs::path folder = kData / "hf_tiny" / model, out = scratch("hf_body");
    write_without_head(folder, out, body, prefix);
    HfEvaluation options{.model = folder,
                         .batches = folder / "expected.safetensors",
                         .logits_out = out / "logits.safetensors",
                         .hidden_out = out / "whole.safetensors",
                         .dtype = Precision::kFp64,
                         .num_threads = 2};
    EXPECT_TRUE(evaluate_hf(options));
    options.model = out;
    options.hidden_out = out / "hidden.safetensors";
    const std::string error = tied ? "" : test::error_of([&] { evaluate_hf(options); });
    EXPECT_THAT(error, HasSubstr(tied ? "" : "lm_head.weight is missing"));
    options.logits_out.clear();
    EXPECT_FALSE(evaluate_hf(options)) << "no loss";
    const SafetensorsFile hidden(out / "hidden.safetensors"), whole(out / "whole.safetensors");
    EXPECT_EQ(hidden.tensors().size(), whole.tensors().size());
    for (const auto& [name, entry] : whole.tensors())
      EXPECT_TRUE(at::equal(checkpoint::to_tensor(hidden.at(name)), checkpoint::to_tensor(entry)))
          << name;
    fs::remove_all(out);
  }
}

/// As of BertForPreTraining in transformers, whose loss is the sum of both.
TEST(HfEvaluation, AModelWithTwoLossesGivesNoneIfTheLabelsOfOneAreMissing) {
  const fs::path folder = kData / "hf_tiny/bert", out = scratch("hf_one_label");
  const SafetensorsFile expected(folder / "expected.safetensors");
  for (const std::string missing : {"labels", "next_sentence_label"}) {
    std::map<std::string, at::Tensor> batch;
    for (const char* name :
         {"input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label"})
      if (name != missing) batch[name] = checkpoint::to_tensor(expected.at(name));
    checkpoint::write_tensors(out / "batch.safetensors", batch);
    HfEvaluation options{.model = folder,
                         .batches = out / "batch.safetensors",
                         .logits_out = out / "logits.safetensors",
                         .dtype = Precision::kFp64,
                         .num_threads = 2};
    EXPECT_FALSE(evaluate_hf(options)) << missing;
    const SafetensorsFile logits(out / "logits.safetensors");
    const at::Tensor reference = checkpoint::to_tensor(expected.at("logits")); // rounded to fp32
    EXPECT_LE(max_abs((checkpoint::to_tensor(logits.at("logits")) - reference) / reference),
              0x1p-23);
    options.grads_out = out / "grads.safetensors";
    EXPECT_THAT(test::error_of([&] { evaluate_hf(options); }),
                HasSubstr("needs " + missing + " too, which"));
  }
  fs::remove_all(out);
}

/// transformers' cross-entropy without a target is NaN, and so is the sum.
TEST(HfEvaluation, AModelWithTwoLossesHasNoTotalIfOneHasNoTarget) {
  const fs::path folder = kData / "hf_tiny/bert", out = scratch("hf_no_target");
  const SafetensorsFile expected(folder / "expected.safetensors");
  HfEvaluation options{.model = folder,
                       .batches = folder / "expected.safetensors",
                       .dtype = Precision::kFp64,
                       .num_threads = 2};
  const Scores both = evaluate_hf(options)->figures;
  ASSERT_EQ(both.size(), 2u);
  options.batches = out / "batch.safetensors";
  for (const bool first : {true, false}) {
    std::map<std::string, at::Tensor> batch;
    for (const char* name :
         {"input_ids", "attention_mask", "token_type_ids", "labels", "next_sentence_label"})
      batch[name] = checkpoint::to_tensor(expected.at(name)).clone();
    const char* const empty = first ? "labels" : "next_sentence_label";
    batch[empty].fill_(-100);
    checkpoint::write_tensors(options.batches, batch);
    options.grads_out.clear();
    ::testing::internal::CaptureStderr();
    const std::optional<Evaluation> result = evaluate_hf(options);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                AllOf(HasSubstr(std::string(first ? "lm loss" : "sop loss") + " has no target in"),
                      HasSubstr("where all " + std::string(empty) + " are ignored")));
    ASSERT_TRUE(result);
    EXPECT_FALSE(result->loss);
    EXPECT_EQ(result->figures, Scores{both[first ? 1 : 0]});
    options.grads_out = out / "grads.safetensors";
    EXPECT_THAT(test::error_of([&] { evaluate_hf(options); }),
                HasSubstr("needs a loss, but all " + std::string(empty) + " of"));
  }
  fs::remove_all(out);
}

TEST(HfOutputs, ThatTheModelDoesNotGiveAreRefusedBeforeTheWork) {
  const fs::path folder = kData / "hf_tiny/bert_model", out = scratch("hf_outputs");
  const auto error = [&](HfEvaluation options) {
    options.model = folder;
    options.batches = folder / "expected.safetensors";
    return test::error_of([&] { evaluate_hf(options); });
  };
  const fs::path file = out / "file.safetensors", other = out / "other.safetensors";
  EXPECT_THAT(error({.logits_out = file}),
              AllOf(HasSubstr("--logits-out " + file.string() + " needs logits"),
                    HasSubstr("model.head=none"), HasSubstr("try: --hidden-out " + file.string())));
  EXPECT_THAT(error({.grads_out = file}),
              AllOf(HasSubstr("--grads-out " + file.string() + " needs a loss"),
                    HasSubstr("try: --hidden-out " + file.string())));
  EXPECT_THAT(error({.logits_out = file, .hidden_out = other}),
              HasSubstr("try: remove --logits-out"));
  EXPECT_TRUE(fs::is_empty(out));
  fs::remove_all(out);
}

TEST(HfPositions, OfABatchAreRowsOfTheTable) {
  const fs::path folder = kData / "hf_tiny/roberta_masked_lm", out = scratch("hf_positions");
  const SafetensorsFile expected(folder / "expected.safetensors");
  const auto loss_with = [&](int64_t first, int64_t length) {
    std::map<std::string, at::Tensor> batch;
    // None is padding.
    batch["input_ids"] = checkpoint::to_tensor(expected.at("input_ids"))
                             .narrow(1, 0, length)
                             .clamp_min(5)
                             .contiguous();
    batch["labels"] = batch["input_ids"];
    if (first >= 0)
      batch["position_ids"] =
          (at::arange(length, at::kLong) + first).expand_as(batch["input_ids"]).contiguous();
    checkpoint::write_tensors(out / "batch.safetensors", batch);
    return evaluate_hf({.model = folder,
                        .batches = out / "batch.safetensors",
                        .dtype = Precision::kFp64,
                        .num_threads = 1})
        ->loss.value();
  };
  EXPECT_EQ(loss_with(2, 6), loss_with(-1, 6)); // RoBERTa counts from 2
  EXPECT_NE(loss_with(0, 6), loss_with(-1, 6));
  const Json config = read_json(folder / "config.json");
  const auto rows = config.at("max_position_embeddings").get<int64_t>();
  EXPECT_GT(loss_with(rows - 6, 6), 0); // the last rows, too
  EXPECT_THROW(loss_with(rows - 5, 6), DataError);
  fs::remove_all(out);
}

/// Rotary attention sees differences of positions alone.
TEST(HfEvaluation, RotaryPositionsMayLieBehindTheBatch) {
  const fs::path folder = kData / "hf_tiny/llama", out = scratch("hf_rotary_positions");
  const SafetensorsFile expected(folder / "expected.safetensors");
  const at::Tensor ids = checkpoint::to_tensor(expected.at("input_ids"));
  const auto loss_from = [&](int64_t first) {
    checkpoint::write_tensors(
        out / "batch.safetensors",
        {{"input_ids", ids},
         {"position_ids",
          (at::arange(ids.size(1), at::kLong) + first).expand_as(ids).contiguous()}});
    return evaluate_hf({.model = folder,
                        .batches = out / "batch.safetensors",
                        .dtype = Precision::kFp64,
                        .num_threads = 1})
        ->loss.value();
  };
  EXPECT_NEAR(loss_from(40), loss_from(0), 1e-12);
  const auto known = read_json(folder / "config.json").at("max_position_embeddings").get<int64_t>();
  EXPECT_NEAR(loss_from(known + 7), loss_from(0), 1e-12); // behind those of the model, too
  EXPECT_THAT(test::error_of([&] { loss_from(int64_t{1} << 30); }),
              AllOf(HasSubstr("batch.safetensors: position_ids reach "),
                    HasSubstr("try: position_ids from 0 to 1048575")));
  fs::remove_all(out);
}

/// The losses are those of transformers 5.23 in fp64 (use_cache=True, so that all tokens before are
/// in view) of a row of 40 tokens.
TEST(HfEvaluation, RotaryScalingFollowsThePositionsNotTheNumberOfTokens) {
  const fs::path out = scratch("hf_scaled_positions");
  const auto loss_of = [&](const char* model, const at::Tensor& positions) {
    const fs::path folder = kData / "hf_tiny" / model;
    const SafetensorsFile expected(folder / "expected.safetensors");
    const at::Tensor ids =
        checkpoint::to_tensor(expected.at("input_ids")).narrow(0, 0, 1).narrow(1, 0, 40);
    checkpoint::write_tensors(out / "batch.safetensors", {{"input_ids", ids.contiguous()},
                                                          {"labels", ids.contiguous()},
                                                          {"position_ids", positions}});
    return evaluate_hf({.model = folder,
                        .batches = out / "batch.safetensors",
                        .dtype = Precision::kFp64,
                        .num_threads = 1})
        ->loss.value();
  };
  const at::Tensor twice = at::arange(20, at::kLong).repeat({1, 2});
  EXPECT_NEAR(loss_of("phi3_longrope", twice), 4.604535937737, 1e-9);
  EXPECT_NEAR(loss_of("llama_dynamic", twice), 4.894703294880, 1e-9);
  // Behind max_position_embeddings = 24, as far as the factor allows.
  const at::Tensor behind = at::arange(20, 60, at::kLong).unsqueeze(0);
  EXPECT_NEAR(loss_of("llama_dynamic", behind), 4.853230871407, 1e-9);
  EXPECT_THAT(
      test::error_of([&] { loss_of("llama_dynamic", behind + 1); }),
      AllOf(HasSubstr("position_ids reach 60"), HasSubstr("try: position_ids from 0 to 59")));
  fs::remove_all(out);
}

TEST(HfEvaluation, TellsTokensAndLabelsThatGiveNothing) {
  const fs::path out = scratch("hf_nothing");
  const auto error = [&](int64_t tokens, int64_t label) {
    const at::Tensor ids = at::ones({1, tokens}, at::kLong);
    checkpoint::write_tensors(out / "batch.safetensors",
                              {{"input_ids", ids}, {"labels", at::full_like(ids, label)}});
    return test::error_of([&] {
      evaluate_hf({.model = kData / "hf_tiny/llama_dynamic",
                   .batches = out / "batch.safetensors",
                   .grads_out = out / "grads.safetensors",
                   .num_threads = 1});
    });
  };
  EXPECT_THAT(error(8, -100), AllOf(HasSubstr("all labels of"), HasSubstr("are ignored")));
  EXPECT_THAT(error(61, 1), AllOf(HasSubstr("a sequence of 61 tokens is longer than the 60"),
                                  HasSubstr("try: at most 60 tokens")));
  fs::remove_all(out);
}

class HfGolden : public testing::TestWithParam<std::string> {};

TEST_P(HfGolden, Fp64LossLogitsAndGradientsAreThoseOfTransformers) {
  const fs::path folder = kData / "hf_tiny" / GetParam(), out = scratch("hf_" + GetParam());
  const Evaluation evaluation = *evaluate_hf({.model = folder,
                                              .batches = folder / "expected.safetensors",
                                              .logits_out = out / "logits.safetensors",
                                              .grads_out = out / "grads.safetensors",
                                              .hidden_out = out / "hidden.safetensors",
                                              .dtype = Precision::kFp64,
                                              .num_threads = 2});
  const SafetensorsFile expected(folder / "expected.safetensors"),
      logits(out / "logits.safetensors"), grads(out / "grads.safetensors");
  expect_hidden(out / "hidden.safetensors", expected);
  EXPECT_LT(
      relative(evaluation.loss.value(), checkpoint::to_tensor(expected.at("loss")).item<double>()),
      1e-10);
  for (const auto& [name, entry] : logits.tensors()) {
    const at::Tensor reference = checkpoint::to_tensor(expected.at(name));
    // The reference is the fp64 result rounded to fp32.
    EXPECT_LE(max_abs((checkpoint::to_tensor(entry) - reference) / reference), 0x1p-23) << name;
  }
  size_t compared = 0;
  for (const auto& [name, entry] : expected.tensors()) {
    if (!name.starts_with("grad_head.")) continue;
    const std::string parameter = name.substr(std::string("grad_head.").size());
    const at::Tensor gradient = checkpoint::to_tensor(grads.at(parameter));
    EXPECT_EQ(gradient.scalar_type(), at::kDouble);
    const at::Tensor head = checkpoint::to_tensor(entry);
    const double scale = max_abs(gradient);
    EXPECT_LE(max_abs(gradient.reshape({-1}).narrow(0, 0, head.numel()) - head),
              1e-10 * scale + 1e-15)
        << parameter;
    const double norm = checkpoint::to_tensor(expected.at("grad_norm." + parameter)).item<double>();
    EXPECT_LE(std::abs(gradient.norm().item<double>() - norm), 1e-10 * norm + 1e-15) << parameter;
    ++compared;
  }
  EXPECT_EQ(compared, grads.tensors().size()) << "every parameter once, tied ones too";
  fs::remove_all(out);
}

TEST_P(HfGolden, Fp32StaysWithinItsBounds) {
  const fs::path folder = kData / "hf_tiny" / GetParam(), out = scratch("hf32_" + GetParam());
  const Evaluation evaluation = *evaluate_hf({.model = folder,
                                              .batches = folder / "expected.safetensors",
                                              .logits_out = out / "logits.safetensors",
                                              .dtype = Precision::kFp32,
                                              .num_threads = 2});
  const SafetensorsFile expected(folder / "expected.safetensors"),
      logits(out / "logits.safetensors");
  EXPECT_LT(
      relative(evaluation.loss.value(), checkpoint::to_tensor(expected.at("loss")).item<double>()),
      1e-6);
  for (const auto& [name, entry] : logits.tensors()) {
    const at::Tensor reference = checkpoint::to_tensor(expected.at(name));
    EXPECT_LE(max_abs(checkpoint::to_tensor(entry) - reference), 2e-5 * max_abs(reference)) << name;
  }
  fs::remove_all(out);
}

/// Of gradients in bf16, which has 8 bits: the norm of the difference from fp64, relative to that
/// of the gradient, of one parameter and on the average.
struct Bf16Bounds {
  double one = 0.1, mean = 0.05;
};
/// PyTorch's own bf16 run of bert_masked_lm_untied differs by up to 0.12, 0.077 in the middle; that
/// of qwen2_moe by up to 0.22, of gpt_oss by 0.18 and 0.097, of gpt_oss_mxfp4 by 0.14 and 0.066: a
/// token with two experts of nearly one score goes to the other one. Which one does depends on the
/// instructions: gpt_oss differs by up to 0.34, 0.19 on average, with AVX2.
/// Two tokens of deepseek_v3 have experts whose scores differ by less than 3e-4, and here one goes
/// elsewhere, though not in PyTorch's run (0.022). With the same weights and 14 other inputs,
/// PyTorch's run differs by up to 0.31 in three, where a token of its own does, and else by 0.025;
/// this one by 0.029. A token of mixtral likewise; with 14 other inputs both runs differ by 0.016.
Bf16Bounds bf16_bounds(const std::string& model) {
  if (model == "mixtral") return {.one = 0.15};
  if (model == "deepseek_v3") return {.one = 0.2, .mean = 0.08};
  if (model == "qwen2_moe") return {.one = 0.25};
  if (model.starts_with("gpt_oss")) return {.one = 0.4, .mean = 0.22};
  return model == "bert_masked_lm_untied" ? Bf16Bounds{.one = 0.15, .mean = 0.1} : Bf16Bounds{};
}
/// Smaller norms are rounding in fp64: the K part of a bias without rotary positions.
constexpr double kNoGradient = 1e-12;

TEST_P(HfGolden, Bf16IsNear) {
  const fs::path folder = kData / "hf_tiny" / GetParam(), out = scratch("hf16_" + GetParam());
  const Evaluation evaluation = *evaluate_hf({.model = folder,
                                              .batches = folder / "expected.safetensors",
                                              .grads_out = out / "grads.safetensors",
                                              .dtype = Precision::kBf16,
                                              .num_threads = 2});
  const SafetensorsFile expected(folder / "expected.safetensors"), grads(out / "grads.safetensors");
  EXPECT_LT(
      relative(evaluation.loss.value(), checkpoint::to_tensor(expected.at("loss")).item<double>()),
      5e-3);
  evaluate_hf({.model = folder,
               .batches = folder / "expected.safetensors",
               .grads_out = out / "exact.safetensors",
               .dtype = Precision::kFp64,
               .num_threads = 2});
  const SafetensorsFile exact(out / "exact.safetensors");
  const Bf16Bounds bounds = bf16_bounds(GetParam());
  double sum = 0;
  for (const auto& [name, entry] : exact.tensors()) {
    const at::Tensor reference = checkpoint::to_tensor(entry),
                     gradient = checkpoint::to_tensor(grads.at(name));
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << "bf16 gradients are accumulated in fp32";
    const double norm = reference.norm().item<double>();
    const double difference = (gradient - reference).norm().item<double>();
    EXPECT_LT(difference, norm < kNoGradient ? 1e-4 : bounds.one * norm) << name;
    if (norm >= kNoGradient) sum += difference / norm;
  }
  EXPECT_LT(sum, bounds.mean * static_cast<double>(exact.tensors().size()));
  fs::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(
    Families, HfGolden,
    testing::Values("bert", "bert_masked_lm", "bert_masked_lm_untied", "bert_regression",
                    "deepseek_v3", "deepseek_v3_yarn", "gemma2", "gemma3_text",
                    "gemma3_text_scaled", "glm4", "gpt2", "gpt_oss", "gpt_oss_mxfp4", "llama",
                    "llama3_rope_scaling_tied", "llama_dynamic", "mistral_sliding_window",
                    "mixtral", "olmo2", "olmoe", "phi3", "phi3_longrope", "qwen2", "qwen2_moe",
                    "qwen3", "qwen3_moe", "roberta_classification", "roberta_masked_lm", "t5",
                    "t5_reglu", "t5_untied", "t5_untied_unscaled", "t5_v1_1_gated"),
    [](const auto& info) { return info.param; });

struct CurveCase {
  std::string model, precision;
  double tolerance;
  bool recompute = false;
  bool eight_ranks = false;   ///< TP2 x PP2 x DP2
  std::string optimizer = {}; ///< empty: AdamW
};

const std::map<std::string, std::vector<std::string>> kOptimizerKeys = {
    {"lion",
     {"optimizer.optimizer=lion", "optimizer.lr=1e-3", "optimizer.min_lr=1e-4",
      "optimizer.weight_decay=0.5", "optimizer.lion_beta1=0.9", "optimizer.lion_beta2=0.99"}},
    {"muon_original",
     {"optimizer.optimizer=muon", "optimizer.lr=0.02", "optimizer.min_lr=0.002",
      "optimizer.muon_scale_mode=original"}},
    {"muon_match_rms",
     {"optimizer.optimizer=muon", "optimizer.lr=0.004", "optimizer.min_lr=0.0004",
      "optimizer.muon_momentum=0.9", "optimizer.muon_nesterov=false"}}};

class TrainingCurve : public testing::TestWithParam<CurveCase> {};

TEST_P(TrainingCurve, EveryStepIsPyTorchs) {
  const CurveCase& param = GetParam();
  const fs::path out = scratch("curve_" + param.model + param.precision);
  const int axis = param.eight_ranks ? 2 : 1, ranks = axis * axis * axis;
  Config base;
  const fs::path folder = kData / "hf_tiny" / param.model;
  base.model = checkpoint::read_hf_config(folder).config;
  base.checkpoint.load = "hf:" + folder.string();
  const bool other = !param.optimizer.empty();
  const std::string batches = other ? "llama_optimizers" : param.model,
                    curve_name = other ? "llama_" + param.optimizer : param.model;
  std::vector<std::string> keys = {
      "dtype=" + param.precision,
      "kernels=order",
      "dataset.type=batches",
      "dataset.path=" + (kData / "training_curves" / (batches + ".safetensors")).string(),
      "train.train_iters=20",
      "train.global_batch_size=4",
      param.eight_ranks ? "train.micro_batch_size=1" : "train.micro_batch_size=4",
      "parallel.tensor_model_parallel_size=" + std::to_string(axis),
      "parallel.pipeline_model_parallel_size=" + std::to_string(axis),
      "optimizer.lr=2e-3",
      "optimizer.min_lr=2e-4",
      "optimizer.adam_beta1=0.9",
      "optimizer.adam_beta2=0.95",
      "optimizer.adam_eps=1e-8",
      "optimizer.weight_decay=0.1",
      "optimizer.clip_grad=1.0",
      "scheduler.lr_decay_style=cosine",
      "scheduler.lr_warmup_iters=4",
      "scheduler.lr_decay_iters=20",
      "logger.log_interval=1",
      "logger.dir=" + out.string(),
      "logger.peak_tflops=1",
      std::string("train.recompute=") + (param.recompute ? "full" : "none")};
  if (other) {
    const auto& more = kOptimizerKeys.at(param.optimizer);
    keys.insert(keys.end(), more.begin(), more.end());
  }
  const Config config = load_config(std::nullopt, keys, base, ranks);
  test::run_ranks(ranks, [&](const comm::Group& world) { Trainer(config, world).run(); });
  const Json curve =
      read_json(kData / "training_curves" /
                (curve_name + ".json"))[param.precision == "fp64" ? "float64" : "float32"];
  std::ifstream in(out / "metrics.jsonl");
  std::string line;
  int64_t iteration = 0;
  while (std::getline(in, line)) {
    const Json metrics = parse_json(line, "metrics.jsonl");
    EXPECT_EQ(metrics["iteration"].get<int64_t>(), iteration + 1);
    const auto i = static_cast<size_t>(iteration);
    EXPECT_LT(relative(metrics["loss"].get<double>(), curve["loss"][i].get<double>()),
              param.tolerance)
        << iteration;
    EXPECT_LT(relative(metrics["grad_norm"].get<double>(), curve["grad_norm"][i].get<double>()),
              param.tolerance)
        << iteration;
    for (const auto& [ours, theirs] :
         {std::pair{"lm_loss", "lm_loss"}, std::pair{"sop_loss", "sop_or_nsp_loss"}}) {
      if (!curve.contains(theirs)) continue;
      EXPECT_LT(relative(metrics[ours].get<double>(), curve[theirs][i].get<double>()),
                param.tolerance)
          << ours << " of " << iteration;
    }
    EXPECT_LT(relative(metrics["learning_rate"].get<double>(), curve["lr"][i].get<double>()), 1e-12)
        << iteration;
    ++iteration;
  }
  EXPECT_EQ(iteration, 20);
  fs::remove_all(out);
}

INSTANTIATE_TEST_SUITE_P(
    Models, TrainingCurve,
    testing::Values(
        CurveCase{"gpt2", "fp64", 1e-12}, CurveCase{"llama", "fp64", 1e-9},
        CurveCase{"qwen3", "fp64", 1e-12}, CurveCase{"bert", "fp64", 1e-9},
        CurveCase{"t5", "fp64", 1e-12}, CurveCase{"gpt2", "fp32", 2e-5},
        CurveCase{"llama", "fp32", 2e-5}, CurveCase{"qwen3", "fp32", 2e-5},
        CurveCase{"mixtral", "fp64", 1e-12}, CurveCase{"mixtral", "fp32", 2e-5},
        CurveCase{"mixtral", "fp64", 1e-12, true, true}, CurveCase{"qwen3_moe", "fp64", 1e-9},
        CurveCase{"deepseek_v3", "fp64", 1e-12}, CurveCase{"deepseek_v3", "fp32", 2e-5},
        CurveCase{"deepseek_v3", "fp64", 1e-12, true, true},
        CurveCase{"qwen3_moe", "fp64", 1e-12, false, true}, CurveCase{"gpt_oss", "fp64", 1e-9},
        CurveCase{"gpt_oss", "fp64", 1e-12, true, true},
        CurveCase{"qwen3_moe", "fp32", 2e-5, false, true}, CurveCase{"qwen3", "fp64", 1e-12, true},
        CurveCase{"gpt2", "fp64", 1e-12, false, true},
        CurveCase{"llama", "fp64", 1e-9, false, true},
        CurveCase{"qwen3", "fp64", 1e-12, false, true},
        CurveCase{"bert", "fp64", 1e-9, false, true}, CurveCase{"t5", "fp64", 1e-12, false, true},
        CurveCase{"bert", "fp32", 2e-5}, CurveCase{"t5", "fp32", 2e-5},
        CurveCase{"gpt2", "fp32", 2e-5, false, true}, CurveCase{"llama", "fp32", 2e-5, false, true},
        CurveCase{"qwen3", "fp32", 2e-5, false, true},
        CurveCase{"llama", "fp64", 1e-12, false, false, "lion"},
        CurveCase{"llama", "fp64", 1e-12, false, true, "lion"},
        CurveCase{"llama", "fp32", 2e-5, false, false, "lion"},
        CurveCase{"llama", "fp64", 1e-12, false, false, "muon_original"},
        CurveCase{"llama", "fp64", 1e-12, false, true, "muon_original"},
        CurveCase{"llama", "fp32", 1e-4, false, false, "muon_original"},
        CurveCase{"llama", "fp64", 1e-12, false, false, "muon_match_rms"},
        CurveCase{"llama", "fp64", 1e-12, false, true, "muon_match_rms"},
        CurveCase{"llama", "fp32", 2e-5, false, false, "muon_match_rms"}),
    [](const auto& info) {
      return info.param.model + "_" +
             (info.param.optimizer.empty() ? "" : info.param.optimizer + "_") +
             info.param.precision + (info.param.recompute ? "_recompute" : "") +
             (info.param.eight_ranks ? "_tp2_pp2_dp2" : "");
    });

TEST(TextScorer, ALongTextIsNotPaddedForTheShortOnesBeforeIt) {
  const auto score = [](int64_t batch_tokens) {
    const auto source = checkpoint::open_model((kData / "hf_tiny/llama").string());
    const data::ByteTokenizer tokenizer; // its end of a document is not in the vocabulary
    TextScorer scorer(
        *source, tokenizer,
        {.dtype = Precision::kFp64, .device = DeviceKind::kCpu, .batch_tokens = batch_tokens});
    for (int i = 0; i < 20; ++i) scorer.add("abc");
    scorer.add(std::string(50, 'x'));
    scorer.add("abc");
    const TextScore result = scorer.finish();
    EXPECT_LE(scorer.largest_batch_tokens(), batch_tokens);
    EXPECT_EQ(result.tokens, 21 * 2 + 49);
    EXPECT_EQ(result.bytes, 21 * 2 + 49) << "the first letters are not predicted";
    return result.nll;
  };
  const double together = score(1'000'000);
  EXPECT_NEAR(score(64), together, 1e-9 * together);
}

} // namespace
} // namespace pentatron::trainer
