// Runs with adapters of the embedding and the output layer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <set>

#include "pentatron/base/safetensors.h"
#include "pentatron/checkpoint/adapters/adapter_source.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/trainer/evaluate_hf.h"
#include "tests/trainer/adapter_run.h"

namespace pentatron::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class VocabAdapterRun : public AdapterRun {};

TEST_F(VocabAdapterRun, AdaptersOfTheVocabularyResumeAndBeginAsTheBase) {
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"peft.target_modules=[lm_head,embed_tokens]", "peft.dropout=0.1",
                             "train.eval_interval=0"});
    return more;
  };
  const test::Trace plain =
      test::run(config({"peft.target_modules=[q_proj]", "train.train_iters=1"}));
  const test::Trace run = test::run(config(with({save()})));
  EXPECT_EQ(plain.steps[0]["loss"], run.steps[0]["loss"]) << "B is zero";
  EXPECT_LT(run.steps.back()["loss"], run.steps.front()["loss"]);
  std::set<std::string> names;
  for (const auto& [name, weight] : adapters_of(run)) {
    names.insert(name);
    EXPECT_GT(weight.abs().max().item<double>(), 0) << name;
  }
  EXPECT_EQ(names, (std::set<std::string>{"embedding.word.lora_A", "embedding.word.lora_B",
                                          "output.lora_A", "output.lora_B"}));
  test::run(config(with({"train.exit_interval=3", save("half")})));
  const test::Trace second =
      test::run(config(with({"checkpoint.save=" + (scratch / "to")}), scratch / "half"));
  for (const auto& [name, weight] : run.weights)
    EXPECT_TRUE(at::equal(second.weights.at(name), weight)) << name;
}

TEST_F(VocabAdapterRun, AllLinearLeavesTheVocabularyOut) {
  for (const auto& [name, weight] : adapters_of(test::run(config({"train.train_iters=0"}))))
    EXPECT_TRUE(name.starts_with("layers.")) << name;
}

/// What save_pretrained() of peft writes if it is not told otherwise.
TEST_F(VocabAdapterRun, CopiesOfTheBaseBesideAnAdapterMustBeItsOwn) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama_lm_head", adapter);
  const auto model = checkpoint::open_model(base.string());
  std::map<std::string, at::Tensor> tensors = tensors_of(adapter);
  at::Tensor& copy = tensors["base_model.model.lm_head.base_layer.weight"];
  copy = at::empty({131, 48}, at::kFloat);
  model->read("output.weight", checkpoint::Box{{0, 0}, {131, 48}}, copy);
  const auto begin = [&](const char* dtype) {
    test::run(config({"train.train_iters=0", "peft.r=3", dtype, "peft.load=" + adapter.string()}));
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    copy = copy.to(type);
    replace_tensors(adapter, tensors);
    EXPECT_EQ(checkpoint::read_adapter(adapter, *model).modules.size(), 3u) << type;
    for (const char* dtype : {"dtype=fp64", "dtype=fp16"}) // which rounds both
      EXPECT_NO_THROW(begin(dtype)) << type << dtype;
  }
  copy[3][4] += 1;
  replace_tensors(adapter, tensors);
  const std::string part = "lm_head.base_layer.weight, whose values are not those of the model";
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }), HasSubstr(part));
  EXPECT_THAT(message_of([&] { begin("dtype=fp64"); }), HasSubstr(part));
}

/// With save_embedding_layers=True, beside an adapter of other layers.
TEST_F(VocabAdapterRun, CopiesOfTheVocabularyMayLieBesideOtherAdapters) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama", adapter);
  const auto model = checkpoint::open_model(base.string());
  std::map<std::string, at::Tensor> tensors = tensors_of(adapter);
  const checkpoint::Box all{{0, 0}, {131, 48}};
  at::Tensor& words = tensors["base_model.model.model.embed_tokens.weight"];
  at::Tensor& output = tensors["base_model.model.lm_head.weight"];
  model->read("embedding.word.weight", all, words = at::empty({131, 48}, at::kFloat));
  model->read("output.weight", all, output = at::empty({131, 48}, at::kFloat));
  replace_tensors(adapter, tensors);
  EXPECT_NO_THROW(checkpoint::read_adapter(adapter, *model));
  output[3][4] += 1;
  replace_tensors(adapter, tensors);
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              HasSubstr("lm_head.weight, whose values are not those of the model"));
}

TEST_F(VocabAdapterRun, WhatIsNoNumberAndAdaptersOfNoRankAreRefused) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama_lm_head", adapter);
  const auto model = checkpoint::open_model(base.string());
  change_settings(adapter, "r", 0);
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              AllOf(HasSubstr("has rank 0"), HasSubstr("try: an adapter with r of at least 1")));
  fs::remove_all(adapter);
  fs::copy(data / "peft_curves/llama_lm_head", adapter);
  std::map<std::string, at::Tensor> tensors = tensors_of(adapter);
  tensors.begin()->second[0][0] = std::nan("");
  replace_tensors(adapter, tensors);
  EXPECT_THAT(message_of([&] { checkpoint::read_adapter(adapter, *model); }),
              HasSubstr(tensors.begin()->first + " has values that are not finite"));
}

/// As peft ties them: the tensors of the output layer are those of the embedding, transposed.
TEST_F(VocabAdapterRun, AnAdapterForBothTiedLayersIsReadAsTwo) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/gemma2_tied_both", adapter);
  change_settings(adapter, [](Json& fields) {
    fields["ensure_weight_tying"] = true;
    fields["target_modules"] = {"model.embed_tokens", "q_proj"};
  });
  const std::string gemma2 = (data / "hf_tiny/gemma2").string();
  const auto model = checkpoint::open_model(gemma2);
  const checkpoint::Adapter read = checkpoint::read_adapter(adapter, *model),
                            listed = checkpoint::read_adapter(data / "peft_curves/gemma2_tied_both",
                                                              *model);
  ASSERT_EQ(read.modules.size(), listed.modules.size());
  for (const auto& [name, tensor] : listed.tensors)
    EXPECT_TRUE(at::equal(read.tensors.at(name), tensor)) << name;
  base = gemma2;
  EXPECT_THAT(error({"peft.load=" + adapter.string()}),
              AllOf(HasSubstr("has one adapter for embedding and output layer"),
                    HasSubstr("try: peft.load=DIR with an adapter")));
}

/// The output layer has the rank of the embedding, and the scale of its own rank and alpha.
TEST_F(VocabAdapterRun, ATiedAdapterWithPatternsHasTheLogitsOfPeft) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = data / "peft_curves/gemma2_tied_adapter",
                 logits = scratch / "logits.safetensors";
  const std::string with =
      (data / "hf_tiny/gemma2").string() + std::string(checkpoint::kWithAdapter);
  const auto gap = [&](const fs::path& from) {
    evaluate_hf({.model = with + from.string(),
                 .batches = adapter / "logits.safetensors",
                 .logits_out = logits,
                 .dtype = Precision::kFp64});
    const SafetensorsFile ours(logits), theirs(adapter / "logits.safetensors");
    return (checkpoint::to_tensor(ours.at("logits")) - checkpoint::to_tensor(theirs.at("logits")))
        .abs()
        .max()
        .item<double>();
  };
  EXPECT_LT(gap(adapter), 2e-6);
  const fs::path other = scratch / "other";
  fs::copy(adapter, other);
  change_settings(other, [](Json& fields) { fields["alpha_pattern"].erase("lm_head"); });
  EXPECT_GT(gap(other), 0.01);
}

/// ensure_weight_tying says nothing of a model with two tables.
TEST_F(VocabAdapterRun, AnAdapterThatWouldTieAnUntiedModelTrains) {
  const fs::path data = PENTATRON_TEST_DATA, adapter = scratch / "adapter";
  fs::copy(data / "peft_curves/llama_embed_tokens", adapter);
  change_settings(adapter, "ensure_weight_tying", true);
  const auto losses = [&](const fs::path& from) {
    return test::run(config({"train.train_iters=2", "peft.r=3", "peft.load=" + from.string()}))
        .steps.at(1)["loss"];
  };
  EXPECT_EQ(losses(adapter), losses(data / "peft_curves/llama_embed_tokens"));
}

/// A merged model has two tables where its base has one.
TEST_F(VocabAdapterRun, MergingUntiesTheOutputLayer) {
  const fs::path data = PENTATRON_TEST_DATA;
  const std::string tied = (data / "hf_tiny/llama3_rope_scaling_tied").string();
  const auto model = checkpoint::open_model(tied),
             merged = checkpoint::open_model(tied + std::string(checkpoint::kWithAdapter) +
                                             (data / "peft_curves/llama_tied_lm_head").string());
  EXPECT_FALSE(model->config().untie_embeddings_and_output_weights);
  EXPECT_TRUE(merged->config().untie_embeddings_and_output_weights);
  const auto values = [](checkpoint::ModelSource& source, const std::string& name) {
    const at::Tensor all = at::empty({131, 48}, at::kDouble);
    source.read(name, checkpoint::Box{{0, 0}, {131, 48}}, all);
    return all;
  };
  const at::Tensor table = values(*model, "embedding.word.weight");
  EXPECT_TRUE(at::equal(values(*merged, "embedding.word.weight"), table));
  EXPECT_FALSE(at::allclose(values(*merged, "output.weight"), table));
}

/// modules_to_save may name one use of a table that has two.
TEST_F(VocabAdapterRun, ATableThatTrainsWholeHasNoAdapterAndOneThatDoesNotKeepsIts) {
  const fs::path data = fs::path(PENTATRON_TEST_DATA) / "hf_tiny";
  const auto parts = [&](const std::string& model, std::vector<std::string> targets,
                         std::vector<std::string> saved) {
    const auto source = checkpoint::open_model((data / model).string());
    config::Violations violations;
    const checkpoint::Adapter adapter =
        checkpoint::adapter_parts({.type = checkpoint::AdapterType::kLora,
                                   .target_modules = std::move(targets),
                                   .modules_to_save = std::move(saved)},
                                  source->config(), source->facts().family, violations);
    std::vector<std::string> words;
    for (const checkpoint::AdaptedModule& one : adapter.modules)
      if (one.module.use != nn::AdaptedUse::kLinear) words.push_back(one.module.weight);
    return std::pair(words, violations.text());
  };
  const std::string table = "embedding.word.weight", tied = "llama3_rope_scaling_tied";
  const auto [words, none] = parts("bert_masked_lm", {"word_embeddings", "query"}, {"predictions"});
  EXPECT_EQ(words, std::vector<std::string>{table});
  EXPECT_EQ(none, "");
  EXPECT_THAT(
      parts(tied, {"lm_head", "q_proj"}, {"embed_tokens"}).second,
      AllOf(HasSubstr("peft.target_modules chooses lm_head, but peft.modules_to_save trains "
                      "its weight, that of embedding.word, whole"),
            HasSubstr("try: peft.modules_to_save=[]")));
  EXPECT_THAT(parts("bert_masked_lm", {"decoder"}, {"predictions"}).second,
              HasSubstr("it is in peft.modules_to_save, which cannot train its weight"));
  EXPECT_EQ(parts(tied, {"embed_tokens", "q_proj"}, {"embed_tokens"}).second, "");
  EXPECT_EQ(parts("llama", {"lm_head", "q_proj"}, {"embed_tokens"}).second, "");
}

/// A run from the adapters of a run has their model as its base, which has two tables.
TEST_F(VocabAdapterRun, FinetuningFromAdaptersOfATiedModelBeginsWithThem) {
  const fs::path data = PENTATRON_TEST_DATA;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llama3_rope_scaling_tied", "lm_head"}, {"gemma2", "embed_tokens"}};
  for (const auto& [model, module] : cases) {
    base = data / "hf_tiny" / model;
    const std::string run = scratch / model, adapter = scratch / (model + "_peft");
    test::run(config(
        {"peft.target_modules=[" + module + "]", "optimizer.lr=0.1", "checkpoint.save=" + run}));
    checkpoint::write_peft_of(fs::path(run) / "step_00000006", adapter);
    const auto first_loss = [&](const std::vector<std::string>& more, const std::string& load) {
      std::vector<std::string> keys = {"train.train_iters=1"};
      keys.insert(keys.end(), more.begin(), more.end());
      Config c = config(keys, load);
      if (c.peft.load.empty() && c.peft.target_modules.size() == 1) c.peft = {};
      return test::run(c).steps.at(0)["loss"].get<double>();
    };
    const double trained = first_loss({"peft.load=" + adapter}, "hf:");
    EXPECT_GT(std::abs(first_loss({}, "hf:") - trained), 0.1) << model;
    const std::string from = "checkpoint.finetune=true";
    EXPECT_NEAR(first_loss({from}, run), trained, 1e-9) << model;
    EXPECT_NEAR(first_loss({from, "peft.target_modules=[q_proj,lm_head]"}, run), trained, 1e-9)
        << model;
    const std::string tied = "model.untie_embeddings_and_output_weights=false";
    EXPECT_THAT(message_of([&] {
                  first_loss({from, tied}, run);
                }),
                AllOf(HasSubstr("contains an output layer that differs from the embedding"),
                      HasSubstr("try: model.untie_embeddings_and_output_weights=true")));
    EXPECT_NO_THROW(first_loss({from, tied, "checkpoint.strictness=log_unexpected"}, run));
  }
}

} // namespace
} // namespace pentatron::trainer
